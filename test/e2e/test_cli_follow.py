#!/usr/bin/python3
"""The command line while it waits: what it follows to its end, what it asks again, and what it says where no answer came."""
import contextlib
import http.server
import json
import os
import pathlib
import pty
import signal
import subprocess
import threading

import numpy as np

import harness
from client import KUBEML, Shell, answering, endless, ready, shell
from harness import case, until


@case(limit=60, platform=False)
def a_proxy_of_the_environment_is_not_asked_for_this_machine():
    with answering({"/function": ([{"name": "a"}], None)}) as s:
        nobody = "http://127.0.0.1:1"
        s.environment.update({"http_proxy": nobody, "all_proxy": nobody, "no_proxy": "", "NO_PROXY": ""})
        assert s.json("function", "list") == [{"name": "a"}]


@case(limit=60, platform=False)
def a_dataset_whose_name_is_taken_is_not_sent():
    with answering({"/dataset/taken": ({"name": "taken"}, None)}) as s:  # that takes no upload
        (s.folder / "x.npy").write_bytes(b"x")
        assert 'dataset "taken" exists' in s.run("dataset", "create", "--name", "taken", "--traindata", "x.npy", status=1)[1]


@case(limit=60, platform=False)
def an_upload_without_an_answer_may_still_be_under_way():
    """A refusal is an answer."""
    lost = {"POST /dataset/new": 1}
    with answering({}, lost) as s:
        (s.folder / "x.npy").write_bytes(b"x")
        create = ("dataset", "create", "--name", "new", "--traindata", "x.npy")
        assert "`kubeml dataset list` shows it" in s.run(*create, status=1)[1]
        said = s.run(*create, status=1)[1]
        assert "none" in said and "dataset list" not in said, said
    assert not any(lost.values()), lost


@case(limit=60, platform=False)
def a_job_without_an_answer_may_have_been_taken():
    """A refusal is an answer, and who was not reached took nothing."""
    lost, train = {"POST /train": 1}, ("train", "-f", "a", "-d", "b")
    with answering({}, lost) as s:
        assert "`kubeml task list` shows it" in s.run(*train, status=1)[1]
        said = s.run(*train, status=1)[1]
        assert "none" in said and "task list" not in said, said
    assert not any(lost.values()), lost
    said = Shell(KUBEML_URL="http://127.0.0.1:1").run(*train, status=1)[1]
    assert "kubeml up" in said and "task list" not in said, said


@case(limit=60, platform=False)
def what_was_read_without_an_answer_is_asked_again():
    """A controller that stops leading ends its connections. What changes something may have been done: it is not repeated."""
    lost = {"GET /function": 1, "GET /function/a": 9, "DELETE /function/a": 1}
    with answering({"/function": ([{"name": "a"}], None), "/function/a": ([], None)}, lost) as s:
        assert s.json("function", "list") == [{"name": "a"}]
        s.refused("function", "get", "a", says="Empty reply from server")
        s.refused("function", "delete", "a", says="Empty reply from server")
    assert lost == {"GET /function": 0, "GET /function/a": 7, "DELETE /function/a": 0}, lost


@case(limit=60, platform=False)
def a_whole_test_set_is_asked_for_in_small_pieces():
    """9.8 MB of JSON, in requests of 2 MiB and the rest of a sample: others are answered between and beside them."""
    with answering({"/infer": ({"predictions": [7]}, None)}) as s:
        np.save(s.folder / "many.npy", np.zeros((6000, 1, 28, 28), np.uint8))
        assert s.out("infer", "-n", "a", "--datafile", "many.npy").split() == ["7"] * 5
        np.save(s.folder / "large.npy", np.zeros((2, 1, 1500, 1000), np.uint8))
        assert s.out("infer", "-n", "a", "--datafile", "large.npy").split() == ["7"] * 2


@case(limit=60, platform=False)
def what_a_takeover_refuses_is_asked_again():
    """Also of what is no JSON: a log, a model, an upload."""
    pages = {"/tasks/a/logs": ("all of it\n", None), "/model/a?format=safetensors": ("weights", None),
             "/infer": ({"predictions": [7]}, None), "/function/f": ({"name": "f", "version": 1}, None)}
    refused = {"GET /tasks/a/logs": 1, "GET /model/a?format=safetensors": 1, "POST /infer": 1, "POST /function/f": 1}
    with answering(pages, refused=refused) as s:
        assert s.out("logs", "a") == "all of it\n"
        assert s.out("model", "export", "a", "-o", "-") == "weights"
        (s.folder / "one.json").write_text("[[[[0]]]]")
        assert "7" in s.out("infer", "-n", "a", "--datafile", "one.json")
        (s.folder / "f.c").write_text("")
        s.out("function", "create", "--name", "f", "--code", "f.c")
    assert not any(refused.values()), refused


@case(limit=60, platform=False)
def a_log_is_asked_for_again_when_who_told_of_its_job_has_gone():
    """It died between the two. Who tells of the job after it, and refuses its log, is not asked on and on."""
    log, stream = "ps          | all of it\n", "/tasks/a/logs?follow=true"
    pages = {"/tasks/a": ({"state": "succeeded"}, None), stream: (log, None)}
    with answering(pages, lost={f"GET {stream}": 1}) as s:
        assert s.out("logs", "-f", "a") == log
    with answering(pages, refused={f"GET {stream}": 1}) as s:
        assert s.out("logs", "-f", "a") == log
    refused = {f"GET {stream}": 9}
    with answering(pages, refused=refused) as s:
        s.refused("logs", "-f", "a", says="there is no room")
    assert refused == {f"GET {stream}": 7}, refused


TIMES = 30
CLOCK = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *);
    static long long begin;
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, out);
    if (clock != CLOCK_MONOTONIC)
        return status;
    long long now = out->tv_sec * 1000000000LL + out->tv_nsec;
    begin = begin ? begin : now;
    now = begin + (now - begin) * TIMES;
    *out = (struct timespec){now / 1000000000, now % 1000000000};
    return status;
}
"""


@contextlib.contextmanager
def telling(says):
    """The shell of somebody whose platform sends `says(path, wait)`, piece by piece; there wait(seconds) ends with the test. The
    shell's clock goes TIMES as fast, as do these seconds: what takes minutes is over in some of ours."""
    if harness.SANITIZER:
        harness.skip("a sanitizer wants to be the first library, before the clock")
    over = threading.Event()

    def wait(seconds=None):
        over.wait(seconds and seconds / TIMES)

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # whose client has hung up meanwhile
                for piece in says(self.path, wait):
                    self.wfile.write(piece)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        s = Shell(KUBEML_URL=f"http://127.0.0.1:{server.server_port}")
        clock = s.folder / s.write("clock.c", CLOCK.replace("TIMES", str(TIMES)))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", clock.with_suffix(".so"), clock], check=True)
        s.environment["LD_PRELOAD"] = str(clock.with_suffix(".so"))
        try:
            yield s
        finally:
            over.set()
            server.shutdown()


def state(name):
    return json.dumps({"id": "a", "state": name}).encode()


@case(limit=90, platform=False)
def what_is_followed_is_given_up_when_nothing_comes():
    """The platform is there again once in between."""
    asked = []

    def says(path, wait):
        asked.append(path)
        if path == "/tasks/a" and asked.count(path) in (1, 3):
            yield state("running")
            return
        if path == "/tasks/a/events" and asked.count(path) == 2:
            yield b": here\n\n"
        if path.endswith("follow=true"):
            yield b"ps          | one\n" + (b"ps          | two\n" if asked.count(path) == 2 else b"")
        wait()
    with telling(says) as s, s.follow("task", "wait", "a", stderr=subprocess.PIPE) as waiting:
        with s.follow("logs", "-f", "a", stderr=subprocess.PIPE) as log:
            for process, told in ((waiting, ""), (log, "ps          | one\nps          | two\n")):
                out, said = process.communicate(timeout=60 * harness.STRETCH)
                assert process.returncode == 1 and out == told, (process.returncode, out, said)
                assert said.count("the platform does not answer, and is asked again for 3 minutes: ") == 2, said
                assert "Nothing has come for 3 minutes, but the job may still run: `kubeml task get a` shows it." in said, said
    assert asked.count("/tasks/a/events") > 2 and asked.count("/tasks/a") > 2, asked


@case(limit=90, platform=False)
def what_is_followed_may_say_nothing_for_long():
    """Who sends the events pings; who sends a log tells of its job when it is asked for it."""
    states = ["running"]

    def says(path, wait):
        if path == "/tasks/a":
            yield state(states[-1])
        elif path == "/tasks/a/events":
            yield b"event: state\ndata: " + state("running") + b"\n\n"
            for _ in range(20):
                wait(15)
                yield b": here" + 60 * b"!" + b"\n\n"  # libcurl, which looks less often by this clock, takes a few bytes for none
            yield b"event: state\ndata: " + state("succeeded") + b"\n\n"
        else:
            yield b"ps          | one\n"
            if states == ["running"]:
                wait(300)
                yield b"ps          | two\n"
                states.append("succeeded")
    with telling(says) as s, s.follow("task", "wait", "a", stderr=subprocess.PIPE) as waiting:
        with s.follow("logs", "-f", "a", stderr=subprocess.PIPE) as log:
            for process, told in ((waiting, ("", "succeeded\n")), (log, ("ps          | one\nps          | two\n", ""))):
                assert process.communicate(timeout=60 * harness.STRETCH) == told and process.returncode == 0


@case(limit=90)
def who_stops_watching_hears_that_the_job_runs_on(p):
    s = ready(p)
    watch = ("train", "-f", p.paced(), "-d", "tiny", "-e", 50000, "-p", 2, "--watch")
    with s.follow(*watch, stderr=subprocess.PIPE) as watching:
        assert watching.stdout.readline(), "its first epoch is trained"
        watching.send_signal(signal.SIGINT)
        said = watching.stderr.read()
        assert watching.wait() == -signal.SIGINT
    job = said.split()[1]
    assert f"job {job} runs on: `kubeml task wait {job} --watch` follows it, `kubeml task stop {job}` ends it" in said, said
    assert s.json("task", "get", job)["state"] == "running"
    s.out("task", "stop", job)


@case(limit=60, platform=False)
def top_again_and_again():
    """Apart where they go into a file or a pipe, one in the other's place on a terminal; and also after a restart."""
    row = {"job": "a1", "function": 0, "cpu_percent": 99.4, "memory_bytes": 5 << 20}
    lost = {"GET /usage": 0}
    with answering({"/usage": ([row], None)}, lost) as s:
        for format, begin, apart in (("table", "", "\n"), ("yaml", "---\n", "---\n"), ("json", "", "")):
            once = s.out("top", "-o", format)
            with s.follow("top", "--watch", "-o", format) as watching:
                wanted = begin + once + apart + once
                told = watching.stdout.read(len(once))
                lost["GET /usage"] = 2  # one is asked again by every command
                told += watching.stdout.read(len(wanted) - len(once))
                assert told == wanted, (told, wanted)
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as terminal, subprocess.Popen([str(KUBEML), "top", "-w"], stdout=terminal,
                                                                  env=s.environment) as watching:
            shown = b""
            while shown.count(b"\n") < 4:
                shown += os.read(ours, 1 << 16)
            watching.kill()
        os.close(ours)
    tables = shown.decode().replace("\r", "").split("\033[H\033[J")
    assert tables[0] == "" and tables[1] == tables[2] and "JOB" in tables[1], tables


@case(limit=90)
def logs_are_followed_to_the_end(p):
    s = ready(p)
    job = endless(s)
    with s.follow("logs", "--id", job, "-f") as follow:
        first = follow.stdout.readline()
        assert "kubeml" in first and follow.poll() is None, "it does not end before the job does"
        s.out("task", "stop", job)
        rest = follow.stdout.read()  # to its end; the case's limit is the deadline
        assert follow.wait() == 0
    assert "epoch=1 " in rest and "epoch=0 " not in rest, "epochs count from 1, as in the table"
    assert "finished: state=cancelled" in rest, rest[-400:]


def is_probed(process):
    """One of its connections has a timer that asks a silent peer whether it is there."""
    held = set(harness.opened_by(process.pid))
    rows = [line.split() for line in pathlib.Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
    return any(f"socket:[{row[9]}]" in held and row[5].startswith("02:") for row in rows)


@case(limit=90)
def what_is_followed_notices_a_peer_that_is_silently_gone(p):
    s = ready(p)
    job = endless(s)
    for words in (("task", "wait", "--watch", job), ("logs", "-f", job)):
        with s.follow(*words) as follow:
            assert follow.stdout.readline()
            until(lambda: is_probed(follow), message=f"{words}: nothing asks whether the platform is there")
    s.out("task", "stop", job)


def by_process(log):
    """{process: its lines}: theirs is the order that every reading of a log keeps."""
    out = {}
    for line in log.splitlines():
        who, text = line.split("| ", 1)
        out.setdefault(who.strip(), []).append(text)
    return out


@case(limit=120, platform=False)
def a_followed_log_goes_on_when_the_controller_is_back():
    """Where it was: nothing comes twice, and nothing is left out; whether its pods outlive the controller or not."""
    with harness.Platform() as p:
        p.options += ["--listen", p.url.removeprefix("http://")]
        p.dataset()
        job = p.train(p.paced(), epochs=50000)
        s = shell(p)
        with s.follow("logs", "-f", job) as follow:
            told = follow.stdout.readline()
            for goes in (p.kill, p.stop):
                until(lambda: p.task(job)["epoch"] >= 1)
                goes()
                p.start()
                before = p.task(job)["epoch"]
                until(lambda: p.task(job)["epoch"] > before)
            assert follow.poll() is None, "it ended before the job did"
            p.delete(f"/tasks/{job}")
            told += follow.stdout.read()  # to its end; the case's limit is the deadline
            assert follow.wait() == 0
        log = by_process(p.get(f"/tasks/{job}/logs").decode())
        assert by_process(told) == log and "finished: state=cancelled" in told, (by_process(told), log)
    s.refused("logs", "-f", job, says=["connect", "kubeml up"])


@case(limit=120)
def a_log_is_taken_from_the_platform_however_slowly_it_is_read(p):
    """Somebody reads in a pager for longer than the platform waits for a client that takes nothing."""
    s = ready(p)
    p.function("talks", harness.talking_code(40000))
    job = p.train("talks", epochs=1)
    p.succeed(job)
    log = p.get(f"/tasks/{job}/logs").decode()
    assert len(log) > 2 * (4 << 20), "more than pipes and sockets hold"
    for words in (("logs", job), ("logs", "-f", job)):
        with s.follow(*words) as follow:
            first = follow.stdout.readline()
            until(lambda: not harness.is_connected(follow), message="the rest is not taken while nobody reads it")
            assert follow.poll() is None, "its end is written when it is read"
            assert first + follow.stdout.read() == log
            assert follow.wait(30 * harness.STRETCH) == 0


@case(limit=90)
def what_is_followed_ends_with_who_reads_it(p):
    s = ready(p)
    job = endless(s)
    for words in (("task", "wait", "--watch", job), ("logs", "-f", job)):
        with s.follow(*words) as follow:
            assert follow.stdout.readline()
            follow.stdout.close()
            assert follow.wait(30 * harness.STRETCH) == 1, words
    assert s.json("task", "get", job)["state"] == "running"
    s.out("task", "stop", job)
    job = p.train(p.paced(3600), epochs=1)
    with s.follow("logs", "-f", job) as follow:
        assert any("joined" in line for line in follow.stdout)
        follow.stdout.close()
        assert follow.wait(30 * harness.STRETCH) == 1, "no line may come for as long as a batch takes"
    s.out("task", "stop", job)


if __name__ == "__main__":
    harness.main(globals())
