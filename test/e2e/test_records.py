#!/usr/bin/python3
"""A job's record where the store does not take it."""
import functools
import resource
import subprocess
from unittest import mock

import harness
from harness import case, until

ROOM = 8192  # the first pages of the records, which are there; no page of data lies in them


def disk(p, full):
    """A limit on its files' sizes stands for it: it is the controller's alone."""
    _, most = resource.prlimit(p.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(p.process.pid, resource.RLIMIT_FSIZE, (ROOM if full else most, most))


def states(p):
    return {task["id"]: task["state"] for task in p.get("/tasks?state=all")}


@case(limit=120, platform=False)
def an_end_on_a_full_disk_is_kept_and_no_job_is_taken():
    # What goes beyond the limit is an error, as on a full disk, and no signal: Python ignores that one, and its children may.
    with mock.patch("subprocess.Popen", functools.partial(subprocess.Popen, restore_signals=False)), \
            harness.Platform("--pool-functions", "0", "--pool-ps", "0") as p:
        p.dataset()
        job = p.train(p.paced(), epochs=200)
        until(lambda: p.task(job)["state"] == "running", 60)
        disk(p, full=True)
        asked = {"function_name": "paced", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01}
        for _ in range(2):
            assert "File too large" in p.post("/train", 503, json=asked)["detail"]
        p.delete(f"/tasks/{job}")
        assert p.wait(job)["state"] == "cancelled"
        until(lambda: not p.pods(job=job), message="pods of an ended job")
        assert states(p) == {job: "cancelled"}, states(p)
        disk(p, full=False)
        until(lambda: "the store answers again" in p.log_text(), message="the store is not asked again")
        p.kill()
        p.start()
        assert states(p) == {job: "cancelled"} and p.task(job)["reason"] == "Cancelled", p.task(job)
        p.succeed(p.train("paced", epochs=1))


if __name__ == "__main__":
    harness.main(globals())
