#!/usr/bin/env python3
"""Logs and events through the API: followed from their beginning to their end, by many, by those who are slow, and by nobody."""
import concurrent.futures
import contextlib
import os
import pathlib
import re
import subprocess
import tempfile

import requests

import harness
from harness import case, until


@case()
def logs_are_followed(p):
    p.dataset()
    p.function()
    job = p.train(epochs=20)
    with requests.get(p.url + f"/tasks/{job}/logs?follow=true", stream=True, timeout=60) as reply:
        lines = list(reply.iter_lines(decode_unicode=True))
    assert any("function-0" in line and "joined" in line for line in lines), lines
    assert any(line.startswith("ps") and "finished" in line for line in lines), lines
    data = p.get(f"/history/{job}")["data"]
    for epoch, told in enumerate(zip(data["train_loss"], data["validation_loss"], data["accuracy"], data["epoch_duration"]), 1):
        loss, validation, accuracy, seconds = told
        said = (f"epoch {epoch} of 20: train loss {loss:.4g}, validation loss {validation:.4g}, accuracy {accuracy:.2f} %, "
                f"{seconds:.2f} s, 2 functions")
        assert sum(line.startswith("ps") and said in line for line in lines) == 1, (said, lines)


@case(platform=False)
def a_log_is_followed_of_a_job_that_ends_meanwhile():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder, \
            concurrent.futures.ThreadPoolExecutor(1) as beside:
        asked = pathlib.Path(folder) / "asked"
        with harness.Platform(env={"KUBEML_FAILPOINT": "controller.follow-logs:1:wait",
                                   "KUBEML_FAILPOINT_FILE": str(asked)}) as p:
            p.dataset()
            p.function()
            job = p.train(epochs=50000)
            followed = beside.submit(p.get, f"/tasks/{job}/logs?follow=true")
            until(asked.exists)
            try:
                p.delete(f"/tasks/{job}")
                p.wait(job)
            finally:
                asked.unlink()
            log = followed.result().decode()
            assert log == p.get(f"/tasks/{job}/logs").decode() and "finished: state=cancelled" in log, log


@case()
def a_long_log_is_followed_from_its_beginning(p):
    """Longer than what is held for a client that has not read it yet; and of a job's runs before, too."""
    p.dataset()
    p.function("talks", harness.talking_code(20000))
    job = p.train(function="talks", epochs=50000, default_parallelism=1)
    until(lambda: p.task(job)["epoch"] >= 1)

    def follow():
        """Its lines up to the last one, which comes again when the job is resumed."""
        lines = []
        with requests.get(p.url + f"/tasks/{job}/logs?follow=true", stream=True, timeout=60) as reply:
            for line in reply.iter_lines(decode_unicode=True):
                found = re.search(r"\| line (\d{5}) ", line)
                if found and (not lines or lines[-1] < 19999):
                    lines.append(int(found[1]))
                    if lines[-1] == 19999:
                        p.post(f"/tasks/{job}/suspend")
        return lines
    assert follow() == list(range(20000))
    p.wait(job)
    p.post(f"/tasks/{job}/resume")
    until(lambda: p.task(job)["state"] == "running")
    again = follow()
    assert again == list(range(20000 - len(again), 20000)), (again[:5], again[-5:])
    assert len(again) == 20000 or harness.another_platform and len(again) > 2000  # a cluster keeps less of a pod that is gone
    p.delete(f"/tasks/{job}")


@case()
def a_stream_too_many_is_refused_with_its_cause(p):
    """And not opened, only to be empty: who follows would take that for the job's end."""
    p.dataset()
    job = p.train(p.paced(), epochs=50000)
    until(lambda: p.task(job)["epoch"] >= 1)

    def follow():
        return p.ask("GET", f"/tasks/{job}/events", 200, stream=True, timeout=60)
    with contextlib.ExitStack() as opened:
        for _ in range(512):
            assert opened.enter_context(follow()).status_code == 200
        for what in ("events", "logs?follow=true"):
            assert "512 streams are open" in p.get(f"/tasks/{job}/{what}", 503)["detail"]
        said = subprocess.run([str(harness.BIN / "kubeml"), "logs", "-f", job], env={**os.environ, **p.environment()},
                              capture_output=True, text=True, timeout=60)
        assert said.returncode != 0 and "512 streams are open" in said.stderr, said
        assert p.get(f"/tasks/{job}/logs"), "what is not followed needs no place"
    # A client that is gone is noticed when something is said.
    def again():
        with follow() as reply:
            return reply.status_code == 200
    until(again, 60)
    p.delete(f"/tasks/{job}")


@case(platform=False)
def a_quiet_log_that_nobody_follows_any_more_gives_its_place_back():
    """Nothing is written to it by which it would show that its client left."""
    with harness.Platform("--slots", "1") as p:
        p.dataset()
        first = p.train(p.paced(), epochs=50000, default_parallelism=1)
        waits = p.train("paced", epochs=50000, default_parallelism=1)

        def follow():
            with p.ask("GET", f"/tasks/{waits}/logs?follow=true", None, stream=True, timeout=60) as reply:
                return reply.status_code == 200
        for _ in range(513):
            follow()
        until(follow)
        for job in (waits, first):
            p.delete(f"/tasks/{job}")


@case(platform=False)
def a_log_is_read_beside_all_else():
    """Megabytes, or an API server that is slow to give them: jobs begin and end meanwhile."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder, \
            concurrent.futures.ThreadPoolExecutor(1) as beside:
        asked = pathlib.Path(folder) / "asked"
        with harness.Platform(env={"KUBEML_FAILPOINT": "controller.read-logs:1:wait",
                                   "KUBEML_FAILPOINT_FILE": str(asked)}) as p:
            p.dataset()
            p.function()
            job = p.train(p.paced(), epochs=50000)
            until(lambda: p.task(job)["epoch"] >= 1)
            log = beside.submit(p.get, f"/tasks/{job}/logs")
            until(asked.exists)
            try:
                second = p.train(epochs=1)
                until(lambda: p.task(second)["epoch"] >= 1)
                p.delete(f"/tasks/{job}")
                until(lambda: p.task(job)["state"] == "cancelled")
                assert not log.done()
            finally:
                asked.unlink()
            assert "joined" in log.result().decode()
            assert "finished: state=cancelled" in p.get(f"/tasks/{job}/logs?follow=true").decode()


@case()
def logs_that_nobody_reads_have_a_limit(p):
    """All that is held for those who asked for them: then it is said that there are too many."""
    p.dataset()
    p.function("talks", harness.talking_code(40000))
    job = p.train("talks", epochs=50000, default_parallelism=4)
    until(lambda: p.task(job)["epoch"] >= 1)
    size = len(p.get(f"/tasks/{job}/logs"))
    assert size > 4 * (4 << 20), size

    # Who takes nothing for a minute is let go: each takes a little while the next are served.
    opened = []
    with contextlib.ExitStack() as ends:
        while True:
            reply = ends.enter_context(p.ask("GET", f"/tasks/{job}/logs", 200, stream=True, timeout=60 * harness.STRETCH))
            if reply.status_code != 200:
                break
            opened.append(reply)
            assert len(opened) <= (256 << 20) // size + 2, (len(opened), size)
            for r in opened:
                assert len(r.raw.read(128 << 10)) == 128 << 10, "it was ended"
        assert reply.status_code == 503 and "are held for others" in reply.json()["detail"], reply.text
        assert len(opened) >= 10, len(opened)
    until(lambda: p.ask("GET", f"/tasks/{job}/logs", 200, timeout=60).status_code == 200)
    p.delete(f"/tasks/{job}")


@case()
def a_log_does_not_tell_of_ends_that_were_asked_for(p):
    p.dataset()
    p.function()
    job = p.train(epochs=3)
    p.get(f"/tasks/{job}/logs?follow=true")  # to the end of its last process
    log = p.get(f"/tasks/{job}/logs").decode()
    assert "finished: state=succeeded" in log.splitlines()[-1], log
    for words in ("ended:", "closed by the peer", "by a signal", "asked to"):
        assert words not in log, (words, log)


if __name__ == "__main__":
    harness.main(globals())
