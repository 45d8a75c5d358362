#!/usr/bin/python3
"""make bench-cluster: how long things take on the test cluster, as tables: `bench.py [start] [node] [words]`.

start: from the request of a job with four functions to its first batch, with a warm pool: by the job's own phases.
node:  from the moment a node loses its power to what is done about it.
words: from the request to the word of what the cluster lacks (test_trouble's cases, with their times).

The numbers are of this machine, on which all nodes are.
"""
import os
import subprocess
import sys
import time

import cluster
import release
import test_nodes
import test_trouble
from cluster import HERE, harness, until

JOBS = int(os.environ.get("BENCH_JOBS", "20"))
TIMES = int(os.environ.get("BENCH_TIMES", "3"))
BEGUN = {"FunctionLost", "PSRestarted", "PoolEmpty"}  # another one is asked for in the same step
SAID = {"says": "the job says it", "asked": "a pod is replaced", "trains": "it trains again"}


def row(name, values):
    values = sorted(values)

    def at(share):
        return values[min(len(values) - 1, round(share * (len(values) - 1)))]
    print(f"{name:34} {at(0.5):9.0f} {at(0.95):9.0f} {values[-1]:9.0f}")


def head(title, count):
    print(f"\n{title} ({count})\n{'':34} {'p50 ms':>9} {'p95 ms':>9} {'max ms':>9}")


def start():
    with release.shared() as p:
        p.dataset()
        p.function()
        phases, requests_ms = [], []
        for _ in range(JOBS):
            p.warm(4, 1)
            begin = time.monotonic()
            job = p.train(epochs=1, default_parallelism=4)
            requests_ms.append(1000 * (time.monotonic() - begin))
            phases.append(p.succeed(job, 120)["start_ms"])
        head("a job with 4 functions, from its request to the first batch, pool warm", f"{JOBS} jobs")
        row("the request's answer", requests_ms)
        for name in ("queued", "ps", "functions", "training", "total"):
            row(name, [one[name] for one in phases])


def lose(p, leader, ps):
    """{what: ms} of one loss, what of the job was lost, and the reason that it gives. The controller that leads stands on
    the node that stays, or with `leader` on the one that is lost; so does kubeml-ps."""
    found, reason = {}, "nothing"
    with test_nodes.through_the_other(p) if leader else test_nodes.through_the_leader(p):
        test_nodes.on_both(p, (4, 1))
        test_nodes.warm_on(p, (4, 1), "ps", test_nodes.LOST if ps else "node1", 1)
        job = p.train(**test_nodes.OPTIONS, epochs=100000)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        pods = p.pods(job=job)
        before_loss = {pod["name"] for pod in pods}
        lost = {pod["name"] for pod in pods if pod["node"] == test_nodes.LOST}
        before = p.task(job)["epoch"]
        power = subprocess.Popen([str(HERE / "down.sh"), test_nodes.LOST[4:]])
        begin = time.monotonic()
        deadline = begin + 120
        while "trains" not in found and time.monotonic() < deadline:
            try:
                task = p.task(job)
            except AssertionError:  # on its way to the leader when that was lost: nobody knows
                continue
            now = 1000 * (time.monotonic() - begin)
            # What was on its way when the power went still counts as before.
            before = task["epoch"] if now < 500 else before
            raised = [c for c in task["conditions"] if c["status"] == "True" and c["type"] in BEGUN]
            if raised and "says" not in found:
                found["says"] = now
                reason = raised[0]["reason"]
            names = {pod["name"] for pod in p.pods(job=job)}
            if "asked" not in found and (names - before_loss or not lost & names):
                found["asked"] = now
            if "asked" in found and task["epoch"] > before + 1:
                found["trains"] = now
        power.wait()
        p.delete(f"/tasks/{job}")
    roles = sorted(pod["role"] for pod in pods if pod["name"] in lost)
    return found, roles, reason


def node():
    with test_nodes.pair() as p:
        print("\na node of two loses its power while a job with 4 functions trains")
        for leader, ps in [case for case in ((False, False), (False, True), (True, False), (True, True)) for _ in range(TIMES)]:
            try:
                found, roles, reason = lose(p, leader, ps)
                print(f"lost {', '.join(roles + ['the leader'] * leader)}: " +
                      "; ".join(f"{SAID[what]} {ms:.0f} ms" for what, ms in found.items()) + f" ({reason})")
            finally:
                test_nodes.back()
            # A controller that has lost pods on a node uses the others for two minutes.
            cluster.kubectl("rollout", "restart", f"deployment/{p.name}-controller", "-n", p.ns)
            cluster.kubectl("rollout", "status", f"deployment/{p.name}-controller", "-n", p.ns, "--timeout=90s")
            p.start()


def words():
    print("\nwhat the cluster lacks")
    for one in (test_trouble.an_image_that_cannot_be_pulled, test_trouble.a_quota_that_is_spent,
                test_trouble.no_node_has_the_gpu):
        one()


if __name__ == "__main__":
    for name in sys.argv[1:] or ("start", "node", "words"):
        {"start": start, "node": node, "words": words}[name]()
