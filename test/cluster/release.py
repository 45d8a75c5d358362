"""A release of the chart as a platform that the cases talk to: the same calls as harness.Platform's, over a
port-forward, and processes of pods that can be killed where the cluster is ours.

`installed(...)` is a release of one case's own, in a namespace of its own. `shared()` is one that all cases after each
other use, because an installation takes seconds; it begins with nothing in it. Cases beside each other have one each.
It stays up until run.sh ends the cluster (or `release.py down`, where the cluster is somebody's).
"""
import base64
import concurrent.futures
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import requests

import cluster
from cluster import CHART, HERE, ROOT, harness, helm, kubectl, skip, until

MONGO_PORT, MONGO_TLS_PORT = 27017, 27018
MONGO_ROOT = "root:stand-in"  # it may make users: each job's pods have one of their own
MONGO_HOST = "10.123.0.1"  # node0; the stand-in runs beside the pods, and outlives every release
SHARED = "kubeml-e2e-"  # and the lane
NO_PROCESSES = "processes of pods are seen and killed on a cluster of our own alone"
USERS = {"anna": "token-of-anna-alone", "ben": "token-of-ben-alone"}  # of the shared release
PREFIX = "localhost/"  # of our images: the chart's own
PROGRAMS = {"kubeml-ps": "ps", "kubeml-function": "function", "kubeml-controll": "controller",
            "redis-server": "redis"}  # as /proc cuts their names
# Requests are small, so that pods fit beside each other on a small machine; limits are the chart's, but for a function's CPUs: it
# has one thread then, as those that share a pod do.
SMALL = {"uninstall.endJobs": "false",  # a pod more for each uninstall: test_upgrade has it
         "pool.functions": 4, "pool.ps": 1, "controller.slots": 4, "function.resources.requests.cpu": "20m",
         "function.resources.limits.cpu": "1500m",
         "ps.resources.requests.cpu": "20m", "controller.resources.requests.cpu": "20m",
         "builder.resources.requests.cpu": "20m",
         "function.resources.requests.memory": "64Mi", "ps.resources.requests.memory": "64Mi"}


# ---- what a release needs --------------------------------------------------------------------------

def load_images():
    """Our images into every node of our cluster, once after each build."""
    folder = os.environ.get("KUBEML_TC_IMAGES")
    if not cluster.OURS:
        if not os.environ.get("KUBEML_TC_PREFIX"):
            skip("KUBEML_TC_PREFIX does not say which registry this cluster has the images from")
        return
    if not folder:
        skip("no images: they are built where buildah and debootstrap are (scripts/install-packages cluster)")
    with cluster.one_at_a_time("images"):
        load_into_nodes(folder)


def load_into_nodes(folder):
    def load(node):
        for tar in (pathlib.Path(folder) / f"{n}.tar" for n in ("controller", "builder", "ps", "function-cpu")):
            mark = cluster.STATE / f"{node.stem}-{tar.stem}.loaded"
            newest = str(os.stat(tar).st_mtime_ns)
            if not mark.exists() or mark.read_text() != newest:
                subprocess.run([str(HERE / "in.sh"), "-n", node.stem[4:], "ctr", "-n", "k8s.io", "images", "import",
                                str(tar)], check=True, capture_output=True)
                mark.write_text(newest)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(load, sorted(cluster.STATE.glob("node*.ns"))))


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection((MONGO_HOST, port), timeout=5):
        return True
    return False


def stand_in(port, **environment):
    """MongoDB's, with users, on node0: its URI without a database. It ends with the cluster."""
    with cluster.one_at_a_time(f"mongodb-{port}"):
        if not answers(port):
            start_stand_in(port, environment)
    return f"mongodb://{MONGO_ROOT}@{MONGO_HOST}:{port}"


def start_stand_in(port, environment):
    path = cluster.STATE / f"log/mongodb-{port}.log"
    with open(path, "ab") as log:
        process = subprocess.Popen([str(HERE / "in.sh"), str(ROOT / "test/mongo/run.sh"), "0.0.0.0", str(port)],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                   env={**os.environ, "MONGO_ROOT": MONGO_ROOT, **environment})
    until(lambda: answers(port) or process.poll() is not None, 60, message="MongoDB's stand-in does not start")
    if process.poll() is not None:
        skip("no stand-in for MongoDB (MONGO_TESTS=1 scripts/install-packages brings what it needs): "
             + path.read_text()[-200:].strip())


def mongodb(database):
    """The URI of a database that outlives releases: of the stand-in on node0, or KUBEML_TC_MONGODB with its
    %s replaced; "": the chart brings one."""
    if not cluster.OURS:
        return os.environ.get("KUBEML_TC_MONGODB", "").replace("%s", database)
    return stand_in(MONGO_PORT, MONGO_HEAP="2g") + f"/{database}?authSource=admin"


def mongodb_behind_tls(ns):
    """Settings of a release in that namespace whose MongoDB has TLS too; {} on a cluster of somebody's, whose URI says
    what it has."""
    if not cluster.OURS:
        return {}
    folder = cluster.STATE / "mongodb-tls"
    subprocess.run([str(ROOT / "test/mongo/certs.sh"), str(folder), MONGO_HOST], check=True, capture_output=True)
    uri = stand_in(MONGO_TLS_PORT, MONGO_HEAP="512m", MONGO_TLS=str(folder))
    cluster.apply([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mongodb-ca"},
                    "data": {"ca.crt": (folder / "ca.crt").read_text()}}], ns)
    return {"mongodb.tls.caConfigMap": "mongodb-ca", "mongodb.uri":
            f"{uri}/{ns}?authSource=admin&tls=true&tlsCAFile=/etc/kubeml/mongodb-ca/ca.crt", "mongodb.port": MONGO_TLS_PORT}


# ---- a release -----------------------------------------------------------------------------------------

def made_in(ns):
    """KIND/NAME of all that a release makes in its namespace, and what it leads to; but what is the users' own."""
    return sorted(f"{o['kind']}/{o['metadata']['name']}" for o in cluster.get(
        "pods,deployments,statefulsets,services,configmaps,secrets,networkpolicies,roles,rolebindings,serviceaccounts,"
        "poddisruptionbudgets,resourcequotas,leases,jobs,persistentvolumeclaims", "-n", ns)["items"])


def pods_of(ns, selector="kubeml.dev/install=kubeml"):
    return cluster.listed("pods", ns, selector)


def needs_processes():
    """For a case that kills or stops them: elsewhere it is left out before anything is installed."""
    if not cluster.OURS:
        skip(NO_PROCESSES)


def processes():
    """{pod's uid: {program: [pid]}}, as this machine counts processes; a program that PROGRAMS lacks by its own name."""
    needs_processes()
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            pod = re.search("pod([0-9a-f-]{36})", pathlib.Path(f"/proc/{entry}/cgroup").read_text())
            if pod and harness.alive(entry):
                name = pathlib.Path(f"/proc/{entry}/comm").read_text().strip()
                found.setdefault(pod[1], {}).setdefault(PROGRAMS.get(name, name), []).append(int(entry))
    return found


def pids_of(uid):
    """{program: [pid]} of a pod."""
    return processes().get(uid, {})


class Record(dict):
    """A pod, as Platform.pods tells of one. Who asks for its process on somebody's cluster is left out."""

    def __missing__(self, key):
        if key == "pid":
            skip(NO_PROCESSES)
        raise KeyError(key)


def ready(pod):
    return not pod["metadata"].get("deletionTimestamp") and any(
        c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


class Forward:
    """A port-forward. It ends with the pod that it led to, and begins again with another."""

    def __init__(self, ns, target):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        again = f"while :; do kubectl -n {ns} port-forward {target} {port}:10100; sleep 0.3; done"
        self.process = subprocess.Popen([*cluster.INSIDE, "bash", "-c", again], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        self.url = f"http://127.0.0.1:{port}"

    def close(self):
        # nsenter's child is in the cluster's PID namespace; the group has both.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Release(harness.Platform):
    """One release in a namespace. It is made by `install`, and gone after `uninstall`."""

    sandbox = False

    def __init__(self, ns, name="kubeml", **settings):
        super().__init__()
        self.ns, self.name = ns, name
        self.settings = {**SMALL, **settings}
        self.forward, self.token = None, None

    def values(self):
        given = dict(self.settings)
        if "mongodb.uri" not in given and (uri := mongodb(self.ns)):
            given["mongodb.uri"] = uri
        if (prefix := os.environ.get("KUBEML_TC_PREFIX", PREFIX)) != PREFIX:
            given["image.prefix"] = prefix
        return [x for k, v in given.items() for x in ("--set", f"{k}={v}")]

    def install(self, verb="install", wait=True):
        helm(verb, self.name, CHART, "-n", self.ns, *self.values(), seconds=180)
        if wait:
            self.start()
            until(lambda: all(map(ready, self.part("builder"))), 90, message="the builder is not ready")
        return self

    def as_user(self, name):
        """Headers of that user's requests."""
        return {"Authorization": f"Bearer {USERS[name]}"}

    def uninstall(self, wait=True):
        self.disconnect()
        helm("uninstall", self.name, "-n", self.ns, *(["--wait", "--timeout", "90s"] if wait else []), check=False, seconds=180)

    # the connection

    def connect(self):
        if self.forward:
            return
        self.forward = Forward(self.ns, f"service/{self.name}")
        self.url = self.forward.url
        secret, = [x for x in cluster.listed("secrets", self.ns) if x["metadata"]["name"] == f"{self.name}-token"]
        self.token = base64.b64decode(secret["data"]["token"]).decode()
        os.environ.update(self.environment())  # for what a case starts or asks by itself

    def disconnect(self):
        if self.forward:
            self.forward.close()
            self.forward = None

    def environment(self):
        return {"KUBEML_URL": self.url, "KUBEML_TOKEN": self.token}

    def start(self, wait=True):
        """Waits until a controller is ready and answers."""
        self.connect()
        until(self.leader_is_ready, 90, every=0.2, message=lambda: f"no controller is ready: {self.why_not_ready()}")
        return self

    def leader_is_ready(self):
        with contextlib.suppress(requests.RequestException):
            return requests.get(self.url + "/ready", timeout=5).status_code == 200
        return False

    def why_not_ready(self):
        with contextlib.suppress(requests.RequestException):
            return requests.get(self.url + "/ready", timeout=5).text[:500]
        return "no answer"

    def ask(self, method, path, status, **arguments):
        """As Platform's, again while a controller is replaced by another: what only reads, and what was not done."""
        deadline = time.monotonic() + 60 * harness.STRETCH
        reads = method == "GET" and not arguments.get("stream")
        if reads:
            arguments["timeout"] = min(arguments.get("timeout", 60), 15 * harness.STRETCH)
        while True:
            try:
                reply = super().ask(method, path, status, **arguments)
                if reply.status_code != 503 or status == 503 or "Retry-After" not in reply.headers or \
                        time.monotonic() > deadline:
                    return reply
            except requests.exceptions.ConnectionError:
                if not reads or time.monotonic() > deadline:
                    raise
            except requests.exceptions.ReadTimeout:
                # A port-forward may take a connection for a pod that is just gone, and keep it without an answer.
                if not reads or time.monotonic() > deadline:
                    raise
                self.disconnect()
                self.connect()
            time.sleep(0.2)

    # pods and their processes

    def pods(self, **wanted):
        """As Platform's: those that live, with the process of their program where it can be seen."""
        out, found = [], pods_of(self.ns)
        running = processes() if cluster.OURS else {}
        for pod in found:
            labels = pod["metadata"]["labels"]
            if pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") not in ("Pending", "Running"):
                continue
            record = Record(
                name=pod["metadata"]["name"], uid=pod["metadata"]["uid"], node=pod["spec"].get("nodeName"),
                address=pod["status"].get("podIP"), role=labels.get("kubeml.dev/role"), job=labels.get("kubeml.dev/job"),
                function=int(labels["kubeml.dev/function"]) if "kubeml.dev/function" in labels else None,
                incarnation=int(labels.get("kubeml.dev/incarnation", -1)))
            if all(record[k] == v for k, v in wanted.items()):
                if cluster.OURS:
                    record["pid"] = (running.get(record["uid"], {}).get(record["role"]) or [0])[0]
                out.append(record)
        return out

    def redis(self, job):
        """The process of a job's Redis, wherever in its pod it runs."""
        return pids_of(self.pod(job=job, role="ps")["uid"])["redis"][0]

    def part(self, component):
        return [p for p in pods_of(self.ns, f"app.kubernetes.io/instance={self.name},"
                                            f"app.kubernetes.io/component={component}")
                if not p["metadata"].get("deletionTimestamp")]

    def controllers(self):
        return self.part("controller")

    def leader(self):
        """The pod of the controller that schedules: the Lease's holder, or the only one."""
        pods = {p["metadata"]["name"]: p for p in self.controllers()}
        for lease in cluster.listed("leases", self.ns):
            if lease["spec"].get("holderIdentity") in pods:
                return pods[lease["spec"]["holderIdentity"]]
        return next(iter(pods.values())) if len(pods) == 1 else None

    def ask_leader(self, path):
        """What only the one that leads knows: its metrics and its pool."""
        pod = until(self.leader, 30, message="no controller leads")
        headers = {"Authorization": f"Bearer {self.token}"}
        with contextlib.ExitStack() as stack:
            url = f"http://{pod['status']['podIP']}:10100"
            if not os.environ.get("KUBEML_TC_INSIDE"):
                forward = Forward(self.ns, "pod/" + pod["metadata"]["name"])
                stack.callback(forward.close)
                url = forward.url

            def answer():
                """None as long as it does not lead: the Lease's holder reads the store first, and the only one is first a stand-by."""
                with contextlib.suppress(requests.ConnectionError):
                    if requests.get(url + "/ready", timeout=10).json().get("leads"):
                        return requests.get(url + path, timeout=10, headers=headers)
                return None
            return until(answer, 30, every=0.1, message=f"{pod['metadata']['name']} does not lead")

    def metric(self, name):
        return harness.metric_in(self.ask_leader("/metrics").text, name)

    def warm(self, functions, ps):
        """Waits until the pool holds as many; the uids of those that it holds."""
        def filled():
            now = [pod["metadata"] for pod in pods_of(self.ns, "kubeml.dev/state=warm") if ready(pod)]
            roles = [pod["labels"].get("kubeml.dev/role") for pod in now]
            return roles.count("function") >= functions and roles.count("ps") >= ps and {pod["uid"] for pod in now}
        return until(filled, 60, every=0.1, message="the pool is not warm")

    def kill(self):
        """kill -9 of the controller that leads. Gives its pod's name."""
        pod = until(self.leader, 30, message="no controller leads")
        os.kill(pids_of(pod["metadata"]["uid"])["controller"][0], signal.SIGKILL)
        return pod["metadata"]["name"]

    def stop(self, number=signal.SIGTERM, seconds=30):
        self.disconnect()
        return 0

    def log_text(self):
        return kubectl("logs", "-n", self.ns, "-l", "app.kubernetes.io/component=controller", "--tail=60", "--prefix",
                       check=False).stdout

    def stored_files(self):
        return None  # they are the database's

    def segments(self):
        return []  # they are the pods' own and go with them

    def empty(self):
        """Takes away what cases before left: jobs, histories, functions, datasets. Refused uploads stay, which are
        kept by design and go with a function of that name only: cases that leave some use names of their own."""
        for task in self.get("/tasks"):
            with contextlib.suppress(AssertionError):
                self.delete(f"/tasks/{task['id']}")
        until(lambda: not self.get("/tasks"), 60, every=0.1, message="jobs do not end")
        kubectl("delete", "trainjobs", "--all", "-n", self.ns, "--wait=false")
        for task in self.get("/tasks?state=all"):
            with contextlib.suppress(AssertionError):  # its TrainJob's end was quicker
                self.delete(f"/history/{task['id']}")
        until(lambda: not self.get("/tasks?state=all"), 20, every=0.1, message="jobs are not forgotten")
        for kind in ("function", "dataset"):
            for one in self.get(f"/{kind}"):
                self.delete(f"/{kind}/{one['name']}")
        return self

    def say_all(self):
        """What a reader of a failed case needs."""
        for title, arguments in (
                ("pods", ("get", "pods", "-o", "wide", "-L", "kubeml.dev/job,kubeml.dev/function,kubeml.dev/state")),
                ("events", ("get", "events", "--sort-by=.lastTimestamp", "-o",
                            "custom-columns=LAST:.lastTimestamp,REASON:.reason,ON:.involvedObject.name,SAYS:.message")),
                ("trainjobs", ("get", "trainjobs", "-o", "wide"))):
            print(f"---- {title}\n" + kubectl(*arguments, "-n", self.ns, check=False).stdout[-6000:])
        print("---- controllers\n" + self.log_text()[-5000:])


# Requests that cases make by themselves carry the token too.
_send = requests.Session.send


def send_with_token(session, request, **options):
    token = os.environ.get("KUBEML_TOKEN")
    if token and request.url.startswith(os.environ.get("KUBEML_URL", "-")) and "Authorization" not in request.headers:
        request.headers["Authorization"] = f"Bearer {token}"
    return _send(session, request, **options)


requests.Session.send = send_with_token


@contextlib.contextmanager
def installed(ns=None, wait=True, **settings):
    """A release of this case's own: `with installed(**{"pool.functions": 1}) as p:`"""
    load_images()
    with contextlib.ExitStack() as stack:
        given, ns = ns, ns or stack.enter_context(cluster.namespace("restricted"))
        p = Release(ns, **settings)
        stack.callback(p.uninstall, wait=bool(given))  # a namespace of its own goes with what is still ending in it
        try:
            yield p.install(wait=wait)
        except harness.Skip:
            raise
        except BaseException:
            p.say_all()
            raise


@contextlib.contextmanager
def shared():
    """The release that cases have one after the other, empty."""
    load_images()
    ns = SHARED + os.environ.get("TEST_LANE", "0")
    p = Release(ns, **{"users.existingSecret": "users"})
    wanted = " ".join(sorted(p.values())) + str(images_stamp())
    note = next((n["metadata"].get("annotations", {}).get("values") for n in cluster.listed("namespaces")
                 if n["metadata"]["name"] == ns), None)
    try:
        if note != wanted:
            cluster.make_namespace(ns)
            cluster.apply([{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "users"}, "stringData": {
                "tokens": "".join(f"{name}:{token}\n" for name, token in USERS.items())}}], ns)
            if helm("list", "-n", ns, "-q").stdout.split():
                p.uninstall()
            p.install()
            kubectl("annotate", "namespace", ns, "--overwrite", f"values={wanted}")
        p.start()
        for pod in p.controllers():
            # A killed one waits longer each time before it starts again.
            if any(c["restartCount"] for c in pod["status"].get("containerStatuses", [])):
                kubectl("delete", "pod", "-n", ns, pod["metadata"]["name"], "--ignore-not-found")
        until(lambda: p.controllers() and all(map(ready, p.controllers())), 60, message="the controllers are not ready")
        p.start()
        p.empty()
        yield p
    except harness.Skip:
        raise
    except BaseException:
        p.say_all()
        raise
    finally:
        p.disconnect()


def images_stamp():
    folder = pathlib.Path(os.environ.get("KUBEML_TC_IMAGES", "/nonexistent"))
    return max((f.stat().st_mtime_ns for f in folder.glob("*.tar")), default=0)


if __name__ == "__main__" and sys.argv[1:] == ["down"]:
    made = [n["metadata"]["name"] for n in cluster.listed("namespaces") if n["metadata"]["name"].startswith(SHARED)]
    if made:
        kubectl("delete", "namespace", *made, check=False)
