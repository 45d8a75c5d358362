"""kill -9, one after the other, of everything that a job stands on; it ends with the weights that it would have had."""
import contextlib
import os
import signal

import release
from cluster import case, harness, kubectl, until

OPTIONS = {"k": 2, "default_parallelism": 2, "seed": 3}
EPOCHS = 45  # of 8 batches: paced, 36 s and more, not counting what a kill costs


def epoch(p, job):
    return p.task(job)["epoch"]


def goes_on(p, job, said):
    before = epoch(p, job)
    until(lambda: epoch(p, job) > before + 1 or p.task(job)["state"] == "succeeded", 90, every=0.2,
          message=f"after {said} was killed the job does not go on")
    assert p.task(job)["state"] != "succeeded", "the job was too short to be hit"


def restarts(pod):
    return sum(c["restartCount"] for c in pod["status"].get("containerStatuses", []))


def avoided(p):
    """The nodes that the release's pods would rather not be on: another case may have had a reason."""
    return {value for pod in release.pods_of(p.ns)
            for wish in pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(
                "preferredDuringSchedulingIgnoredDuringExecution", [])
            for field in wish["preference"].get("matchFields", []) for value in field["values"]}


@contextlib.contextmanager
def warm_pool():
    """Of a release with a data set and a function; that what is done to it speaks against no node."""
    release.needs_processes()
    with release.shared() as p:
        p.dataset()
        p.function()
        p.warm(4, 1)
        shunned = avoided(p)
        yield p
        assert avoided(p) <= shunned, "a node is avoided although nothing is wrong with it"


@case(limit=120, platform=False)
def a_warm_function_ends_when_it_is_asked_to():
    """It is the first process of its container, for which there is no default action."""
    with warm_pool() as p:
        pid = p.pods(role="function")[0]["pid"]
        ended = next(pod["name"] for pod in p.pods() if pod["pid"] == pid)
        before = {pod["name"] for pod in p.pods()}
        os.kill(pid, signal.SIGTERM)
        until(lambda: not harness.alive(pid), 30, message="it goes on")
        until(lambda: ended not in (there := {pod["name"] for pod in p.pods()}) and there - before, 30,
              message="no other takes its place")
        p.warm(4, 1)


@case(limit=120, platform=False)
def a_warm_function_that_is_being_deleted_is_given_to_no_job():
    """A pod has its grace to end in, and one that uses it is still connected."""
    with warm_pool() as p:
        old = p.pods(role="function")
        for pod in old:
            os.kill(pod["pid"], signal.SIGSTOP)
        try:
            for pod in old:
                kubectl("delete", "pod", "-n", p.ns, pod["name"], "--wait=false", "--grace-period=60")
            p.succeed(p.train(epochs=1, **OPTIONS), 50)
            assert all(harness.alive(pod["pid"]) for pod in old), "they had ended before the job"
        finally:
            for pod in old:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pod["pid"], signal.SIGCONT)
        until(lambda: not any(harness.alive(pod["pid"]) for pod in old), 30, message="they stay")


@case(limit=480, platform=False)
def leader_function_redis_and_ps_are_killed():
    release.needs_processes()
    with release.shared() as p:
        p.dataset()
        p.function()
        slow = p.paced(0.1)
        want = p.succeed(p.train(epochs=EPOCHS, **OPTIONS), 180)["sha256"]
        job = p.train(slow, epochs=EPOCHS, **OPTIONS)
        until(lambda: epoch(p, job) >= 1, 60)

        pods = {pod["uid"] for pod in p.pods(job=job)}
        killed = p.kill()
        # Another one, or the same one in a new container: kubelet is often quicker than the lease's end.
        until(lambda: (now := p.leader()) and release.ready(now) and (
            now["metadata"]["name"] != killed or restarts(now)), 60, message="nobody leads")
        goes_on(p, job, "the leader")
        assert len(pods) == 3 and {pod["uid"] for pod in p.pods(job=job)} == pods, "its pods are others than before"

        pod = p.pod(job=job, role="function", function=1)
        os.kill(pod["pid"], signal.SIGKILL)
        until(lambda: any(o["incarnation"] > pod["incarnation"]
                          for o in p.pods(job=job, role="function", function=1)), 60, message="no other function 1")
        goes_on(p, job, "a function")

        redis = p.redis(job)
        os.kill(redis, signal.SIGKILL)
        until(lambda: not harness.alive(redis), 10)
        goes_on(p, job, "Redis")

        ps = p.pod(job=job, role="ps")
        os.kill(ps["pid"], signal.SIGKILL)
        until(lambda: any(o["uid"] != ps["uid"] or o["pid"] not in (0, ps["pid"])
                          for o in p.pods(job=job, role="ps")), 60, message="no other kubeml-ps")
        goes_on(p, job, "kubeml-ps")

        task = p.succeed(job, 180)
        assert task["sha256"] == want, "other weights than without the kills"
        assert len(p.get(f"/history/{job}")["data"]["accuracy"]) == EPOCHS
        until(lambda: not p.pods(job=job), 60, message="pods of an ended job")


@case(limit=480, platform=False)
def redis_and_ps_stand_still():
    """SIGSTOP for good: Redis is found by its container's liveness probe and kubeml-ps by the controller; jobs go on."""
    release.needs_processes()
    with release.shared() as p:
        p.dataset()
        p.function()
        slow = p.paced(0.1)
        want = p.succeed(p.train(epochs=EPOCHS, **OPTIONS), 180)["sha256"]
        job = p.train(slow, epochs=EPOCHS, **OPTIONS)
        until(lambda: epoch(p, job) >= 1, 60)
        redis, ps = p.redis(job), p.pod(job=job, role="ps")
        os.kill(redis, signal.SIGSTOP)
        until(lambda: not harness.alive(redis), 120, message="nobody finds that Redis stands still")
        goes_on(p, job, "Redis")
        assert p.pod(job=job, role="ps")["uid"] == ps["uid"], "its pod was replaced as well"
        os.kill(ps["pid"], signal.SIGSTOP)
        # Often: it holds until the next epoch is committed. The pod's object is gone before its process is.
        why = until(lambda: (w := p.get(f"/tasks/{job}/explain"))["reason"] == "PSRestarted" and w, 200, every=0.1,
                    message="nobody finds that kubeml-ps stands still")
        assert "it said nothing for 120 s" in why["message"], why
        until(lambda: not harness.alive(ps["pid"]), 60, message="it stands still for ever")
        assert p.succeed(job, 180)["sha256"] == want, "other weights than undisturbed"


harness.main(globals())
