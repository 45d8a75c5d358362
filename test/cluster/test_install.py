"""From helm install to helm uninstall, with the images of manifests/images and the stand-in for MongoDB."""
import pathlib
import re

import cluster
import release
from cluster import apply, case, get, harness, kubectl, namespace, until
from test_trainjob import resource, trainjob


def is_hardened(pod):
    """As the API server has it: row by row what docs/guides/kubernetes-operations.md says of all pods."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    context = spec["securityContext"]
    assert context["runAsNonRoot"] and context["seccompProfile"]["type"] == "RuntimeDefault", (name, context)
    assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
    assert not any("hostPath" in volume for volume in spec.get("volumes", [])), (name, spec["volumes"])
    has_token = pod["metadata"]["labels"].get("app.kubernetes.io/component") == "controller"
    assert spec.get("automountServiceAccountToken", True) is has_token, name
    for container in spec["containers"] + spec.get("initContainers", []):
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] and own["allowPrivilegeEscalation"] is False, (name, own)
        assert own["capabilities"] == {"drop": ["ALL"]}, (name, own)
        assert {"cpu", "memory"} <= set(container["resources"]["limits"]), (name, container["resources"])
        mounted = any(m["mountPath"].startswith("/var/run/secrets/kubernetes.io") for m in container.get("volumeMounts", []))
        assert mounted is has_token, (name, container)


def is_confined(pid):
    """As the kernel has it, of one process in a pod."""
    root = pathlib.Path(f"/proc/{pid}")
    lines = dict(re.findall(r"^(\w+):\s*(.*)$", (root / "status").read_text(), flags=re.M))
    assert lines["NoNewPrivs"] == "1" and lines["Seccomp"] == "2", lines
    assert "0" not in lines["Uid"].split() + lines["Gid"].split(), lines
    assert all(int(lines[kind], 16) == 0 for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")), lines
    mounts = [line.split() for line in (root / "mountinfo").read_text().splitlines()]
    assert ["ro" in m[5].split(",") for m in mounts if m[4] == "/"] == [True], mounts


def are_hardened(ns):
    """All pods of a release that runs: its controllers, its builder and its pool."""
    pods = [pod for pod in cluster.listed("pods", ns) if release.ready(pod)]
    for pod in pods:
        is_hardened(pod)
    if not cluster.OURS:
        return
    running, seen = release.processes(), set()
    for pod in pods:
        for name, pids in running[pod["metadata"]["uid"]].items():
            seen.add(name)
            for pid in pids if name != "pause" else []:  # it holds the pod's namespaces
                is_confined(pid)
    assert seen == {"pause", "controller", "kubeml-builder", "ps", "redis", "function"}, seen


@case(limit=300, platform=False)
def install_warms_the_pool_and_uninstall_leaves_nothing():
    with namespace() as ns:
        # Its MongoDB has users, and TLS by a certificate that the pods are told of.
        behind_tls = release.mongodb_behind_tls(ns)
        before = release.made_in(ns)
        # One that the chart brought is told to go too.
        with release.installed(ns, **(behind_tls or {"mongodb.bundled.keep": "false"})) as p:
            p.warm(4, 1)
            assert p.get("/health") == {"status": "ok"}
            # The pods say that they are ready, and the controller hears it.
            until(lambda: p.metric('kubeml_pool_warm{role="function"}') == 4, 20)
            are_hardened(ns)
            p.dataset()
            p.function()
            job = p.train()
            p.succeed(job)
            assert not behind_tls or "its pods have users of their own in the store" in p.log_text(), p.log_text()
            assert kubectl("get", "trainjobs", "-n", ns, "-o", "name").stdout.strip(), "no TrainJob of the job"
        until(lambda: not get("pods,persistentvolumeclaims", "-n", ns)["items"], 60, message="pods or claims are left")
        # TrainJobs stay: they are the user's own, as models and histories are.
        left = release.made_in(ns)
        assert left == before, f"left behind: {set(left) - set(before)}"


EMPTY = {"pool.functions": 0, "pool.ps": 0}


def by_a_secret(ns):
    """Settings of a release in that namespace whose MongoDB's URI is in a Secret of the user's own."""
    uri = release.mongodb(ns)
    if not uri:
        return {}
    apply([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own-store"}, "stringData": {"uri": uri}}], ns)
    return {"mongodb.uri": "", "mongodb.existingSecret": "own-store"}


@case(limit=300, platform=False)
def an_empty_pool_starts_what_is_needed():
    with namespace() as ns, release.installed(ns, **EMPTY, **by_a_secret(ns)) as p:
        assert p.pods() == []
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        p.succeed(p.train(epochs=1), 90)
        until(lambda: not p.pods(), 60, message="with a floor of 0 nothing stays")
        two_share_the_namespace(p)


def said_of(p, kind, name, type_):
    """(labels, [status, reason] of that condition)"""
    one = next(o for o in cluster.listed(kind, p.ns) if o["metadata"]["name"] == name)
    return one["metadata"].get("labels", {}), next(([c["status"], c["reason"]] for c in one.get("status", {}).get("conditions", [])
                                            if c["type"] == type_), None)


def two_share_the_namespace(p):
    """A second platform leaves alone what is the first one's, and takes what bears its name."""
    job = p.train(epochs=50000)
    until(lambda: p.task(job)["epoch"] >= 1, 90)
    first = {t["metadata"]["name"] for t in cluster.listed("trainjobs", p.ns)}
    assert len(first) == 2, first  # one has ended
    apply([resource("Dataset", "tiny")], p.ns)
    until(lambda: said_of(p, "datasets", "tiny", "Ready")[1] == ["True", "Uploaded"], 30)
    second = release.Release(p.ns, "second", **EMPTY, **{"mongodb.uri": release.mongodb(f"{p.ns}-second")})
    try:
        second.install(wait=False)
        mine = {"labels": {"kubeml.dev/install": "second"}}
        for one in (trainjob("theirs"), resource("Dataset", "theirs")):
            one["metadata"] |= mine
            apply([one], p.ns)
        # It has neither function nor data set, which the first one has.
        until(lambda: said_of(p, "trainjobs", "theirs", "Accepted")[1] == ["False", "NotFound"], 90,
              message="the second platform does not take what is its own")
        until(lambda: said_of(p, "datasets", "theirs", "Ready")[1] == ["False", "NotFound"], 30)
        labels, ready = said_of(p, "datasets", "tiny", "Ready")
        assert labels["kubeml.dev/install"] == "kubeml" and ready == ["True", "Uploaded"], (labels, ready)
        assert {t["metadata"]["name"] for t in cluster.listed("trainjobs", p.ns)} == first | {"theirs"}
        before = p.task(job)["epoch"]
        until(lambda: p.task(job)["epoch"] > before, 30, message="the first platform's job does not go on")
    finally:
        second.uninstall()
    p.delete(f"/tasks/{job}")
    kubectl("delete", "trainjobs,datasets", "--all", "-n", p.ns, "--wait=false")


harness.main(globals())
