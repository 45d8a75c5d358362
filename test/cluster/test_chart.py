"""The chart: that it is well formed, that the API server takes every object of it under every value, that its pods
pass Pod Security "restricted", and that its Role holds the verbs that are used."""
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess

import yaml

import cluster
from cluster import CHART, apply, case, harness, helm, kubectl, namespace

# Another value for each of values.yaml, so that each is rendered once otherwise than by default.
OTHERWISE = {
    "nameOverride": "other", "image.prefix": "registry.example/team/", "image.tag": "9.9", "image.pullPolicy": "Always",
    "image.pullSecrets": ["registry"], "controller.replicas": 1, "controller.image": "own-controller",
    "builder.replicas": 0, "builder.image": "own-builder", "builder.scratchSize": "1Gi",
    "controller.slots": 0, "controller.homeSize": "1Gi", "controller.extraArgs": ["--function-memory=1000000000"],
    "secrets.make": False, "token.existingSecret": "mine", "users.existingSecret": "users", "service.type": "NodePort", "service.port": 80,
    "service.annotations": {"example.com/x": "y"}, "pool.functions": 1, "pool.ps": 2,
    "function.image": "own-function", "function.scratchSize": "3Gi", "function.runtimeClassName": "nvidia",
    "function.env": [{"name": "A", "value": "b"}], "ps.image": "own-ps", "ps.scratchSize": "1Gi",
    "gpu.enabled": True, "gpu.resource": "nvidia.com/gpu.shared", "gpu.count": 2, "gpu.countNodes": True,
    "gpu.policy": "spread",
    "gpu.rankPorts.first": 40000, "gpu.rankPorts.last": 60999,
    "gpu.sharing.configMap": True, "gpu.sharing.strategy": "mps", "gpu.sharing.replicas": 8, "gpu.sharing.rename": True,
    "mongodb.uri": "mongodb://u:p@db.example/kubeml", "mongodb.existingSecret": "store",
    "mongodb.egress": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "mongodb.port": 27018,
    "mongodb.tls.caConfigMap": "mongodb-ca",
    "mongodb.bundled.image": "registry.example/mongo:8", "mongodb.bundled.size": "1Gi",
    "mongodb.bundled.storageClass": "fast", "mongodb.bundled.keep": False, "mongodb.bundled.cacheGB": 1.5,
    "security.userID": 1000, "security.mongoUserID": 1001, "rbac.create": False, "serviceAccount.name": "mine",
    "serviceAccount.annotations": {"example.com/x": "y"}, "networkPolicy.enabled": False,
    "networkPolicy.serviceProxy": False, "rbac.userRole": True,
    "networkPolicy.ingress": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
    "networkPolicy.dns": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
    "networkPolicy.apiServer": [{"ipBlock": {"cidr": "10.96.0.1/32"}}], "networkPolicy.apiServerPorts": [8443],
    "resourceQuota": {"pods": "40"}, "uninstall.endJobs": False, "podDisruptionBudget.enabled": False, "serviceMonitor.enabled": True, "serviceMonitor.interval": "1m",
    "serviceMonitor.labels": {"release": "prometheus"}, "grafana.dashboard": True, "grafana.labels": {"x": "y"},
}
PLACES = {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
          "affinity": {"nodeAffinity": {}}, "requests": {"cpu": "50m"}, "limits": {"memory": "3Gi"},
          "podAnnotations": {"karpenter.sh/do-not-disrupt": "true"}, "podLabels": {"sidecar.istio.io/inject": "false"},
          "priorityClassName": "training"}
# Values that show only beside another one.
BESIDE = {"gpu.resource": "gpu.enabled", "gpu.count": "gpu.enabled", "gpu.policy": "gpu.enabled",
          "gpu.rankPorts.first": "gpu.enabled", "gpu.rankPorts.last": "gpu.enabled", "mongodb.egress": "mongodb.uri",
          "mongodb.port": "mongodb.uri", "serviceMonitor.interval": "serviceMonitor.enabled",
          "serviceMonitor.labels": "serviceMonitor.enabled", "grafana.labels": "grafana.dashboard",
          **{f"gpu.sharing.{k}": "gpu.sharing.configMap" for k in ("strategy", "replicas", "rename")}}


def leaves(values, path=""):
    for key, value in values.items():
        here = f"{path}.{key}".lstrip(".")
        if isinstance(value, dict) and value and key not in ("requests", "limits", "labels"):
            yield from leaves(value, here)
        else:
            yield here, key


def put(values, path, value):
    *folders, last = path.split(".")
    for folder in folders:
        values = values.setdefault(folder, {})
    values[last] = value


def render(values, folder=cluster.FOLDER):
    path = f"{folder}/values.json"
    with open(path, "w") as file:
        json.dump(values, file)
    text = helm("template", "rel", CHART, "-n", "default", "--kube-version", "1.34.0", "-f", path).stdout
    return [d for d in yaml.load_all(text, yaml.CSafeLoader) if d]


def stable(documents):
    """Without what is made by chance in each rendering."""
    documents = copy.deepcopy(documents)
    for d in documents:
        if d["kind"] == "Secret":
            d["data"] = sorted(d["data"])
        d.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {}).pop("checksum/config", None)
    return documents


def pods(documents):
    """Everything of the chart that becomes a pod: (name, spec)."""
    for d in documents:
        if d["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield d["metadata"]["name"], d["spec"]["template"]
        if d["kind"] == "ConfigMap" and "pods.json" in d["data"]:
            for role in ("function", "ps"):
                yield role, json.loads(d["data"]["pods.json"])[role]


@case(platform=False)
def lint_finds_nothing():
    said = helm("lint", CHART, "--strict").stdout
    assert "0 chart(s) failed" in said and "[ERROR]" not in said and "[WARNING]" not in said, said


@case(limit=300, platform=False)
def every_value_is_rendered_and_taken():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    without = {None: stable(render({}))}
    for beside in sorted(set(BESIDE.values())):
        alone = {}
        put(alone, beside, OTHERWISE[beside])
        without[beside] = stable(render(alone))
    distinct = {}
    for path, key in leaves(values):
        assert key in PLACES or path in OTHERWISE, f"{path} is in values.yaml but not in this test"
        changed = {}
        for name in (path, BESIDE.get(path)):
            if name:
                put(changed, name, OTHERWISE.get(name, PLACES.get(key)))
        documents = stable(render(changed))
        assert documents != without[BESIDE.get(path)], f"{path} changes nothing"
        for d in documents:
            # Not in every cluster: the operator's kind. A Secret's data are names here.
            if d["kind"] not in ("ServiceMonitor", "Secret"):
                distinct[json.dumps(d, sort_keys=True)] = d
    with namespace() as ns:
        for d in distinct.values():
            if "namespace" in d["metadata"]:
                d["metadata"]["namespace"] = ns
        apply(list(distinct.values()), ns, "--dry-run=server")


@case(platform=False)
def every_value_is_explained():
    """Beside it in values.yaml, or, where every part has one, at its head."""
    text = (CHART / "values.yaml").read_text()
    head, rest = text.split("\n\n", 1)
    everywhere = set(re.findall(r"`(\w+)`", head))
    places = {}
    folders = []
    for line in rest.splitlines():
        if found := re.match(r"( *)(\w+):", line):
            folders[len(found[1]) // 2:] = [found[2]]
            places[".".join(folders)] = line
    values = yaml.safe_load(text)
    unexplained = [path for path, key in leaves(values) if key not in everywhere and
                   "#" not in places.get(path, places.get(path.rpartition(".")[0], ""))]
    assert len(places) > 80 and not unexplained, unexplained


def levels(values, path=""):
    """Where the schema names every key: "", "/controller", ... Others are Kubernetes's or the user's own."""
    yield path
    for key, value in values.items():
        if isinstance(value, dict) and key not in (*PLACES, "annotations", "labels", "resourceQuota"):
            yield from levels(value, f"{path}/{key}")


@case(platform=False)
def an_unknown_key_is_refused_at_every_level():
    places, values = list(levels(yaml.safe_load((CHART / "values.yaml").read_text()))), {}
    for place in places:
        put(values, f"{place}/nonsense"[1:].replace("/", "."), 1)
    path = pathlib.Path(cluster.FOLDER) / "values.json"
    path.write_text(json.dumps(values))
    done = helm("template", "rel", CHART, "--kube-version", "1.34.0", "-f", path, check=False)
    refused = re.findall("at '(.*)': additional properties 'nonsense' not allowed", done.stderr)
    assert done.returncode != 0 and len(places) > 30 and sorted(refused) == sorted(places), set(places) ^ set(refused)


@case(platform=False)
def bad_values_are_refused():
    for bad in ("pool.functoins=1", "pool.functions=-1", "service.type=Magic", "gpu.sharing.strategy=both",
                "mongodb.uri=http://x", "controller.replicas=0", "controller.homeSize=much", "nameOverride=Upper",
                "gpu.resource=", "gpu.policy=worst-fit", "gpu.rankPorts.first=60000,gpu.rankPorts.last=50000", "function.nodeSelector.zone=3",
                "function.env[0].nam=x", "ps.podLabels.kubeml\\.dev/role=function", "controller.podAnnotations.x=1", "function.resources.limits.memory=lots", "serviceMonitor.interval=0s"):
        done = helm("template", "rel", CHART, "--kube-version", "1.34.0", "--set", bad, check=False)
        key = re.split(r"[=\[]", bad)[0].split(".")[-1]
        assert done.returncode != 0 and key in done.stderr, (bad, done.stderr)


def selects(selector, labels):
    return selector.items() <= labels.items()


def is_scraped(documents):
    """The ServiceMonitor chooses one Service of the chart, whose port leads to the controllers; the token is theirs."""
    monitor, = [d for d in documents if d["kind"] == "ServiceMonitor"]
    service, = [d for d in documents if d["kind"] == "Service" and
                selects(monitor["spec"]["selector"]["matchLabels"], d["metadata"]["labels"])]
    endpoint, = monitor["spec"]["endpoints"]
    port, = [p for p in service["spec"]["ports"] if p["name"] == endpoint["port"]]
    pod, = [d["spec"]["template"] for d in documents if d["kind"] in ("Deployment", "StatefulSet") and
            selects(service["spec"]["selector"], d["spec"]["template"]["metadata"]["labels"])]
    container, = pod["spec"]["containers"]
    assert [p["containerPort"] for p in container["ports"] if p["name"] == port["targetPort"]] == [10100], container["ports"]
    credentials = endpoint["authorization"]["credentials"]
    secret, = [d for d in documents if d["kind"] == "Secret" and d["metadata"]["name"] == credentials["name"]]
    assert credentials["key"] in secret["data"] and any(
        v.get("secret", {}).get("secretName") == credentials["name"] for v in pod["spec"]["volumes"]), credentials


@case(limit=180, platform=False)
def prometheus_and_grafana_take_what_is_for_them():
    """The ServiceMonitor by the operator's own definition; the dashboard by the metrics that there are."""
    documents = render({"serviceMonitor": {"enabled": True, "labels": {"release": "x"}}, "grafana": {"dashboard": True}})
    board, = [d["data"]["kubeml.json"] for d in documents if d["metadata"]["name"] == "rel-dashboard"]
    shown = {n.removesuffix("_bucket") for n in re.findall(r"kubeml_[a-z_]+", json.dumps(json.loads(board)["panels"]))}
    there = set(re.findall(r'"(kubeml_[a-z_]+)"', (cluster.ROOT / "controller/metrics_controller.c").read_text()))
    assert shown and shown <= there, shown - there
    is_scraped(documents)
    if not shutil.which("go"):
        cluster.skip("no go, which the operator's definitions come by")
    done = subprocess.run(["go", "mod", "download", "-json", os.environ["KUBEML_TC_PROMETHEUS"]], capture_output=True, text=True, cwd="/")
    if done.returncode:
        why = json.loads(done.stdout or "{}").get("Error", done.stderr[-200:]).replace("\n", " ")
        cluster.skip("the operator's definitions cannot be downloaded: " + why)
    crds = f"{json.loads(done.stdout)['Dir']}/example/prometheus-operator-crd"
    crd = "crd/servicemonitors.monitoring.coreos.com"
    somebodys = kubectl("get", crd, check=False).returncode == 0  # with all that is of that kind
    if not somebodys:
        kubectl("apply", "--server-side", "-f", f"{crds}/monitoring.coreos.com_servicemonitors.yaml")
    try:
        kubectl("wait", "--for=condition=Established", crd, "--timeout=30s")
        monitor, = [d for d in documents if d["kind"] == "ServiceMonitor"]
        with namespace() as ns:
            apply([monitor], ns, "--dry-run=server")
            monitor["spec"]["endpoints"][0]["intervall"] = "1s"  # the control
            assert apply([monitor], ns, "--dry-run=server", check=False).returncode != 0
    finally:
        if not somebodys:
            kubectl("delete", crd, check=False)


@case(limit=120, platform=False)
def pods_are_restricted():
    documents = render({"gpu": {"enabled": True}})
    found = dict(pods(documents))
    assert set(found) == {"rel-controller", "rel-builder", "rel-mongodb", "rel-uninstall", "function", "ps"}, set(found)
    with namespace("restricted") as ns:
        for name, template in found.items():
            spec = template["spec"]
            spec.pop("serviceAccountName", None)
            if name == "rel-mongodb":  # the claim's, which a StatefulSet adds
                spec["volumes"].append({"name": "data", "emptyDir": {}})
            one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            apply([one], ns, "--dry-run=server")
            # Redis is an init container that stays.
            containers = spec["containers"] + spec.get("initContainers", [])
            assert len(containers) == (2 if name == "ps" else 1), name
            for container in containers:
                assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
                assert {"cpu", "memory"} <= set(container["resources"]["limits"]), name
            for volume in spec.get("volumes", []):
                assert "emptyDir" not in volume or name == "rel-mongodb" or volume["emptyDir"]["sizeLimit"], (name, volume)
            if name not in ("rel-controller", "rel-uninstall"):
                assert spec["automountServiceAccountToken"] is False, name
            # The control: the same pod is refused when it asks for more.
            spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
            assert apply([one], ns, "--dry-run=server", check=False).returncode != 0, name


@case(platform=False)
def a_function_asks_for_what_a_gpu_operator_counts():
    """A share by NVIDIA's device plugin, a part of a GPU by MIG, by HAMi with its limits: as docs/guides/gpus.md says."""
    page = (cluster.ROOT / "docs/guides/gpus.md").read_text()
    hami = json.loads(re.search(r"--set-json 'function.resources.limits=(.*)'", page)[1])
    for resource, limits in (("nvidia.com/gpu.shared", {}), ("nvidia.com/mig-1g.10gb", {}), ("nvidia.com/gpu", hami), ("volcano.sh/vgpu-number", {})):
        settings = {"gpu": {"enabled": True, "resource": resource}}
        if limits:
            settings["function"] = {"resources": {"limits": limits}}
        documents = render(settings)
        assert [json.loads(d["data"]["pods.json"])["gpu_resource"] for d in documents if "pods.json" in d.get("data", {})] == [resource]
        with namespace() as ns:
            spec = dict(pods(documents))["function"]["spec"]
            got = spec["containers"][0]["resources"]["limits"]
            assert got[resource] == "1" and limits.items() <= got.items() and {"cpu", "memory"} <= set(got), got
            spec.pop("serviceAccountName", None)
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "function"}, "spec": spec}
            apply([pod], ns, "--dry-run=server")
            spec["containers"][0]["resources"]["limits"][resource] = "half"  # the control
            assert apply([pod], ns, "--dry-run=server", check=False).returncode != 0


@case(platform=False)
def a_function_gets_one_gpu_where_shares_are_placed_or_mpss():
    for gpu, refused in (({}, False), ({"policy": "pack"}, True), ({"sharing": {"strategy": "mps"}}, True)):
        for count in (1, 2):
            pathlib.Path(f"{cluster.FOLDER}/values.json").write_text(json.dumps({"gpu": {"enabled": True, "count": count, **gpu}}))
            done = helm("template", "rel", CHART, "--kube-version", "1.34.0", "-f", f"{cluster.FOLDER}/values.json", check=False)
            assert (done.returncode != 0) is (refused and count > 1), (gpu, count, done.stderr)
            assert ("gpu.count is 2" in done.stderr) is (done.returncode != 0), done.stderr


@case(platform=False)
def functions_say_which_gpu_they_have_where_a_policy_places_them():
    for settings, told in (({}, False), ({"enabled": True}, False), ({"policy": "pack"}, False),
                           ({"enabled": True, "policy": "pack"}, True)):
        found = dict(pods(render({"gpu": settings})))
        env = {e["name"] for e in found["function"]["spec"]["containers"][0]["env"]}
        args = found["rel-controller"]["spec"]["containers"][0]["args"]
        assert ("KUBEML_TELL_GPU" in env) is told and ("--gpu-policy=pack" in args) is told, (settings, env, args)


@case(platform=False)
def under_mps_shared_memory_is_the_device_plugins():
    """It mounts its daemon's at /dev/shm; one of ours would lie on top."""
    for enabled, strategy, ours in ((True, "mps", False), (True, "timeSlicing", True), (False, "mps", True)):
        spec = dict(pods(render({"gpu": {"enabled": enabled, "sharing": {"strategy": strategy}}})))["function"]["spec"]
        mounts = {m["mountPath"]: m["name"] for m in spec["containers"][0]["volumeMounts"]}
        volumes = {v["name"] for v in spec["volumes"]}
        assert ("/dev/shm" in mounts) is ours and set(mounts.values()) == volumes, (strategy, mounts, volumes)


@case(platform=False)
def who_narrows_ingress_in_vain_is_told():
    """serviceProxy is a rule without `from` until apiServer says where that is."""
    somebody = {"ingress": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}
    for settings, said in (({}, False), (somebody, True), ({**somebody, "serviceProxy": False}, False),
                           ({**somebody, "enabled": False}, False),
                           ({**somebody, "apiServer": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]}, False)):
        policies = [d for d in render({"networkPolicy": settings}) if d["metadata"]["name"] == "rel-controller" and
                    d["kind"] == "NetworkPolicy"]
        open_to_all = any("from" not in rule for d in policies for rule in d["spec"]["ingress"])
        notes = helm("install", "rel", CHART, "--dry-run=client", "-f", f"{cluster.FOLDER}/values.json").stdout.split("NOTES:")[1]
        assert ("networkPolicy.ingress narrows nothing" in notes) is said, (settings, notes)
        assert open_to_all is (said or not settings), (settings, policies)


@case(platform=False)
def who_opens_the_service_is_told_that_it_is_not_encrypted():
    for kind, said in (("ClusterIP", False), ("NodePort", True), ("LoadBalancer", True)):
        notes = helm("install", "rel", CHART, "--dry-run=client", "--set", f"service.type={kind}").stdout.split("NOTES:")[1]
        assert ("travel in clear" in notes) is said, (kind, notes)


@case(limit=120, platform=False)
def the_role_allows_its_verbs_alone():
    for settings, wanted in (({}, []), ({"gpu": {"countNodes": True}}, [  # a Role alone by default
            [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}], None])):  # None: the binding
        assert [d.get("rules") for d in render(settings) if d["kind"].startswith("ClusterRole")] == wanted, settings
    with namespace() as ns:
        kubectl("apply", "-f", CHART / "crds")
        apply([d for d in render({}) if d["kind"] in ("Role", "ServiceAccount")], ns)
        kubectl("create", "rolebinding", "rel", "--role=rel", f"--serviceaccount={ns}:rel", "-n", ns)

        def may(verb, what, where=ns):  # RESOURCE, RESOURCE/SUBRESOURCE or RESOURCE/NAME
            kind, _, part = what.partition("/")
            chosen = [kind, f"--subresource={part}"] if part in ("log", "exec", "status") else [what]
            return kubectl("auth", "can-i", verb, *chosen, "-n", where, f"--as=system:serviceaccount:{ns}:rel",
                           check=False).stdout.strip() == "yes"
        cluster.until(lambda: may("create", "pods"), 20)
        for verb, what in (("get", "pods/log"), ("patch", "pods"), ("create", "networkpolicies.networking.k8s.io"),
                           ("create", "services"), ("create", "secrets"), ("patch", "functions.kubeml.dev"), ("patch", "functions.kubeml.dev/status"),
                           ("update", "leases.coordination.k8s.io/rel-controller"),
                           ("watch", "trainjobs.kubeml.dev"), ("patch", "trainjobs.kubeml.dev/status")):
            assert may(verb, what), (verb, what)
        for verb, what in (("create", "pods/exec"), ("get", "secrets"), ("list", "secrets"), ("update", "pods"),
                           ("deletecollection", "pods"), ("delete", "networkpolicies.networking.k8s.io"), ("delete", "services"), ("delete", "secrets"), ("update", "secrets"), ("watch", "secrets"),
                           ("create", "leases.coordination.k8s.io"), ("update", "leases.coordination.k8s.io"), ("list", "leases.coordination.k8s.io"),
                           ("update", "trainjobs.kubeml.dev"),
                           ("update", "trainjobs.kubeml.dev/status"), ("update", "functions.kubeml.dev"), ("delete", "datasets.kubeml.dev"), ("list", "nodes"), ("create", "roles.rbac.authorization.k8s.io"), ("list", "configmaps")):
            assert not may(verb, what), (verb, what)
        assert not may("list", "pods", "kube-system")


@case(limit=180, platform=False)
def secrets_and_data_outlive_upgrades_and_uninstalls():
    """Objects alone: nothing has to run for it (nor can: there is no such image)."""
    def there(kind, name):
        return kubectl("get", kind, name, "-n", ns, check=False).returncode == 0

    def secrets():
        return {name: cluster.get("secret", name, "-n", ns)["data"]
                for name in ("kubeml-pool", "kubeml-builder", "kubeml-token", "kubeml-store")}
    claim = "data-kubeml-mongodb-0"
    with namespace("restricted") as ns:
        helm("install", "kubeml", CHART, "-n", ns, "--set", "image.tag=none,uninstall.endJobs=false")
        cluster.until(lambda: there("pvc", claim), 30)
        before = secrets()
        assert all(before.values())
        helm("upgrade", "kubeml", CHART, "-n", ns, "--reuse-values", "--set", "controller.replicas=3")
        assert secrets() == before
        assert cluster.get("deployment", "kubeml-controller", "-n", ns)["spec"]["replicas"] == 3
        # With a database elsewhere for a while, the claim's password stays beside its URI.
        helm("upgrade", "kubeml", CHART, "-n", ns, "--reuse-values", "--set", "mongodb.uri=mongodb://u:p@db.example/kubeml")
        assert not there("statefulset", "kubeml-mongodb") and there("pvc", claim)
        elsewhere = cluster.get("secret", "kubeml-store", "-n", ns)
        assert elsewhere["data"]["password"] == before["kubeml-store"]["password"], "nothing opens the claim any more"
        assert elsewhere["data"]["uri"] != before["kubeml-store"]["uri"]
        assert elsewhere["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", elsewhere["metadata"]
        helm("upgrade", "kubeml", CHART, "-n", ns, "--reuse-values", "--set", "mongodb.uri=")
        assert secrets() == before
        helm("uninstall", "kubeml", "-n", ns, "--wait")
        assert there("pvc", claim) and there("secret", "kubeml-store")
        assert not there("secret", "kubeml-token") and not there("lease", "kubeml-controller")
        # Back under the same name, it opens what it left.
        helm("install", "kubeml", CHART, "-n", ns, "--set", "image.tag=none,uninstall.endJobs=false,mongodb.bundled.keep=false")
        assert secrets()["kubeml-store"] == before["kubeml-store"]
        cluster.until(lambda: cluster.get("pvc", claim, "-n", ns)["metadata"].get("ownerReferences"), 60)
        helm("uninstall", "kubeml", "-n", ns, "--wait")
        cluster.until(lambda: not there("pvc", claim) and not there("secret", "kubeml-store"), 60)


# test_pages installs by it, into the same namespace.
@case(limit=60, takes="pages", platform=False)
def the_manifest_is_the_chart():
    """manifests/kubeml.yaml is what `make manifests` gives, and the API server takes it. Nothing that holds data is in it:
    it would go with `kubectl delete -f`."""
    made = cluster.run(cluster.ROOT / "manifests/render.sh").stdout
    assert made == (cluster.ROOT / "manifests/kubeml.yaml").read_text(), "run make manifests"
    kinds = {d["kind"] for d in yaml.safe_load_all(made)}
    assert not kinds & {"Namespace", "Secret", "PersistentVolumeClaim", "CustomResourceDefinition"}, kinds
    done = kubectl("create", "namespace", "kubeml", check=False)
    try:
        kubectl("apply", "--dry-run=server", "-f", cluster.ROOT / "manifests/kubeml.yaml")
    finally:
        if done.returncode == 0:
            kubectl("delete", "namespace", "kubeml", "--timeout=60s")


harness.main(globals())
