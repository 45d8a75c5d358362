#!/usr/bin/env python3
"""The platform behind the API: killed, stopped and started again, what it takes from whom, and what of it nobody else may open."""
import contextlib
import fcntl
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import threading
import urllib.parse

import requests

import harness
from harness import case, until

# Epochs of a job that is hit while it runs; a sanitizer makes each of them many times as long.
EPOCHS = 10


@case(options=("--pool-functions", "0", "--pool-ps", "0"))
def an_empty_pool_starts_what_is_needed(p):
    assert p.pods() == []
    p.dataset()
    p.function()
    p.succeed(p.train(epochs=1))
    until(lambda: not p.pods(), message="with a floor of 0 nothing stays")


@case(limit=120)
def a_killed_controller_adopts(p):
    p.dataset()
    p.function()
    sha = p.succeed(p.train(epochs=EPOCHS))["sha256"]
    job = p.train(p.paced(), epochs=EPOCHS)
    queued = p.train(epochs=EPOCHS, default_parallelism=4)
    until(lambda: p.task(job)["epoch"] >= 2)
    pods = {pod["pid"] for pod in p.pods(job=job)}
    before = p.task(job)["epoch"]
    p.kill()
    p.start()
    until(lambda: p.task(job)["epoch"] > before, message="it does not go on")
    assert len(pods) > 2 and {pod["pid"] for pod in p.pods(job=job)} == pods, "its processes are others than before"
    task = p.succeed(job)
    assert task["sha256"] == sha, "other weights than without the kill"
    assert not {c["type"] for c in task["conditions"]} & {"FunctionLost", "PSRestarted"}, task["conditions"]
    p.succeed(queued)


@case(limit=90)
def a_controller_that_takes_over_shows_what_a_job_has_done(p):
    """Its functions stand still meanwhile, as in a long epoch: nothing new is told."""
    p.dataset()
    p.function()
    job = p.train(p.paced(), epochs=EPOCHS)
    until(lambda: p.task(job)["epoch"] >= 1)
    functions = [pod["pid"] for pod in p.pods(job=job, role="function")]
    names = {"train_loss": "train_loss", "validation_loss": "validation_loss", "validation_accuracy": "accuracy",
             "parallelism": "parallelism", "epoch_duration_seconds": "epoch_duration"}

    try:
        for pid in functions:
            os.kill(pid, signal.SIGSTOP)
        p.kill()
        p.start()
        shown = p.get("/metrics").decode()
        done = p.get(f"/history/{job}")["data"]
        for name, key in names.items():
            value = harness.metric_in(shown, f'kubeml_job_{name}{{jobid="{job}"}}')
            assert value is not None and any(abs(value - was) <= 1e-5 * abs(was) for was in done[key]), (name, value, done)
    finally:
        for pid in functions:
            os.kill(pid, signal.SIGCONT)
    p.succeed(job)


def kept_of(p, job):
    """What the platform keeps of datasets, functions and a job that has ended: the bytes of each answer."""
    def body(path):
        reply = requests.get(p.url + path, timeout=60)
        assert reply.status_code == 200, (path, reply.text)
        return reply.content
    return {path: body(path) for path in (
        "/dataset", "/dataset/tiny", "/function", "/function/lenet", f"/history/{job}", f"/tasks/{job}", f"/tasks/{job}/explain",
        f"/tasks/{job}/logs", f"/model/{job}", f"/model/{job}?format=npz", f"/model/{job}?format=checkpoint")}


@case(limit=120)
def a_stopped_platform_goes_on(p):
    p.dataset()
    p.function()
    first = p.succeed(p.train(epochs=EPOCHS))
    p.call("PUT", "/function/lenet", json={"model": "lenet5"})
    p.get(f"/tasks/{first['id']}/logs?follow=true")  # to the end of its last process
    job = p.train(p.paced(), epochs=EPOCHS)
    until(lambda: p.task(job)["epoch"] >= 2)
    before = kept_of(p, first["id"])
    assert p.stop() == 0
    until(lambda: not harness.processes_of(p.folder), message="processes are left")
    p.start()
    for path, answer in kept_of(p, first["id"]).items():
        assert answer == before[path], f"{path} is {answer[:2000]} after the restart, and was {before[path][:2000]}"
    assert p.succeed(job)["sha256"] == first["sha256"], "other weights than without the stop"


@case(limit=120)
def a_running_job_keeps_the_version_it_began_with(p):
    """Also the function that replaces a killed one."""
    p.dataset()
    p.function()
    sha = p.succeed(p.train(epochs=EPOCHS))["sha256"]
    job = p.train(p.paced(), epochs=EPOCHS)
    until(lambda: p.task(job)["epoch"] >= 2)
    began = p.task(job)
    assert p.call("PUT", "/function/paced", json={"model": "mlp"})["version"] == 2
    os.kill(p.pod(job=job, role="function", function=1)["pid"], 9)
    task = p.succeed(job)
    assert "FunctionLost" in {c["type"] for c in task["conditions"]}, task["conditions"]
    assert task["sha256"] == sha, "other weights than without the update"
    assert (task["function_version"], task["function_digest"]) == (1, began["function_digest"]), (began, task)
    later = p.succeed(p.train("paced", epochs=1))
    assert later["function_version"] == 2 and later["function_digest"] != task["function_digest"], later


@case(limit=120)
def a_killed_ps_is_replaced(p):
    p.dataset()
    p.function()
    sha = p.succeed(p.train(epochs=EPOCHS))["sha256"]
    job = p.train(p.paced(), epochs=EPOCHS)
    until(lambda: p.task(job)["epoch"] >= 2)
    os.kill(p.pod(job=job, role="ps")["pid"], 9)
    task = p.succeed(job)
    assert task["sha256"] == sha, "other weights than without the kill"


def sockets_of(pid):
    """The numbers of a process's sockets, as /proc/net has them."""
    return set(re.findall(r"socket:\[(\d+)\]", " ".join(harness.opened_by(pid))))


def net_of(pid, kind):
    return [line.split() for line in pathlib.Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]]


def raw_redis(path, *lines):
    """What a redis-server answers to each line of somebody who just comes along."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(str(path))
        answers = []
        for line in lines:
            s.sendall(line.encode() + b"\r\n")
            answers.append(s.recv(1000).decode())
    return answers


@case()
def a_jobs_redis_from_outside(p):
    """One server a job, on a socket in a folder of its own that nobody else may open, with a password that nobody sees."""
    p.dataset()
    paced, folders = p.paced(), set()
    jobs = [p.train(paced, epochs=50000, default_parallelism=1) for _ in range(2)]
    for job in jobs:
        until(lambda: p.task(job)["epoch"] >= 1)
        pid = p.redis(job)
        mine = sockets_of(pid)
        assert not [row for kind in ("tcp", "tcp6") for row in net_of(pid, kind) if row[9] in mine], "it has a TCP socket"
        path, = {pathlib.Path(row[7]) for row in net_of(pid, "unix") if row[6] in mine and len(row) > 7}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path
        assert path.stat().st_uid == path.parent.stat().st_uid == os.getuid(), path
        folders.add(path.parent)
        ping, wrong, get = raw_redis(path, "PING", "AUTH default sesame", "GET x")
        assert ping.startswith("-NOAUTH") and wrong.startswith("-WRONGPASS") and get.startswith("-NOAUTH"), (ping, wrong, get)
        for shown in ("cmdline", "environ"):
            assert not re.search(rb"[0-9a-f]{64}", pathlib.Path(f"/proc/{pid}/{shown}").read_bytes()), shown
    assert len(folders) == 2, folders
    for job in jobs:
        p.delete(f"/tasks/{job}")
        p.wait(job)
    until(lambda: not [f for f in folders if f.exists()], message="a job's folder stays")


@case(platform=False)
def what_a_killed_controller_was_starting_is_waited_for():
    """It has the home's lock until it becomes another program."""
    with harness.Platform() as p:
        p.stop()
        ended, path = p.process, p.folder / "home/run/controller.lock"
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            starting = threading.Thread(target=p.start)
            starting.start()
            until(lambda: p.process is not ended and str(path) in harness.opened_by(p.process.pid), message="it does not try")
        starting.join()
        p.get("/health")


OTHERS = """
import sys, urllib.request, urllib.error
for path in sys.argv[2:]:
    try:
        print(urllib.request.urlopen(sys.argv[1] + path).status)
    except urllib.error.HTTPError as e:
        print(e.code, e.read().decode())
"""


@case()
def without_tokens_other_users_are_refused(p):
    if os.geteuid():
        harness.skip("it runs a program as another user, as root alone can")
    said = subprocess.run(["/usr/bin/python3", "-c", OTHERS, p.url, "/tasks", "/version", "/metrics"], user=65534, cwd="/",
                          capture_output=True, text=True, check=True).stdout.splitlines()
    if "does not tell whose a connection is" in p.log_text():
        harness.skip("the kernel does not tell whose a connection is")
    assert [line[:3] for line in said] == ["403", "200", "403"], said
    assert "--token-file FILE" in said[0], said
    assert p.get("/tasks") == []


@case(platform=False)
def a_second_controller_is_refused():
    with harness.Platform() as p:
        second = harness.Platform(home=p.folder)
        second.start(wait=False)
        assert second.process.wait(20) == 1
        assert "another controller runs on" in p.log_text()
        assert (p.folder / "home/run/controller.pid").read_text().strip() == str(p.process.pid)
        port = urllib.parse.urlparse(p.url).port
        done = subprocess.run([str(harness.BIN / "kubeml-controller"), "--home", str(p.folder / "other"), "--listen",
                               f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=20)
        assert done.returncode == 1 and f"port {port} on 127.0.0.1 is taken" in done.stderr, done.stderr


@case(platform=False)
def options_are_taken_whole_or_refused():
    long = "/" + "x" * 5000
    for said, program, *words in [
            ("--home is longer", "kubeml-controller", "--home", long),
            ("--store is longer", "kubeml-controller", "--store", "lmdb:" + long),
            ("--include is longer", "kubeml-builder", "--include", long),
            ("--ready-fd must be", "kubeml-builder", "--ready-fd", "1x"),
            ("--carrier is shm or socket", "kubeml-ps", "--listen", "unix:x", "--run-dir", ".", "--carrier", "sockets")]:
        done = subprocess.run([str(harness.BIN / program), *words], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and said in done.stderr, (words[0], done)


@case(platform=False)
def a_token():
    with harness.Platform(env={"KUBEML_TOKEN": "sesame"}) as p:
        assert p.get("/health") == {"status": "ok"}
        reply = requests.get(p.url + "/tasks", timeout=20)
        assert reply.status_code == 401 and reply.headers["WWW-Authenticate"].startswith("Bearer"), reply.headers
        p.get("/tasks", 401, headers={"Authorization": "Bearer sesam"})
        p.get("/tasks", 401, headers={"Authorization": "Basic sesame"})
        assert p.get("/tasks", headers={"Authorization": "Bearer sesame"}) == []
        assert "sesame" not in p.log_text()


@case()
def idle_connections_block_nobody(p):
    port = urllib.parse.urlparse(p.url).port
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(1000)]
    idle[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    assert p.get("/health", timeout=5 * harness.STRETCH) == {"status": "ok"}
    for connection in idle:
        connection.close()


@case(platform=False)
def who_asks_whether_it_is_ready_holds_up_nobody():
    """For which nobody needs a token. Where the records cannot be written each of them waits for that."""
    with harness.Platform() as p, harness.stopped_writer(p), contextlib.ExitStack() as at_end:
        port = urllib.parse.urlparse(p.url).port
        asked = [at_end.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)]
        for connection in asked:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert p.get("/health") == {"status": "ok"}
        assert not select.select(asked, [], [], 0)[0], "it was answered behind one of them"


@case(platform=False)
def orphans_are_swept_at_start():
    with harness.Platform() as p:
        p.dataset()
        before = p.stored_files()
    kept, = (p.folder / "home/store/datasets").iterdir()
    shutil.copytree(kept, kept.parent / "0123456789abcdef")  # what an upload leaves whose controller was killed
    with harness.Platform(home=p.folder) as p:
        until(lambda: p.stored_files() == before, message=lambda: f"an orphan stays: {p.stored_files()}")
        p.function()
        p.succeed(p.train(epochs=1))


@case(platform=False)
def what_is_still_locked_at_the_start_is_swept_later():
    """The locks of a process that is killed are released one by one while it ends: the next one may be up by then."""
    with harness.Platform() as p:
        p.dataset()
        before = p.stored_files()
    kept, = (p.folder / "home/store/datasets").iterdir()
    left = kept.parent / "0123456789abcdef"
    shutil.copytree(kept, left)
    with open(left / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with harness.Platform(home=p.folder) as p:
            assert left.is_dir(), "a writer that lives lost what it wrote"
            fcntl.flock(lock, fcntl.LOCK_UN)
            until(lambda: p.stored_files() == before, 90, message=lambda: f"an orphan stays: {p.stored_files()}")


if __name__ == "__main__":
    harness.main(globals())
