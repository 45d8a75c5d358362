#!/usr/bin/python3
"""A job's record where the store does not take it, and one that no job comes of any more."""
import contextlib
import functools
import os
import re
import resource
import signal
import subprocess
from unittest import mock

import harness
from harness import case, until

ROOM = 8192  # the first pages of the records, which are there; no page of data lies in them


def disk(p, full, *pids):
    """A limit on its files' sizes stands for it: it is the controller's alone, and of what that starts meanwhile, so that there
    is no pool; and of those processes."""
    for pid in (p.process.pid, *pids):
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (ROOM if full else most, most))


def states(p):
    return {task["id"]: task["state"] for task in p.get("/tasks?state=all")}


def answers(p):
    return p.log_text().count("the store answers again")


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
        before = answers(p)
        disk(p, full=False)
        until(lambda: answers(p) > before, message="the record is not tried again")
        p.kill()
        p.start()
        assert states(p) == {job: "cancelled"} and p.task(job)["reason"] == "Cancelled", p.task(job)
        p.succeed(p.train("paced", epochs=1))


@case(limit=120, platform=False)
def an_end_on_a_full_disk_is_in_the_history_when_there_is_room():
    """Neither kubeml-ps, which is given up, nor the controller could write there how the job ended."""
    with mock.patch("subprocess.Popen", functools.partial(subprocess.Popen, restore_signals=False)), \
            harness.Platform("--pool-functions", "0", "--pool-ps", "0") as p:
        p.dataset()
        job = p.train(p.paced(), epochs=200)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        disk(p, True, p.pod(job=job, role="ps")["pid"])
        p.delete(f"/tasks/{job}")
        assert p.wait(job)["state"] == "cancelled"
        until(lambda: not p.pods(job=job), 30, message="pods of an ended job")
        assert p.get(f"/history/{job}")["state"] == "running"
        before = answers(p)
        disk(p, full=False)
        until(lambda: answers(p) > before, message="the history is not tried again")
        history = p.get(f"/history/{job}")
        assert (history["state"], history["reason"]) == ("cancelled", "Cancelled"), history


@case(limit=120, platform=False)
def no_job_is_taken_while_a_stopped_writer_has_the_turn():
    """Where the records are a file of this machine it is sure that they do not have it."""
    with harness.Platform("--pool-functions", "0", "--pool-ps", "0") as p:
        p.dataset()
        p.function()
        job = p.train(epochs=50000)
        until(lambda: p.task(job)["epoch"] >= 1)
        p.post(f"/tasks/{job}/suspend")
        p.wait(job)
        until(lambda: not p.pods(job=job), message="pods of a suspended job")
        asked = {"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01}
        for path, body in (("/train", asked), (f"/tasks/{job}/resume", None)):
            before = answers(p)
            with harness.stopped_writer(p):
                assert "is it stopped?" in p.post(path, 503, json=body)["detail"]
                assert states(p) == {job: "suspended"}, states(p)
            until(lambda: answers(p) > before, message="the store is not asked again")
            assert states(p) == {job: "suspended"}, states(p)


@case(limit=120, platform=False)
def what_is_deleted_before_its_end_is_saved_does_not_come_back():
    with mock.patch("subprocess.Popen", functools.partial(subprocess.Popen, restore_signals=False)), \
            harness.Platform("--pool-functions", "0", "--pool-ps", "0") as p:
        p.dataset()
        job = p.train(p.paced(), epochs=200)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        disk(p, full=True)
        p.delete(f"/tasks/{job}")
        assert p.wait(job)["state"] == "cancelled"
        until(lambda: not p.pods(job=job), message="pods of an ended job")
        before = answers(p)
        disk(p, full=False)
        p.delete(f"/history/{job}")  # a second at most before its record is tried again
        until(lambda: answers(p) > before, message="the store is not asked again")
        assert states(p) == {}, states(p)
        p.get(f"/tasks/{job}", 404)


@case(limit=120, platform=False)
def the_dataset_of_a_job_whose_suspension_is_not_saved_yet_stays():
    with mock.patch("subprocess.Popen", functools.partial(subprocess.Popen, restore_signals=False)), \
            harness.Platform("--pool-functions", "0", "--pool-ps", "0") as p:
        p.dataset()
        job = p.train(p.paced(), epochs=50000)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        disk(p, full=True)
        p.post(f"/tasks/{job}/suspend")
        assert p.wait(job)["state"] == "suspended"
        until(lambda: not p.pods(job=job), message="pods of a suspended job")
        disk(p, full=False)
        said = p.delete("/dataset/tiny", 409)["error"]  # a second at most before its record is tried again
        assert said == f'job {job}, which is suspended, uses dataset "tiny"', said


@case(limit=120, platform=False)
def a_resume_that_is_not_saved_leaves_what_the_job_begins_with():
    with mock.patch("subprocess.Popen", functools.partial(subprocess.Popen, restore_signals=False)), \
            harness.Platform("--slots", "1", "--pool-functions", "0", "--pool-ps", "0") as p:
        p.dataset()
        p.function()
        first = p.train(epochs=1, default_parallelism=1)
        p.succeed(first)
        running = p.train(p.paced(), epochs=50000, default_parallelism=1)
        job = p.post("/train", json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01,
                                     "init": first, "options": {"default_parallelism": 1}})["id"]
        p.post(f"/tasks/{job}/suspend")  # it waits for its slot, and has trained nothing
        assert p.wait(job)["state"] == "suspended"
        p.delete(f"/tasks/{running}")
        p.wait(running)
        until(lambda: not p.pods(job=running), message="pods of an ended job")
        before = answers(p)
        disk(p, full=True)
        assert "File too large" in p.post(f"/tasks/{job}/resume", 503)["detail"]
        assert states(p)[job] == "suspended", states(p)
        disk(p, full=False)
        until(lambda: answers(p) > before, message="the store is not asked again")
        said = p.delete(f"/model/{first}", 409)["error"]
        assert said == f'job {job}, which is suspended, begins with model "{first}"', said
        p.post(f"/tasks/{job}/resume")
        p.succeed(job)
        p.delete(f"/model/{first}")


@case(limit=150, platform=False)
def a_next_try_that_no_record_tells_of_goes_on():
    """The store's disk was full for the controller from before the first try's end to its own, and the history tells of that one,
    since the second try's kubeml-ps is held up."""
    with mock.patch("subprocess.Popen", functools.partial(subprocess.Popen, restore_signals=False)), \
            harness.Platform("--pool-functions", "2", "--pool-ps", "2") as p:
        p.dataset()
        p.paced(0.5)
        p.warm(2, 2)
        job = p.train("paced", lr=1e6, backoff_limit=1)
        until(lambda: p.task(job)["state"] == "running")
        disk(p, full=True)
        until(lambda: p.get(f"/tasks/{job}/explain")["reason"] == "Retrying", 60)
        assert p.get(f"/history/{job}")["state"] == "failed"
        held = [pod["pid"] for pod in p.pods(role="ps", job="")]
        for pid in held:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: p.task(job)["state"] == "starting", 30)
        [ps] = until(lambda: p.pods(job=job, role="ps"), message="the next try has no kubeml-ps")
        p.kill()
        p.start()
        assert p.task(job)["state"] == "running", p.task(job)
        assert p.pods(job=job, role="ps") == [ps], "the next try was ended"
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        until(lambda: p.get(f"/history/{job}")["state"] == "running", message="the second try has not taken the history")
        assert p.pods(job=job, role="ps") == [ps], "the next try was ended"


@case(limit=120, platform=False)
def a_job_that_cannot_be_taken_up_again_can_be_stopped():
    with harness.Platform() as p:
        p.dataset()
        job = p.train(p.paced(), epochs=200)
        until(lambda: p.task(job)["state"] == "running", 60)
        ps = p.pod(job=job, role="ps")["pid"]
        p.kill()
        os.kill(ps, signal.SIGSTOP)  # it writes there too
        with open(p.folder / "home/store/records.mdb", "r+b") as records:
            found = list(re.finditer(rb'"batch_size": ?(32)', records.read()))
            for one in found:
                records.seek(one.start(1))
                records.write(b"-1")
        os.kill(ps, signal.SIGCONT)
        assert found
        p.start()
        assert "cannot be taken up again" in p.log_text()
        assert p.task(job)["state"] == "running" and states(p) == {job: "running"}, states(p)
        assert job not in [t["id"] for t in p.get("/tasks") + p.get("/tasks?state=ended")]
        assert "nothing runs it" in p.post(f"/tasks/{job}/suspend", 409)["detail"]
        p.delete(f"/tasks/{job}")
        assert p.task(job)["state"] == "cancelled" and states(p) == {job: "cancelled"}, p.task(job)
        assert "has ended already: cancelled" in p.delete(f"/tasks/{job}", 409)["detail"]
        until(lambda: not p.pods(job=job), message="pods of a job that is no more")


if __name__ == "__main__":
    harness.main(globals())
