{{- define "kubeml.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that never change, since selectors consist of them. */}}
{{- define "kubeml.selector" -}}
app.kubernetes.io/name: kubeml
app.kubernetes.io/instance: {{ include "kubeml.name" . }}
{{- end -}}

{{- define "kubeml.labels" -}}
{{ include "kubeml.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kubeml.image" -}}
{{ .root.Values.image.prefix }}{{ .name }}:{{ default .root.Chart.AppVersion .root.Values.image.tag }}
{{- end -}}

{{/* A hook of the given weight. A hook that has succeeded is deleted. */}}
{{- define "kubeml.afterUninstall" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "kubeml.account" -}}
{{- default (include "kubeml.name" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "kubeml.bundled" -}}
{{- if not (or .Values.mongodb.uri .Values.mongodb.existingSecret) -}}yes{{- end -}}
{{- end -}}

{{- define "kubeml.storeSecret" -}}
{{- default (printf "%s-store" (include "kubeml.name" .)) .Values.mongodb.existingSecret -}}
{{- end -}}

{{/* The value that the Secret already has under the key; "": none. */}}
{{- define "kubeml.there" -}}
{{- dig "data" .key "" (lookup "v1" "Secret" .root.Release.Namespace .secret) -}}
{{- end -}}

{{/* A secret that is made once: an upgrade keeps the existing one. */}}
{{- define "kubeml.kept" -}}
{{- include "kubeml.there" . | default (randAlphaNum 64 | sha256sum | b64enc) -}}
{{- end -}}

{{/* What Pod Security "restricted" asks for, and a read-only root file system. */}}
{{- define "kubeml.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.security.userID }}
runAsGroup: {{ .Values.security.userID }}
fsGroup: {{ .Values.security.userID }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- define "kubeml.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "kubeml.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a part's pods: the chart's, and those that the part's values add. Without a `component` the pod is one of
the warm pool's. */}}
{{- define "kubeml.podMetadata" -}}
{{- $labels := include "kubeml.selector" .root | fromYaml -}}
{{- with .component -}}
{{- $labels = set (include "kubeml.labels" $.root | fromYaml) "app.kubernetes.io/component" . -}}
{{- end -}}
labels: {{- merge $labels (default dict .part.podLabels) | toYaml | nindent 2 }}
{{- with merge (default "" .annotations | fromYaml) (default dict .part.podAnnotations) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kubeml.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* NCCL takes the ports that the system gives it, and has no setting for them. So a sysctl, which Kubernetes counts among the safe
ones, makes the system give ports of a range. The NetworkPolicy of a job whose functions are NCCL's ranks names that range. */}}
{{- define "kubeml.rankPorts" -}}
{{- if gt (int .Values.gpu.rankPorts.first) (int .Values.gpu.rankPorts.last) }}
{{- fail (printf "gpu.rankPorts: first, %d, is after last, %d" (int .Values.gpu.rankPorts.first) (int .Values.gpu.rankPorts.last)) }}
{{- end }}
{{- if and .Values.gpu.enabled .Values.networkPolicy.enabled }}yes{{ end }}
{{- end -}}

{{- define "kubeml.mps" -}}
{{- if and .Values.gpu.enabled (eq .Values.gpu.sharing.strategy "mps") }}yes{{ end }}
{{- end -}}

{{/* The warm pool's pods. kubeml-controller adds names, labels and owners. */}}
{{- define "kubeml.functionPod" -}}
{{- $security := include "kubeml.podSecurity" . | fromYaml }}
{{- if include "kubeml.rankPorts" . }}
{{- $range := printf "%d %d" (int .Values.gpu.rankPorts.first) (int .Values.gpu.rankPorts.last) }}
{{- $_ := set $security "sysctls" (list (dict "name" "net.ipv4.ip_local_port_range" "value" $range)) }}
{{- end }}
metadata:
  {{- include "kubeml.podMetadata" (dict "root" . "part" .Values.function) | nindent 2 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  terminationGracePeriodSeconds: 10
  securityContext: {{ toJson $security }}
  {{- include "kubeml.pullSecrets" . | nindent 2 }}
  {{- include "kubeml.placement" .Values.function | nindent 2 }}
  {{- with .Values.function.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  containers:
  - name: function
    {{- $image := .Values.function.image }}
    {{- if and .Values.gpu.enabled (eq $image "kubeml-function-cpu") }}{{ $image = "kubeml-function-cuda" }}{{ end }}
    image: {{ include "kubeml.image" (dict "root" . "name" $image) }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [--listen, "tcp:0.0.0.0:10200"]
    env:
    - {name: KUBEML_POOL_TOKEN_FILE, value: /etc/kubeml/pool/token}
    - {name: TMPDIR, value: /tmp}
    {{- /* MPS reads its limits when CUDA starts, which is when a job is known. */}}
    {{- if and .Values.gpu.enabled (not (include "kubeml.mps" .)) }}
    - {name: KUBEML_WARM_GPU, value: "1"}
    {{- end }}
    {{- if and .Values.gpu.enabled .Values.gpu.policy }}
    - {name: KUBEML_TELL_GPU, value: "1"}
    {{- end }}
    {{- with .Values.function.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    ports: [{name: control, containerPort: 10200}]
    securityContext: {{ include "kubeml.containerSecurity" . | fromYaml | toJson }}
    {{- $resources := deepCopy .Values.function.resources }}
    {{- if .Values.gpu.enabled }}
    {{- /* One that has several says not which it is on, and of MPS's shares the plugin gives a pod no second one. */}}
    {{- if and (gt (int .Values.gpu.count) 1) (or (include "kubeml.mps" .) .Values.gpu.policy) }}
    {{- fail (printf "gpu.count is %d: with gpu.policy, and with gpu.sharing.strategy=mps, a function gets one" (int .Values.gpu.count)) }}
    {{- end }}
    {{- $limits := default dict $resources.limits }}
    {{- $_ := set $resources "limits" (merge (dict .Values.gpu.resource (toString .Values.gpu.count)) $limits) }}
    {{- end }}
    resources: {{ toJson $resources }}
    volumeMounts:
    - {name: pool, mountPath: /etc/kubeml/pool, readOnly: true}
    - {name: scratch, mountPath: /tmp}
    {{- /* Under MPS the device plugin mounts the shared memory of its daemon there. Functions of pods need none: their
    blocks go over a socket. */}}
    {{- if not (include "kubeml.mps" .) }}
    - {name: shm, mountPath: /dev/shm}
    {{- end }}
    {{- with .Values.mongodb.tls.caConfigMap }}
    - {name: mongodb-ca, mountPath: /etc/kubeml/mongodb-ca, readOnly: true}
    {{- end }}
  volumes:
  - {name: pool, secret: {secretName: {{ include "kubeml.name" . }}-pool, defaultMode: 288}}
  - {name: scratch, emptyDir: {sizeLimit: {{ .Values.function.scratchSize }}}}
  {{- if not (include "kubeml.mps" .) }}
  - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .Values.function.scratchSize }}}}
  {{- end }}
  {{- with .Values.mongodb.tls.caConfigMap }}
  - {name: mongodb-ca, configMap: {name: {{ . }}}}
  {{- end }}
{{- end -}}

{{- define "kubeml.psPod" -}}
metadata:
  {{- include "kubeml.podMetadata" (dict "root" . "part" .Values.ps) | nindent 2 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  terminationGracePeriodSeconds: 10
  securityContext: {{ include "kubeml.podSecurity" . | fromYaml | toJson }}
  {{- include "kubeml.pullSecrets" . | nindent 2 }}
  {{- include "kubeml.placement" .Values.ps | nindent 2 }}
  initContainers:
  - name: redis
    restartPolicy: Always # runs beside kubeml-ps, and is restarted when it ends
    image: {{ include "kubeml.image" (dict "root" . "name" .Values.ps.image) }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [--serve-redis, /run/redis, --redis-listen, "$(POD_IP):6379"]
    env:
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    {{- if ((.Values.ps.redis.resources).limits).memory }}
    - {name: KUBEML_REDIS_MEMORY_LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}} # a node with cgroup v1 has no memory.max
    {{- end }}
    ports: [{name: redis, containerPort: 6379}]
    # A Redis that stands still takes connections and answers none. It is killed after about 65 s; a stop of half a minute is tolerated.
    livenessProbe:
      exec: {command: [/usr/lib/kubeml/bin/kubeml-ps, --ping-redis, /run/redis]}
      periodSeconds: 10
      timeoutSeconds: 10
      failureThreshold: 7
      terminationGracePeriodSeconds: 1 # Redis has nothing to save
    securityContext: {{ include "kubeml.containerSecurity" . | fromYaml | toJson }}
    resources: {{ toJson .Values.ps.redis.resources }}
    volumeMounts:
    - {name: redis, mountPath: /run/redis}
  containers:
  - name: ps
    image: {{ include "kubeml.image" (dict "root" . "name" .Values.ps.image) }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [--listen, "tcp:0.0.0.0:10200", --advertise, "tcp:$(POD_IP):10200", --run-dir, /run/kubeml, --carrier, socket,
           --redis-listen, "$(POD_IP):6379", --redis-folder, /run/redis]
    env:
    - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: KUBEML_POOL_TOKEN_FILE, value: /etc/kubeml/pool/token}
    - {name: TMPDIR, value: /run/kubeml}
    ports: [{name: control, containerPort: 10200}]
    securityContext: {{ include "kubeml.containerSecurity" . | fromYaml | toJson }}
    resources: {{ toJson .Values.ps.resources }}
    volumeMounts:
    - {name: pool, mountPath: /etc/kubeml/pool, readOnly: true}
    - {name: run, mountPath: /run/kubeml}
    {{- with .Values.mongodb.tls.caConfigMap }}
    - {name: mongodb-ca, mountPath: /etc/kubeml/mongodb-ca, readOnly: true}
    {{- end }}
    - {name: redis, mountPath: /run/redis}
  volumes:
  - {name: pool, secret: {secretName: {{ include "kubeml.name" . }}-pool, defaultMode: 288}}
  - {name: run, emptyDir: {sizeLimit: {{ .Values.ps.scratchSize }}}}
  {{- with .Values.mongodb.tls.caConfigMap }}
  - {name: mongodb-ca, configMap: {name: {{ . }}}}
  {{- end }}
  - {name: redis, emptyDir: {medium: Memory, sizeLimit: 16Mi}} # Redis's socket, and the password that both containers know
{{- end -}}

{{/* Egress rules that several NetworkPolicies have. */}}
{{- define "kubeml.dns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  {{- with .Values.networkPolicy.dns }}
  to: {{ toJson . }}
  {{- end }}
{{- end }}
{{- define "kubeml.toStore" -}}
{{- if include "kubeml.bundled" . }}
- to: [{podSelector: {matchLabels: {{ merge (include "kubeml.selector" . | fromYaml) (dict "app.kubernetes.io/component" "mongodb") | toJson }}}}]
  ports: [{port: 27017}]
{{- else }}
- ports: [{port: {{ .Values.mongodb.port }}}]
  {{- with .Values.mongodb.egress }}
  to: {{ toJson . }}
  {{- end }}
{{- end }}
{{- end }}
