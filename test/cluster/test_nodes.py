"""Two nodes: one is drained, comes back, and loses its power; the job goes on on the other."""
import contextlib
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
    """A release on two nodes. Nothing else runs on the second (KUBEML_TC_SPARE): what is done to it disturbs nobody."""
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


def on_both(p, want):
    """A warm pool that has functions on both nodes."""
    p.warm(*want)
    pods = p.pods(role="function")
    nodes = {pod["node"] for pod in pods}
    if LOST not in nodes:
        # The pool was filled while the node was away; it fills again.
        for pod in pods:
            kubectl("delete", "pod", "-n", p.ns, pod["name"], "--wait=false")
    until(lambda: LOST in {pod["node"] for pod in p.pods(role="function") if pod["pid"]}, 60,
          message=f"no function pod on {LOST}")
    p.warm(*want)


def trains_on_both(p, slow):
    """A job some way on, with functions on both nodes."""
    on_both(p, (4, 1))
    job = p.train(slow, epochs=EPOCHS, **OPTIONS)
    until(lambda: p.task(job)["epoch"] >= 1, 60)
    assert LOST in nodes_of(p, job).values(), nodes_of(p, job)
    return job


def goes_on_without(p, job, seconds):
    """Its pods are on the other node alone, and it trains."""
    until(lambda: (nodes := nodes_of(p, job)) and LOST not in nodes.values() and len(nodes) >= 5, seconds, every=0.2,
          message=f"the job still stands on {LOST}: {nodes_of(p, job)}")
    before = p.task(job)["epoch"]
    until(lambda: p.task(job)["epoch"] > before or p.task(job)["state"] == "succeeded", 90, every=0.2,
          message="the job does not go on")
    assert p.task(job)["state"] != "succeeded", "the job was too short to be hit"


@case(limit=600, platform=False)
def a_node_is_drained_and_one_is_lost():
    with pair() as p:
        slow = p.paced(0.1)
        want = p.succeed(p.train(epochs=EPOCHS, **OPTIONS), 180)["sha256"]
        job = trains_on_both(p, slow)
        kubectl("drain", LOST, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s", seconds=120)
        goes_on_without(p, job, 60)
        assert p.succeed(job, 180)["sha256"] == want, "other weights than without the drain"
        kubectl("uncordon", LOST)

        job = trains_on_both(p, slow)
        down()
        goes_on_without(p, job, 120)
        returns = up()
        assert p.succeed(job, 180)["sha256"] == want, "other weights than without the loss"
        history = p.get(f"/history/{job}")
        assert len(history["data"]["accuracy"]) == EPOCHS, history
        assert len(p.get(f"/model/{job}")) > 61706 * 4
        back(returns)


if __name__ == "__main__":
    harness.main(globals())
