"""What the cluster's cases share: kubectl, helm, a namespace of one's own, an image of small tools.

The cluster is the one that up.sh started (KUBEML_TC_STATE), or that of KUBECONFIG where run.sh was given one.
Cases are written as the end-to-end tests are (test/e2e/harness.py), with platform=False.
"""
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pathlib
import secrets
import subprocess
import sys

import requests

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "test/e2e"))
import harness  # noqa: E402
from harness import case, skip, until  # noqa: E402, F401

# A look goes through kubectl, the API server, kubelet and containerd, which all have other things to do.
harness.EVERY, harness.EVERY_AT_LAST = 0.1, 0.4
CHART = ROOT / "charts/kubeml"
OURS = not os.environ.get("KUBECONFIG")
INSIDE = [str(HERE / "in.sh")] if OURS else []  # before a command, where the cluster's network is not this one
STATE = pathlib.Path(os.environ.get("KUBEML_TC_STATE", "/var/tmp/kubeml-cluster"))
TOOLS = "localhost/kubeml-test-tools:1"
FOLDER = os.environ.get("TEST_TMP", "/tmp")


def run(*command, check=True, stdin=None, seconds=120):
    """Runs where the cluster's network is. Gives the CompletedProcess, with texts."""
    done = subprocess.run(INSIDE + [str(c) for c in command], capture_output=True, text=True, input=stdin,
                          timeout=seconds)
    assert not check or done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}"
    return done


def kubectl(*arguments, **options):
    return run("kubectl", *arguments, **options)


def helm(*arguments, **options):
    return run("helm", *arguments, **options)


def get(*arguments):
    return json.loads(kubectl("get", *arguments, "-o", "json").stdout)


def apply(documents, namespace, *options, check=True):
    text = documents if isinstance(documents, str) else json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    return kubectl("apply", "-n", namespace, *options, "-f", "-", stdin=text, check=check)


def kubeconfig():
    return os.environ.get("KUBECONFIG") or str(STATE / "pki/admin.kubeconfig")


@contextlib.contextmanager
def one_at_a_time(what):
    """What two cases beside each other must not do both: of our own cluster, whose folder it is noted in."""
    with open(STATE / f"{what}.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


PATHS = {"pods": "api/v1", "events": "api/v1", "secrets": "api/v1", "namespaces": "api/v1", "leases": "apis/coordination.k8s.io/v1",
         "services": "api/v1", "networkpolicies": "apis/networking.k8s.io/v1",
         **dict.fromkeys(("trainjobs", "functions", "datasets"), "apis/kubeml.dev/v1alpha1")}


api = requests.Session()


def listed(kind, ns=None, selector=None):
    """Objects, of a namespace; of our own cluster asked directly, because cases look often."""
    if not os.environ.get("KUBEML_TC_INSIDE"):
        return get(kind, "--show-managed-fields", *(["-n", ns] if ns else []), *(["-l", selector] if selector else []))["items"]
    pki, within = STATE / "pki", f"namespaces/{ns}/" if ns else ""
    reply = api.get(f"https://10.123.0.1:6443/{PATHS[kind]}/{within}{kind}",
                         params={"labelSelector": selector} if selector else {}, verify=str(pki / "ca.crt"),
                         cert=(str(pki / "admin.crt"), str(pki / "admin.key")), timeout=20)
    assert reply.status_code == 200, reply.text
    return reply.json()["items"]


def make_namespace(name, level="restricted"):
    """One that enforces a Pod Security level; left alone where it is there."""
    apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": name, "labels": {"pod-security.kubernetes.io/enforce": level}}}], "default")
    until(lambda: kubectl("get", "serviceaccount", "default", "-n", name, check=False).returncode == 0, 30)


@contextlib.contextmanager
def namespace(level="restricted"):
    """A namespace of this case alone; it goes with all that is in it."""
    name = "case-" + secrets.token_hex(4)
    make_namespace(name, level)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false", check=False)


def tools_image(folder):
    """bash, redis and some more from this machine, for pods that listen and dial. Built and loaded once a cluster."""
    if not OURS:
        skip("an image of this machine's programs can be loaded into our own cluster alone")
    mark = STATE / "tools-loaded"
    if mark.exists():
        return TOOLS
    root, tar = pathlib.Path(folder) / "tools", pathlib.Path(folder) / "tools.tar"
    with one_at_a_time("images"):
        if not mark.exists():
            for command in ([HERE / "mkroot.sh", root, "/bin/bash", "cat", "sleep", "timeout", "redis-server", "redis-cli", "getent"],
                            [HERE / "mkimage.py", TOOLS, root, tar], [HERE / "load.sh", tar]):
                subprocess.run([str(c) for c in command], check=True, capture_output=True)
            mark.touch()
    return TOOLS


def pod(name, command, labels=None, image=TOOLS):
    """A pod that Pod Security "restricted" lets in."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": {
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "main", "image": image, "command": command, "imagePullPolicy": "IfNotPresent",
            "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]}},
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"}}}]}}


def at_once(function, each):
    """What it gives for each of those arguments, asked beside each other: for who is not let through it waits in vain."""
    with concurrent.futures.ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(lambda arguments: function(*arguments), each))


def wait_ready(name, ns, seconds=60):
    until(lambda: kubectl("wait", "--for=condition=Ready", name, "-n", ns, "--timeout=5s", check=False).returncode == 0,
          seconds, message=f"{name} is not ready")
