"""What the cluster lacks is named: in the job's condition and by `kubeml explain`, in words. The deadlines are those
by which a user is told, not measurements."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import requests

import cluster
import release
from cluster import apply, case, harness, kubectl, until

TOLD = 5  # seconds from the trouble to the word; the looks at it take a moment more
AWAY_PORT = 27019  # of the MongoDB that goes away
EMPTY = {"pool.functions": 0, "pool.ps": 0, "controller.replicas": 1}


def explain(p, job):
    done = subprocess.run([str(harness.BIN / "kubeml"), "explain", job], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **p.environment()})
    return done.stdout + done.stderr


def names_it(p, *words, parallelism=2):
    """A job whose explanation and TrainJob say these words while it waits."""
    p.dataset()
    p.post("/function/lenet", json={"model": "lenet5"})
    begin = time.monotonic()
    job = p.train(epochs=1, default_parallelism=parallelism)

    def said():
        why = p.get(f"/tasks/{job}/explain")
        text = f"{why['reason']} {why['message']} {why.get('evidence')}"
        return all(word in text for word in words) and why
    why = until(said, TOLD + 10, every=0.1, message=lambda: f"it does not say {words}: " + str(p.get(f"/tasks/{job}/explain")))
    named = time.monotonic() - begin
    told = explain(p, job)
    assert all(word in told for word in words), told

    def in_trainjob():
        """By a condition: the job has not got its functions, and why."""
        for one in cluster.listed("trainjobs", p.ns):
            if one.get("status", {}).get("job") == job:
                text, = [f"{c['status']} {c['reason']} {c['message']}" for c in one["status"].get("conditions", [])
                         if c["type"] == "FunctionsReady"] or [""]
                return text.startswith("False") and all(word in text for word in words)
        return False
    until(in_trainjob, TOLD + 10, every=0.1, message=lambda: f"the TrainJob does not say {words}: "
          + str([t.get("status") for t in cluster.listed("trainjobs", p.ns)]))
    # The command line is asked in between: the second is late by that.
    print(f"{why['reason']}: named {named:.2f} s after the job was asked for, in the TrainJob within "
          f"{time.monotonic() - begin:.2f} s")
    return job, why


@case(limit=240, platform=False)
def an_image_that_cannot_be_pulled():
    with release.installed(**EMPTY, **{"function.image": "kubeml-nobody-made"}) as p:
        names_it(p, "kubeml-nobody-made", "Pull")


@case(limit=240, platform=False)
def a_quota_that_is_spent():
    with release.installed(**EMPTY) as p:
        apply([{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
                "spec": {"hard": {"pods": str(len(cluster.listed("pods", p.ns)) + 1)}}}], p.ns)
        until(lambda: cluster.get("resourcequota", "few", "-n", p.ns)["status"].get("used"), 30)
        job, _ = names_it(p, "quota", "few")
        kubectl("delete", "resourcequota", "few", "-n", p.ns)
        p.succeed(job, 90)


@case(limit=240, platform=False)
def no_node_has_the_gpu():
    with release.installed(**EMPTY, **{"gpu.enabled": "true", "gpu.resource": r"example\.com/gpu",
                                       "function.image": "kubeml-function-cpu"}) as p:
        names_it(p, "example.com/gpu")


@case(limit=240, platform=False)
def no_mongodb():
    with release.installed(wait=False, **{**EMPTY, "controller.replicas": 2, "mongodb.uri": "mongodb://127.0.0.1:1/none"}) as p:
        p.connect()

        answers = []

        def said():
            try:
                answers.append(requests.get(p.url + "/ready", timeout=15))
            except requests.RequestException as e:
                answers.append(e)
                return None
            detail = answers[-1].json().get("detail", "")  # at first that it is starting
            return answers[-1].status_code == 503 and "database" in detail and detail
        try:
            detail = until(said, 60, every=0.2)
        except AssertionError:
            raise AssertionError(f"it does not say what it lacks: {[getattr(a, 'text', a) for a in answers[-3:]]}")
        assert "127.0.0.1:1" in detail, detail
        assert not any(map(release.ready, p.controllers())), "not ready, says the API; ready, says the pod"
        assert "mongo" in p.log_text().lower(), p.log_text()
        until(lambda: evicts(p), 30, message="they hold up a node's drain")


def evicts(p):
    """A controller, as a drain does; refused as long as there is no look at its PodDisruptionBudget yet, too."""
    pod = p.controllers()[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": p.ns}}
    return kubectl("create", "--raw", f"/api/v1/namespaces/{p.ns}/pods/{pod}/eviction", "-f", "-", stdin=json.dumps(eviction),
                   check=False).returncode == 0


@case(limit=400, platform=False)
def mongodb_goes_away_and_comes_back():
    """Frozen, so that nothing answers and nothing is lost: the job waits with the reason, which is told through the Service,
    then ends well."""
    if not cluster.OURS:
        harness.skip("somebody's MongoDB is not frozen")
    # A server of its own: what runs beside this has the other one.
    settings = {"pool.functions": 2, "controller.replicas": 1, "mongodb.port": AWAY_PORT, "mongodb.uri":
                release.stand_in(AWAY_PORT, MONGO_HEAP="512m") + f"/away-{os.getpid()}?authSource=admin"}
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: os.kill(stand_in(), signal.SIGKILL))
        p = stack.enter_context(release.installed(**settings))
        p.dataset()
        p.function()
        options = {"epochs": 40, "k": 2, "seed": 6}
        want = p.succeed(p.train(**options), 120)["sha256"]
        job = p.train(p.paced(), **options)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        server = stand_in()
        os.kill(server, signal.SIGSTOP)
        try:
            until(lambda: "Store" in p.get(f"/tasks/{job}/explain")["reason"], 90, every=0.2,
                  message="nobody says that the store is away")
            is_reached_without_its_store(p, job)
        finally:
            os.kill(server, signal.SIGCONT)
            with contextlib.suppress(ProcessLookupError):  # nsenter stops when its child does
                os.kill(int(read(pathlib.Path(f"/proc/{server}/stat")).rsplit(b")", 1)[1].split()[1]), signal.SIGCONT)
        assert p.succeed(job, 180)["sha256"] == want, "other weights than without the gap"


def is_reached_without_its_store(p, job):
    """By its Service, when kubelet has asked often enough to say that the controller is not ready."""
    def probes():
        counted = requests.get(p.url + "/metrics", timeout=20).text
        return sum(float(line.split()[-1]) for line in counted.splitlines()
                   if re.match(r'kubeml_http_requests_total\{.*path="/(ready|started)"', line))
    controller, = p.controllers()
    enough = probes() + controller["spec"]["containers"][0]["readinessProbe"]["failureThreshold"] + 1
    until(lambda: probes() >= enough, 60, every=0.5, message="kubelet does not ask")
    assert requests.get(p.url + "/ready", timeout=20).status_code == 503, "the store is back: the case shows nothing"
    controller, = p.controllers()
    assert release.ready(controller), controller["status"]
    told = cluster.run("env", "-u", "KUBEML_URL", "-u", "KUBEML_TOKEN", harness.BIN / "kubeml", "--namespace", p.ns, "explain", job).stdout
    assert "Store" in told, told


def stand_in():
    """The process that stands in for MongoDB there, on node0."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and b"MongoServerMain" in read(entry / "cmdline") and \
                f":{AWAY_PORT}".encode() in read(entry / "cmdline").replace(b"\0", b":"):
            if os.readlink(entry / "ns/net") == os.readlink("/proc/self/ns/net"):
                return int(entry.name)
    raise AssertionError("the stand-in is not found")


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    harness.main(globals())
