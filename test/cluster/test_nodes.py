"""Two nodes: one is drained, comes back, loses its power, and is cut off; the job goes on on the other."""
import concurrent.futures
import contextlib
import os
import pathlib
import subprocess

import cluster
import release
from cluster import HERE, case, get, harness, kubectl, skip, until

OPTIONS = {"k": 2, "default_parallelism": 4, "seed": 4}
EPOCHS = 40  # of 4 batches: paced, 16 s and more, not counting the time without a node's functions
LOST = "node2"


def nodes_of(p, job):
    return {pod["name"]: pod["node"] for pod in p.pods(job=job)}


def ready_node(name):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in get("node", name)["status"]["conditions"])


def up():
    """Gives the node its power back, in the background: up.sh ends when it is there."""
    return subprocess.Popen([str(HERE / "up.sh"), LOST[4:]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def down():
    with cluster.one_at_a_time("images"):  # nobody is giving it one
        subprocess.run([str(HERE / "down.sh"), LOST[4:]], check=True)


def is_there():
    return (cluster.STATE / f"{LOST}.ns").exists()


def back(process=None):
    if process or not is_there():
        assert (process or up()).wait(300) == 0, f"{LOST} does not start"
    until(lambda: ready_node(LOST), 90, every=0.5, message=f"{LOST} does not come back")


@contextlib.contextmanager
def pair():
    """A release on two nodes. Nothing else runs on the second (KUBEML_TC_SPARE): what is done to it disturbs nobody. The
    first one is cordoned at times."""
    if not cluster.OURS:
        skip("a node of somebody's cluster is not killed")
    if not is_there():
        skip(f"the cluster has no {LOST}")
    kubectl("label", "node", "node1", LOST, "pair=yes", "--overwrite")
    settings = {}
    for part in ("controller", "function", "ps"):
        settings |= {f"{part}.nodeSelector.pair": "yes", f"{part}.tolerations[0].key": "spare",
                     f"{part}.tolerations[0].operator": "Exists"}
    with release.installed(**settings) as p:
        p.dataset()
        p.function()
        try:
            yield p
        finally:
            kubectl("uncordon", LOST, check=False)
            back()


def warm_on(p, want, role, node, count):
    """A warm pool of which so many pods of the role are on the node, or more. Its next ones go wherever they do."""
    p.warm(*want)

    def there():
        return [pod["node"] for pod in p.pods(role=role)].count(node)
    elsewhere = [pod["name"] for pod in p.pods(role=role) if pod["node"] != node]
    missing = count - there()
    if missing > 0:
        other, = {"node1", LOST} - {node}
        kubectl("cordon", other)
        try:
            for name in elsewhere[:missing]:
                kubectl("delete", "pod", "-n", p.ns, name, "--wait=false", "--ignore-not-found")
            until(lambda: there() >= count, 60, message=f"no {role} on {node}")
            p.warm(*want)
        finally:
            kubectl("uncordon", other)


def on_both(p, want):
    """A warm pool that has functions on both nodes."""
    for node in (LOST, "node1"):
        warm_on(p, want, "function", node, 2)


def trains_on_both(p, slow):
    """A job some way on, with functions on both nodes."""
    on_both(p, (4, 1))
    job = p.train(slow, epochs=EPOCHS, **OPTIONS)
    until(lambda: p.task(job)["epoch"] >= 1, 60)
    assert LOST in nodes_of(p, job).values(), nodes_of(p, job)
    return job


def missed_by_us(p, job):
    """The job says what it has lost with the node while Kubernetes still takes that for ready: our connections and
    heartbeats began the recovery, not the end of its pods that Kubernetes makes many seconds later."""
    kinds = {"PSRestarted", "FunctionLost"}

    def said():
        with contextlib.suppress(AssertionError):  # nobody leads: the one that did is lost with the node
            return kinds & {c["type"] for c in p.task(job)["conditions"]}
    until(said, 60, message="nobody misses the node")
    assert ready_node(LOST), f"Kubernetes had missed {LOST} before us: {p.task(job)['conditions']}"


def goes_on_without(p, job, seconds):
    """Its pods are on the other node alone, and it trains."""
    until(lambda: (nodes := nodes_of(p, job)) and LOST not in nodes.values() and len(nodes) >= 5, seconds, every=0.2,
          message=lambda: f"the job still stands on {LOST}: {nodes_of(p, job)}")
    before = p.task(job)["epoch"]
    until(lambda: p.task(job)["epoch"] > before or p.task(job)["state"] == "succeeded", 90, every=0.2,
          message="the job does not go on")
    assert p.task(job)["state"] != "succeeded", "the job was too short to be hit"


def leads_on(p, lost):
    """The leader's pod, on the node that is lost, or on the one that stays."""
    def there():
        leader = p.leader()
        on_lost = leader and leader["spec"].get("nodeName") == LOST
        if leader and release.ready(leader) and on_lost == lost:
            return leader
        if leader and on_lost != lost:
            kubectl("delete", "pod", "-n", p.ns, leader["metadata"]["name"], "--ignore-not-found")
        return None
    return until(there, 90, every=0.5, message=f"the leader does not come to the node that {'is lost' if lost else 'stays'}")


@contextlib.contextmanager
def through(p, controller):
    """The platform is talked to through that pod, which is on the node that stays."""
    forward, url = release.Forward(p.ns, "pod/" + controller["metadata"]["name"]), p.url
    p.url = forward.url
    os.environ.update(p.environment())
    try:
        until(p.leader_is_ready, 30)
        yield
    finally:
        p.url = url
        os.environ.update(p.environment())
        forward.close()


def through_the_leader(p):
    return through(p, leads_on(p, False))


def through_the_other(p):
    """The one that leads is lost with the node."""
    leads_on(p, True)
    return through(p, until(lambda: next((c for c in p.controllers() if release.ready(c) and c["spec"]["nodeName"] != LOST),
                                         None), 60, message="no controller on the node that stays"))


def warm_there_alone(p, functions, ps):
    """The pool's pods are all on the node; the next ones may be on both."""
    kubectl("cordon", "node1")
    try:
        for pod in p.pods():
            kubectl("delete", "pod", "-n", p.ns, pod["name"], "--wait=false", "--ignore-not-found")
        until(lambda: {pod["node"] for pod in p.pods()} == {LOST}, 60, message=f"no pods on {LOST} alone")
        p.warm(functions, ps)
    finally:
        kubectl("uncordon", "node1")


@contextlib.contextmanager
def cut_off():
    """The node is there and nobody reaches it, nor it anybody but the database."""
    pods, address = f"10.244.{LOST[4:]}.0/24", f"10.123.0.{int(LOST[4:]) + 1}"
    near = f"{{ 127.0.0.0/8, {address}, {pods} }}"
    rules = f"""table inet cut {{
        chain forward {{
            type filter hook forward priority -400; policy drop;
            ip saddr {pods} ip daddr {pods} accept
            ip daddr {release.MONGO_HOST} tcp dport {release.MONGO_PORT} accept
            ip saddr {release.MONGO_HOST} tcp sport {release.MONGO_PORT} accept
        }}
        chain input {{
            type filter hook input priority -400;
            ip saddr != {near} drop
        }}
        chain output {{
            type filter hook output priority -400;
            ip daddr != {near} drop
        }}
    }}"""
    nft = [str(HERE / "in.sh"), "-n", LOST[4:], "nft"]
    subprocess.run([*nft, "-f", "-"], input=rules, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run([*nft, "delete", "table", "inet", "cut"], check=True)


def log_there(pod):
    """Of a pod's containers, as the node keeps it: the API server cannot be asked."""
    folders = (cluster.STATE / LOST / "var/log/pods").glob(f"*_{pod['uid']}")
    return "".join(f.read_text() for folder in folders for f in sorted(pathlib.Path(folder).rglob("*.log")))


@case(limit=420, takes="node1", platform=False)
def a_node_that_is_cut_off_trains_on_and_changes_nothing():
    """All of a job is on it, and it reaches the database: the job runs twice, until the first one comes to write what the
    second has taken over."""
    with pair() as p, through_the_leader(p):
        slow = p.paced(0.1)
        want = p.succeed(p.train(epochs=EPOCHS, **OPTIONS), 180)["sha256"]
        warm_there_alone(p, 4, 1)
        job = p.train(slow, epochs=EPOCHS, **OPTIONS)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        pods = p.pods(job=job)
        assert len(pods) == 5 and {pod["node"] for pod in pods} == {LOST}, pods
        old = next(pod for pod in pods if pod["role"] == "ps")
        with cut_off():
            missed_by_us(p, job)
            goes_on_without(p, job, 120)
            assert all(harness.alive(pod["pid"]) for pod in pods if pod["role"] == "ps"), "the one that was cut off has ended"
            until(lambda: "of this job goes on, this is 0" in log_there(old), 60,
                  message="the one that was cut off does not meet the other: " + log_there(old)[-2000:])
        until(lambda: not any(harness.alive(pod["pid"]) for pod in pods), 120, message="what was cut off stays")
        task = p.succeed(job, 240)
        assert task["sha256"] == want, "other weights than without the cut"
        history = p.get(f"/history/{job}")
        assert len(history["data"]["accuracy"]) == EPOCHS and history["generation"] >= 1, history
        assert task["accuracy"] == history["data"]["accuracy"][-1], (task, history)
        until(lambda: not p.pods(job=job), 60, message="pods of an ended job")


@case(limit=600, takes="node1", platform=False)
def a_node_is_drained_and_one_is_lost():
    with pair() as p:
        slow = p.paced(0.1)
        want = p.succeed(p.train(epochs=EPOCHS, **OPTIONS), 180)["sha256"]
        job = trains_on_both(p, slow)
        kubectl("drain", LOST, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", seconds=120)
        goes_on_without(p, job, 60)
        assert p.succeed(job, 180)["sha256"] == want, "other weights than without the drain"
        kubectl("uncordon", LOST)

        with through_the_other(p):
            job = trains_on_both(p, slow)
            with concurrent.futures.ThreadPoolExecutor(1) as beside:
                power = beside.submit(down)
                missed_by_us(p, job)
                power.result()
            goes_on_without(p, job, 120)
        returns = up()
        assert p.succeed(job, 180)["sha256"] == want, "other weights than without the loss"
        history = p.get(f"/history/{job}")
        assert len(history["data"]["accuracy"]) == EPOCHS, history
        assert len(p.get(f"/model/{job}")) > 61706 * 4
        back(returns)


if __name__ == "__main__":
    harness.main(globals())
