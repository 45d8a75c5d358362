# Part of init.sh: containerd, kubelet, kube-proxy and the policy agent; on node 0 cluster DNS too.
d=$state/$name
spare=$((n >= KUBEML_TC_NODES - KUBEML_TC_SPARE))
mount --make-rshared /
# A node's usual paths, in this mount namespace alone.
for p in /var/lib/kubelet /var/lib/containerd /run/containerd /var/lib/cni /run/netns \
         /var/log/pods /var/log/containers /etc/cni/net.d; do
  mkdir -p "$p" "$d$p"
  mount --bind "$d$p" "$p"
done
# kubelet sets these for the whole machine, unless it reads there what it wants.
for kv in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
  f=$d/$(basename "${kv%=*}")
  echo "${kv#*=}" >"$f"
  mount --bind "$f" "/proc/sys/${kv%=*}"
done
# Pods ask for what the chart says of machines of some size. Here they wait most of the time, and many more fit than on so few
# processors. kubelet counts those of all memory nodes: the machine's own ones again in each.
if [ "$KUBEML_TC_CPU_TIMES" -gt 1 ] && [ -d /sys/devices/system/node/node0 ]; then
  for times in $(seq 0 $((KUBEML_TC_CPU_TIMES - 1))); do
    for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
      topology=$d/memory-nodes/node$times/$(basename "$cpu")/topology
      mkdir -p "$topology"
      cp "$cpu"/topology/{core_id,physical_package_id} "$topology"
    done
    mkdir -p "$d/memory-nodes/node$times/hugepages"
    cp /sys/devices/system/node/node0/{meminfo,distance} "$d/memory-nodes/node$times"
  done
  mount --bind "$d/memory-nodes" /sys/devices/system/node
fi
# Each pod has a wire of its own to the node (ptp), so that all it says is routed, and the policy agent's rules
# and a Service's translation see it; over a bridge, pods of one node would meet below both.
cat >/etc/cni/net.d/10-pods.conflist <<J
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pod_net.$n.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
J
cat >"$d/containerd.toml" <<T
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  # Where the machine withholds CAP_SYS_RESOURCE, oom_score_adj cannot be lowered as kubelet asks.
  restrict_oom_score_adj = true
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
T
echo "options ndots:1" >"$d/resolv.conf"
cat >"$d/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $pki/$name.crt
tlsPrivateKeyFile: $pki/$name.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/$name
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$dns_ip]
resolvConf: $d/resolv.conf
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 100Mi, imagefs.available: 100Mi, nodefs.inodesFree: 1%}
nodeStatusUpdateFrequency: 4s
nodeLeaseDurationSeconds: 12
syncFrequency: 10s
$([ $spare = 0 ] || echo 'registerWithTaints: [{key: spare, effect: NoSchedule}]')
Y
cat >"$d/proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $pki/proxy.kubeconfig}
hostnameOverride: $name
mode: $KUBEML_TC_PROXY_MODE
clusterCIDR: $pod_net.0.0/16
iptables: {minSyncPeriod: 100ms}
nftables: {minSyncPeriod: 100ms}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
start "$name-containerd" containerd --config "$d/containerd.toml"
await 60 ctr version
ctr -n k8s.io images import "$state/pause.tar"
rm -f /var/lib/kubelet/device-plugins/*.sock # of a node that lost its power: nobody listens there
start "$name-kubelet" kubelet --config="$d/kubelet.yaml" \
    --kubeconfig="$pki/$name.kubeconfig" --hostname-override="$name" --node-ip="$ip"
start "$name-proxy" kube-proxy --config="$d/proxy.yaml"
start "$name-netpol" netpol -kubeconfig "$pki/admin.kubeconfig" -node "$name"

if [ "$n" = 0 ]; then
  # A process behind the Service that pods' resolv.conf names: it needs no image.
  cat >"$d/Corefile" <<C
.:53 {
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig $pki/admin.kubeconfig
    ttl 1
  }
  cache 1
  loadbalance
}
C
  start coredns coredns -conf "$d/Corefile"
  kc apply -f - <<Y
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: $dns_ip
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: ["$api_ip"], conditions: {ready: true}}]
Y
  await 120 curl -sf http://127.0.0.1:8181/ready
fi
await 120 kc wait --for=condition=Ready "node/$name" --timeout=1s
if [ "$KUBEML_TC_GPUS" -gt 0 ] && [ $spare = 0 ]; then
  # Ready may still be said of the node that was; a plugin that comes too early ends.
  await 120 [ -S /var/lib/kubelet/device-plugins/kubelet.sock ]
  nvml=${BUILD:-build/release}/testlib/fake-nvml.so
  [ "${nvml#/}" != "$nvml" ] || nvml=$(cd "$here/../.." && pwd)/$nvml
  start "$name-fake-gpu" fake-gpu -gpus "$KUBEML_TC_GPUS" -replicas "$KUBEML_TC_GPU_REPLICAS" -library "$nvml"
  gpus() {
    [ "$(kc get node "$name" -o 'jsonpath={.status.allocatable.nvidia\.com/gpu}')" = $((KUBEML_TC_GPUS * KUBEML_TC_GPU_REPLICAS)) ]
  }
  await 90 gpus
fi
