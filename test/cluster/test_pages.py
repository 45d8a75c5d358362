"""docs/guides/kind.md, docs/guides/microk8s.md and the manifest's head, command by command: all of Kubernetes, Helm
and kubeml in them is real, with the chart's own MongoDB, whose server is the stand-in (bundled.py). What `kind`,
`microk8s` and `make` would do to a machine is done by stand-ins that note how they were called."""
import contextlib
import json
import os
import pathlib
import re
import subprocess

import yaml

import bundled
import cluster
import release
from cluster import CHART, FOLDER, ROOT, apply, case, harness, helm, kubectl, until, wait_ready
from test_trainjob import resource

NS = "ml"  # the pages'
STAND_INS = {
    "kind": 'echo "kind $*" >>"$CALLS"',
    # The targets and their settings must be there.
    "make": 'echo "make $*" >>"$CALLS"; exec /usr/bin/make -C "$ROOT" -n "$@" >/dev/null',
    "microk8s": """echo "microk8s $*" >>"$CALLS"
case "$1" in
kubectl) exec "$@" ;;
helm3) shift; exec helm "$@" ;;
ctr) [ -s "${!#}" ] ;;
config) cat "$KUBECONFIG" ;;
enable) ;;
*) exit 2 ;;
esac""",
}


def blocks(page):
    """The page's commands, as it shows them."""
    text = (ROOT / "docs/guides" / page).read_text()
    return [re.sub("^    ", "", b, flags=re.M) for b in re.findall(r"(?:^    .*\n)+", text, flags=re.M)], text


def images(*options):
    """Of our images, those that an installation with these options runs: NAME:TAG."""
    text = helm("template", "kubeml", CHART, "--kube-version", "1.34.0", *options).stdout
    return set(re.findall(r"localhost/(kubeml-[a-z-]+:[0-9.]+)", text))


def by_hand(context, scripts, calls):
    """A user's shell in a checkout, whose kubeconfig has that context. It stops at the first command that fails."""
    folder = pathlib.Path(FOLDER)
    for name, text in STAND_INS.items():
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    checkout = folder / "checkout"
    if not checkout.exists():
        (checkout / "build/release").mkdir(parents=True)
        (checkout / "build/release/bin").symlink_to(harness.BIN)  # as make leaves it; who wants it in PATH says so
        for name in ("charts", "manifests"):
            (checkout / name).symlink_to(ROOT / name)
        (checkout / "build/images").symlink_to(os.environ["KUBEML_TC_IMAGES"])
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    config["contexts"][0]["name"] = config["current-context"] = context
    (folder / "kubeconfig").write_text(json.dumps(config))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBEML_")}
    environment.update(KUBECONFIG=str(folder / "kubeconfig"), CALLS=str(calls), ROOT=str(ROOT),
                       PATH=f"{folder}/bin:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-euxc", "\n".join(scripts)], cwd=checkout, env=environment, capture_output=True,
                          text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def place(ns=NS):
    """The namespace that a page makes, gone afterwards; and the disk that the cluster has for MongoDB."""
    if not cluster.OURS:
        cluster.skip("the pages' namespace may be somebody's own")
    release.load_images()
    with bundled.disk(ns):
        try:
            yield
        finally:
            helm("uninstall", "kubeml", "-n", ns, check=False)
            kubectl("delete", "namespace", ns, "--timeout=90s", check=False)


def nobody_else_reaches_it(p, address):
    """The control: as one of the controller's pods the same one gets through."""
    def opens():
        return kubectl("exec", "-n", p.ns, "stranger", "--", "timeout", "3", "bash", "-c", f": </dev/tcp/{address}/27017",
                       check=False).returncode == 0
    cluster.tools_image(FOLDER)
    apply([cluster.pod("stranger", ["sleep", "1000"])], p.ns)
    wait_ready("pod/stranger", p.ns)
    assert not opens(), "a stranger reaches the database"
    kubectl("label", "pod", "stranger", "-n", p.ns, "app.kubernetes.io/name=kubeml", "app.kubernetes.io/instance=kubeml",
            "app.kubernetes.io/component=controller")
    until(opens, 20, message="nobody reaches it: the case shows nothing")
    kubectl("delete", "pod", "stranger", "-n", p.ns)


def there(kind, name, ns=NS):
    return kubectl("get", kind, name, "-n", ns, check=False).returncode == 0


def holds(p, job, model):
    assert "tiny" in [d["name"] for d in p.get("/dataset")] and "lenet" in [f["name"] for f in p.get("/function")]
    assert len(p.get(f"/history/{job}")["data"]["accuracy"]) == 2 and p.get(f"/model/{job}") == model


def keeps_its_claim(p):
    """The MongoDB of the chart: through another pod, an uninstall and a second installation, and a job that is under way
    with it; then it goes when told to."""
    p.dataset()
    p.function()
    job = p.train()
    p.succeed(job, 90)
    model = p.get(f"/model/{job}")
    server, = p.part("mongodb")
    nobody_else_reaches_it(p, server["status"]["podIP"])
    kubectl("delete", "pod", server["metadata"]["name"], "-n", NS)
    until(lambda: any(o["metadata"]["uid"] != server["metadata"]["uid"] and release.ready(o) for o in p.part("mongodb")), 120,
          message="no other MongoDB")
    p.start()
    holds(p, job, model)
    open_job = p.train(p.paced(0.1), epochs=12)
    until(lambda: p.task(open_job)["epoch"] >= 1, 60)
    p.uninstall()
    until(lambda: not cluster.listed("pods", NS), 60, message="pods are left")
    assert there("pvc", bundled.CLAIM) and there("secret", "kubeml-store"), "the data went with the release"
    with release.installed(NS, **{"mongodb.uri": "", "mongodb.bundled.keep": "false"}) as p:
        holds(p, job, model)
        p.succeed(p.train(epochs=1), 90)
        p.succeed(open_job, 90)
    until(lambda: not there("pvc", bundled.CLAIM) and not there("secret", "kubeml-store"), 60,
          message="told to go, the claim stays")


@case(limit=420, takes="pages", platform=False)
def on_kind_with_the_charts_mongodb():
    name = yaml.safe_load((ROOT / "manifests/kind.yaml").read_text())["name"]
    shown, text = blocks("kind.md")
    calls = pathlib.Path(FOLDER) / "calls"
    with place():
        by_hand(f"kind-{name}", shown[:-1], calls)
        p = release.Release(NS).start()
        try:
            keeps_its_claim(p)
        finally:
            p.disconnect()
    called = calls.read_text().splitlines()
    assert called[0] == "kind create cluster --config manifests/kind.yaml" and called[1] == "make images", called
    loaded = next(c for c in called if c.startswith("kind load docker-image")).split()
    assert loaded[3:5] == ["--name", name] and {i.removeprefix("localhost/") for i in loaded[5:]} == images(), loaded
    assert shown[-1].split() == ["kind", "delete", "cluster", "--name", name], shown
    assert f"`kind load image-archive --name {name} build/images/ps.tar`" in text


@case(limit=200, takes="pages", platform=False)
def on_microk8s():
    shown, _ = blocks("microk8s.md")
    calls = pathlib.Path(FOLDER) / "calls"
    with place():
        by_hand("microk8s", [b for b in shown if "IMAGES=" not in b], calls)  # but for a GPU's image
    called = calls.read_text().splitlines()
    assert called[:2] == ["microk8s enable dns hostpath-storage helm3", "make images OUT=build/images"], called
    given = {pathlib.Path(c.split()[-1]).stem for c in called if c.startswith("microk8s ctr image import")}
    assert {f"kubeml-{g}" for g in given} == {i.split(":")[0] for i in images()}, given


@case(platform=False)
def what_functions_on_gpus_run_is_built():
    """And taken to the cluster; as the pages write it, because nothing is built here."""
    more = {image.split(":")[0].removeprefix("kubeml-") for image in images("--set", "gpu.enabled=true") - images()}
    assert more, "the default has it already"
    for page in ("gpus.md", "images.md", "microk8s.md"):
        shown = "".join(blocks(page)[0])
        assert set(re.findall(r"IMAGES=(\S+)", shown)) == more, page
    assert set(re.findall(r"import build/images/([a-z-]+)\.tar", shown)) == more, shown


@case(limit=360, takes="pages", platform=False)
def the_manifest_without_helm():
    """Its head's commands, and after those that take it away, the data is there for the next one."""
    text, ns = (ROOT / "manifests/kubeml.yaml").read_text(), "kubeml"
    made, removed = ("\n".join(re.findall("^#   (.*)$", part, flags=re.M)) for part in text.split("# To take it away"))
    last = made.splitlines()[-1]
    assert last == "kubectl apply -f charts/kubeml/crds -f manifests/kubeml.yaml", made
    assert removed.splitlines()[0] == "kubectl delete -f manifests/kubeml.yaml", removed
    ready = f"kubectl -n {ns} rollout status deployment/kubeml-controller --timeout=120s"
    calls = pathlib.Path(FOLDER) / "calls"
    with place(ns):
        by_hand("here", [made, ready, f"build/release/bin/kubeml --namespace {ns} function create --name lenet --model lenet5"], calls)
        apply([resource("Function", "own", model="lenet5")], ns)
        by_hand("here", [removed], calls)
        until(lambda: not cluster.listed("pods", ns), 60, message="pods are left")
        assert not there("deployment", "kubeml-controller", ns) and not there("statefulset", "kubeml-mongodb", ns)
        assert there("pvc", bundled.CLAIM, ns) and there("secret", "kubeml-store", ns), "the data went with the manifest"
        assert there("functions.kubeml.dev", "own", ns), "the objects went with the manifest"
        by_hand("here", [last, ready, f"build/release/bin/kubeml --namespace {ns} function list | grep -w lenet"], calls)


harness.main(globals())
