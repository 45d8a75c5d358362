#!/usr/bin/python3
"""The command line: every verb against a running platform, its formats, its exit statuses (0 done, 1
failed, 2 wrong usage), and what it says when the input is wrong."""
import gzip
import contextlib
import fcntl
import http.server
import json
import os
import pathlib
import pickle
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading

import numpy as np
import yaml

import harness
from harness import case, until

KUBEML = harness.BIN / "kubeml"
MODEL = ("#include <kubeml.h>\n\nstatic kml_tensor model(kml_graph *g, kml_tensor x)\n{\n"
         "    return kml_linear(g, kml_flatten(g, x), %s);\n}\n\nKUBEML_FUNCTION(.model = model);\n")


class Shell:
    """A user's shell: a folder, and the environment of one platform."""

    def __init__(self, **environment):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="s", dir=os.environ.get("TEST_TMP")))
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBEML_")}
        self.environment.update({k: str(v) for k, v in environment.items()})

    def run(self, *words, status=0, seconds=60):
        """(stdout, stderr) of `kubeml WORDS`."""
        done = subprocess.run([str(KUBEML), *map(str, words)], capture_output=True, text=True, cwd=self.folder,
                              stdin=subprocess.DEVNULL, timeout=seconds * harness.STRETCH, env=self.environment)
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout, done.stderr

    def out(self, *words, **more):
        return self.run(*words, **more)[0]

    def json(self, *words):
        return json.loads(self.out(*words, "-o", "json"))

    @contextlib.contextmanager
    def follow(self, *words, stderr=subprocess.DEVNULL):
        """`kubeml WORDS` while it runs; killed at the end, or what failed meanwhile would wait for it unsaid."""
        with subprocess.Popen([str(KUBEML), *map(str, words)], stdout=subprocess.PIPE, stderr=stderr, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                              cwd=self.folder, env=self.environment) as process:
            try:
                yield process
            finally:
                process.kill()

    def without_room(self, *words):
        """What it says where its standard output is a full disk."""
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(KUBEML), *map(str, words)], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                                  text=True, cwd=self.folder, timeout=60 * harness.STRETCH, env=self.environment)
        assert done.returncode == 1, (words, done.returncode, done.stderr)
        return done.stderr

    def refused(self, *words, says, status=1):
        """It fails with that status, says these words, and prints nothing that a script would take."""
        out, problem = self.run(*words, status=status)
        assert out == "", (words, out)
        for part in [says] if isinstance(says, str) else says:
            assert part in problem, (words, part, problem)

    def write(self, name, data):
        (self.folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return name


def shell(p, **environment):
    return Shell(**p.environment(), **environment)


def upload(s, name="tiny"):
    """tiny_mnist, from gzipped files."""
    files = {k: s.write(f"{k}.gz", gzip.compress(v)) for k, v in harness.tiny_mnist().items()}
    s.out("dataset", "create", "--name", name, "--traindata", files["x-train"], "--trainlabels", files["y-train"],
          "--testdata", files["x-test"], "--testlabels", files["y-test"])


def ready(p):
    s = shell(p)
    upload(s)
    s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
    return s


def train(s, *more, epochs=2):
    return s.out("train", "-f", "lenet", "-d", "tiny", "-e", epochs, "-b", 32, "--lr", 0.01, "-p", 2, "--static",
                 *more).strip()


def endless(s):
    """A job that runs until it is stopped."""
    job = train(s, epochs=50000)
    until(lambda: s.json("task", "get", job)["epoch"] >= 1)
    return job


def table(text):
    """Rows of a table as dictionaries; columns are two blanks apart."""
    head, *rows = text.splitlines()
    return [dict(zip(head.split(), row.split())) for row in rows]


def safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + size])
    head.pop("__metadata__", None)
    return {k: np.frombuffer(raw[8 + size:], np.float32, (v["data_offsets"][1] - v["data_offsets"][0]) // 4,
                             v["data_offsets"][0]).reshape(v["shape"])
            for k, v in head.items() if v["dtype"] == "F32"}


# ---- the platform itself ------------------------------------------------------------------------

@case(platform=False)
def up_status_down():
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "deep/home")
    out = s.out("up", "--listen", "127.0.0.1:0", "--slots", 5)
    try:
        url = out.split(" at ")[1].split()[0]
        assert f"export KUBEML_URL={url}" in out and "controller.log" in out, out
        s.environment["KUBEML_URL"] = url
        assert s.out("status").splitlines() == [f"{s.out('version').splitlines()[0]} at {url}: ready",
                                                "jobs: 0 running, 0 queued; slots: 5 of 5 free"], s.out("status")
        assert s.json("status")["checks"]["slots"] == 5, s.json("status")
        assert s.out("version").count("\n") == 2 and url in s.out("version")
        upload(s)
        port = url.rsplit(":", 1)[1]
        s.refused("up", "--listen", f"127.0.0.1:{port}", says=["another controller runs on", f"the platform is up already at {url}"])
        said = s.run("up", "--gpus", "some", status=1)[1]
        assert "must be auto, all or none" in said and "up already" not in said, said
        other = Shell(KUBEML_HOME=s.folder / "other")
        other.refused("up", "--listen", f"127.0.0.1:{port}", says=f"port {port} on 127.0.0.1 is taken")
        assert "tiny" in s.out("dataset", "list"), "the first one is untouched"
    finally:
        assert s.out("down") == "kubeml is down\n"
    assert not harness.processes_of(s.folder), harness.processes_of(s.folder)
    s.refused("status", says=["connect", "kubeml up"])
    assert "no platform at" in s.out("version")
    assert "no platform runs in" in s.out("down")
    s.out("up", "--listen", "127.0.0.1:0")
    s.out("down")
    s.refused("up", "--listen", "127.0.0.1:99999", status=2, says='not "127.0.0.1:99999"')


@case(platform=False)
def down_ends_what_a_killed_controller_left():
    """The next controller would take it over; who wants none is rid of it all the same, and the job is not."""
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "home")
    s.environment["KUBEML_URL"] = s.out("up", "--listen", "127.0.0.1:0").split(" at ")[1].split()[0]
    try:
        upload(s)
        s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
        job = endless(s)
        controller = int((s.folder / "home/run/controller.pid").read_text())
        os.kill(controller, signal.SIGKILL)
        until(lambda: not harness.alive(controller))
        records = [json.loads(record.read_text()) for record in (s.folder / "home/run/pods").glob("*.json")]
        # The job's: one for the pool may have been on its way just then, and ends with who starts it.
        pods = [record["pid"] for record in records if record["job"] == job]
        assert len(pods) >= 3 and all(harness.alive(pid) for pid in pods), "they went with it: this shows nothing"
        said = s.out("down")
        assert re.fullmatch(r"ended \d+ processes that a killed controller had left\nkubeml is down\n", said), said
        assert not any(harness.alive(pid) for pid in pods), pods
        assert not harness.processes_of(s.folder), harness.processes_of(s.folder)
        assert "no platform runs in" in s.out("down")
        s.environment["KUBEML_URL"] = s.out("up", "--listen", "127.0.0.1:0").split(" at ")[1].split()[0]
        until(lambda: s.json("task", "get", job)["state"] == "running")
    finally:
        s.out("down")
    assert not harness.processes_of(s.folder), harness.processes_of(s.folder)


@case(platform=False)
def a_home_is_relative_to_where_the_platform_is_started():
    """Its pods run elsewhere."""
    s = Shell()
    s.environment["KUBEML_HOME"] = "here/home"
    s.environment["KUBEML_URL"] = s.out("up", "--listen", "127.0.0.1:0").split(" at ")[1].split()[0]
    try:
        upload(s)
        s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
        s.out("task", "wait", train(s))
        job = endless(s)
        controller = int((s.folder / "here/home/run/controller.pid").read_text())
        os.kill(controller, signal.SIGKILL)
        until(lambda: not harness.alive(controller))
        records = [json.loads(record.read_text()) for record in (s.folder / "here/home/run/pods").glob("*.json")]
        pods = [record["pid"] for record in records if record["job"] == job]
        assert pods and all(map(harness.alive, pods)), "they went with it: this shows nothing"
    finally:
        assert "kubeml is down\n" in s.out("down")
    assert not any(map(harness.alive, pods)), pods


@case(platform=False)
def up_that_cannot_start():
    s = Shell()
    s.environment["KUBEML_HOME"] = s.write("file", "")
    s.refused("up", "--listen", "127.0.0.1:0", says="file")
    s.environment["KUBEML_HOME"] = str(s.folder / "home")
    s.refused("up", "--listen", "0.0.0.0:0", says="needs a token")
    s.refused("up", "--listen", "nonsense", says="HOST:PORT", status=2)
    s.refused("up", "--slots", "0", says="--slots", status=2)
    s.refused("up", "--listen", "127.0.0.1:0", "--token-file", "none", says="none")
    assert not harness.processes_of(s.folder)


@case(platform=False)
def a_token():
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "home")
    s.write("token", "sesame\n")
    out = s.out("up", "--listen", "127.0.0.1:0", "--token-file", "token")
    try:
        s.environment["KUBEML_URL"] = out.split(" at ")[1].split()[0]
        s.refused("task", "list", says="KUBEML_TOKEN")
        s.environment["KUBEML_TOKEN"] = "sesam"
        s.refused("task", "list", says="KUBEML_TOKEN")
        s.environment["KUBEML_TOKEN"] = "sesame"
        s.out("task", "list")
    finally:
        s.out("down")


@case(limit=120, platform=False)
def users_have_tokens_of_their_own():
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "home")

    def up():
        out = s.out("up", "--listen", "127.0.0.1:0", "--token-file", "tokens")
        s.environment["KUBEML_URL"] = out.split(" at ")[1].split()[0]
    s.write("tokens", "anna:of-anna\nben\n\nan na:x\n")
    s.refused("up", "--listen", "127.0.0.1:0", "--token-file", "tokens", says=["tokens: line 4", "user name"])
    s.write("tokens", "# the team's\nanna:of-anna\nben:of-ben\n\nof-nobody\n")
    up()
    try:
        s.environment["KUBEML_TOKEN"] = "anna:of-anna"
        s.refused("task", "list", says="KUBEML_TOKEN")
        jobs = {}
        for user, token in (("anna", "of-anna"), ("ben", "of-ben"), (None, "of-nobody")):
            s.environment["KUBEML_TOKEN"] = token
            if not jobs:
                upload(s)
                s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
            jobs[train(s)] = user
            s.out("task", "wait", list(jobs)[-1])
        head, *lines = s.out("task", "list", "--all", "-o", "wide").splitlines()
        assert head.split()[-2:] == ["USER", "REASON"], head
        rows = {line.split()[0]: line.split()[-2] for line in lines}
        log = (s.folder / "home/controller.log").read_text()
        for job, user in jobs.items():
            assert s.json("task", "get", job)["user"] == user and rows[job] == (user or "-"), rows
            assert (f"job={job} asked for by {user}" in log) == bool(user), log
        assert "of-anna" not in log and "of-nobody" not in log
        s.out("down")
        up()
        assert {t["id"]: t["user"] for t in s.json("task", "list", "--all")} == jobs
        s.environment["KUBEML_TOKEN"] = "of-nobody"
        anna, ben, nobody = jobs
        assert s.run("history", "prune", "--user", "an") == ("", "nothing to be deleted\n")
        assert s.out("history", "prune", "--user", "anna") == f"history {anna} deleted\n"
        waits = [train(s, "-p", 4, epochs=50000), train(s, "-p", 4)]
        assert s.run("task", "prune", "--user", "ben") == ("", "nothing to be stopped\n")
        out = s.out("task", "prune")
        assert all(job in out for job in waits), out
        out = s.out("history", "prune")  # of all users
        assert ben in out and nobody in out, out
    finally:
        s.out("down")


# ---- from upload to model --------------------------------------------------------------------------

@case(limit=90)
def a_job_by_hand(p):
    s = ready(p)
    job = train(s)
    assert len(job) == 12 and job.isalnum(), job
    out, said = s.run("task", "wait", job, "--watch")
    assert [line.split()[0] for line in out.splitlines()] == ["epoch", "1", "2"], out
    assert said.splitlines()[-1] == "succeeded: 2 epochs are trained", said
    assert "Completed" in s.out("explain", job) and s.json("explain", job)["reason"] == "Completed"
    history = s.json("history", "get", "--id", job)
    assert len(history["data"]["accuracy"]) == 2 and history["state"] == "succeeded", history
    assert "joined" in s.out("logs", "--id", job)
    until(lambda: "finished" in s.out("function", "logs", "lenet"), 30, message="the last words of kubeml-ps are not told")

    s.out("model", "export", "--id", job, "-o", "m.safetensors")
    s.out("model", "export", job, "-o", "m.npz")
    tensors, arrays = safetensors(s.folder / "m.safetensors"), np.load(s.folder / "m.npz")
    names = [f"{layer}.{what}" for layer in ("conv1", "conv2", "fc1", "fc2", "fc3") for what in ("weight", "bias")]
    assert sorted(tensors) == sorted(arrays.files) == sorted(names), arrays.files
    assert sum(t.size for t in tensors.values()) == 61706
    assert all((arrays[k] == tensors[k]).all() for k in tensors)
    assert sorted(f.name for f in s.folder.glob("m.*")) == ["m.npz", "m.safetensors"]

    # A link's target is meant, and a device is no file to be replaced.
    (s.folder / "link.npz").symlink_to("m.npz")
    (s.folder / "m.npz").write_bytes(b"old")
    s.out("model", "export", job, "-o", "link.npz")
    for name in ("-", "/dev/stdout"):
        piped = subprocess.run([str(KUBEML), "model", "export", job, "-o", name], capture_output=True, cwd=s.folder,
                               env=s.environment, timeout=60 * harness.STRETCH)
        assert piped.returncode == 0 and piped.stdout == (s.folder / "m.safetensors").read_bytes(), (name, piped.stderr)
        # What stands in the file that standard output is stays there.
        with open(s.folder / "more", "w+b") as more:
            more.write(b"header\n")
            more.flush()
            subprocess.run([str(KUBEML), "model", "export", job, "-o", name], stdout=more, stderr=subprocess.DEVNULL, cwd=s.folder,
                           env=s.environment, timeout=60 * harness.STRETCH, check=True)
        assert (s.folder / "more").read_bytes() == b"header\n" + piped.stdout, name
        closed = subprocess.Popen([str(KUBEML), "model", "export", job, "-o", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  cwd=s.folder, env=s.environment)
        closed.stdout.close()
        assert (closed.stderr.read(), closed.wait(60 * harness.STRETCH)) == (b"", 1), name
    assert (s.folder / "link.npz").is_symlink() and "fc1.bias" in np.load(s.folder / "m.npz").files
    (s.folder / "full").symlink_to("/dev/full")
    s.refused("model", "export", job, "-o", "full", says="/dev/full: No space left on device")
    assert (s.folder / "full").is_char_device() and not list(s.folder.glob("*.part*"))
    s.refused("model", "export", job, "-o", ".", says=".: is a folder, not a file")
    for words in (("dataset", "list"), ("history", "get", "--id", job, "-o", "json"), ("logs", "--id", job), ("--help",),
                  ("model", "export", job, "-o", "-")):
        assert s.without_room(*words) == "kubeml: standard output: No space left on device\n", words

    images = np.frombuffer(harness.tiny_mnist()["x-test"], np.uint8, offset=16).reshape(-1, 1, 28, 28)[:5]
    np.save(s.folder / "five.npy", images)
    np.save(s.folder / "one.npy", images[0])
    s.write("five.json", json.dumps(images.tolist()))
    guesses = s.out("infer", "-n", job, "--datafile", "five.npy")
    assert len(guesses.split()) == 5 and guesses == s.out("infer", "-n", job, "--datafile", "five.json")
    assert s.out("infer", "-n", job, "--datafile", "one.npy").split() == guesses.split()[:1]
    answer = json.loads(s.out("infer", "-n", job, "--datafile", "five.npy", "-o", "json"))
    assert np.argmax(answer["logits"], 1).tolist() == answer["predictions"] == [int(g) for g in guesses.split()]


@case(limit=90)
def epochs_are_shown_while_the_job_runs(p):
    s = ready(p)
    job = endless(s)
    done = s.json("task", "get", job)["epoch"]
    with s.follow("task", "wait", job, "--watch") as watching:
        head = watching.stdout.readline()
        assert head.split() == "epoch train loss val loss accuracy % seconds parallelism".split(), head
        for epoch in range(1, done + 3):  # two of them come after it began to watch
            line = watching.stdout.readline()
            number, train_loss, loss, accuracy, seconds, parallelism = line.split()
            assert len(line) == len(head) and (number, parallelism) == (str(epoch), "2"), (head, line)
            # After some hundred epochs a loss is 0.0000.
            assert min(map(float, (train_loss, loss, seconds))) >= 0 and 0 <= float(accuracy) <= 100, line
        assert watching.poll() is None and s.json("task", "get", job)["state"] == "running"
        s.out("task", "stop", job)
        watching.stdout.read()  # to its end; the case's limit is the deadline
        assert watching.wait() == 1
    data = s.json("history", "get", job)["data"]
    assert (train_loss, loss) == tuple(f"{data[k][epoch - 1]:.4f}" for k in ("train_loss", "validation_loss")), (line, epoch)


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


@case(limit=90)
def going_on_from_a_model(p):
    s = ready(p)
    first = train(s, "--watch", epochs=3)
    job = s.json("task", "list", "--all")[0]["id"]
    assert job not in first, "the table alone is on stdout"
    s.out("model", "export", job, "-o", "m.safetensors")
    fresh = s.json("history", "get", job)["data"]["train_loss"][0]
    ids = [train(s, "--init", init, epochs=1) for init in (job, "m.safetensors", f"{s.folder}/m.safetensors")]
    for again in ids:
        s.out("task", "wait", again)
        # What is started anew are the optimizer's momenta; the weights are those that were reached.
        assert s.json("history", "get", again)["data"]["train_loss"][0] < fresh, "it began from scratch"
    shas = {s.json("task", "get", again)["sha256"] for again in ids[1:]}
    assert len(shas) == 1, "one file, one result"
    s.refused("train", "-f", "lenet", "-d", "tiny", "--init", "none.safetensors", says="--init: no file none.safetensors")
    s.refused("train", "-f", "lenet", "-d", "tiny", "--init", "/", says="--init: / is a folder")
    s.refused("train", "-f", "lenet", "-d", "tiny", "--init", "none", says='no model "none"')
    s.write("bad.safetensors", "no weights")
    s.refused("train", "-f", "lenet", "-d", "tiny", "--init", "bad.safetensors", says="--init bad.safetensors: safetensors: ")


@case(limit=90)
def what_was_uploaded_for_a_job_that_is_refused_goes_again(p):
    s = ready(p)
    job = train(s, epochs=1)
    s.out("task", "wait", job)
    s.out("model", "export", job, "-o", "m.safetensors")
    before = p.models()
    s.refused("train", "-f", "none", "-d", "tiny", "--init", "m.safetensors", says='no function "none"')
    s.refused("train", "-f", "lenet", "-d", "tiny", "-e", 0, "--init", "m.safetensors", says="epochs")
    assert before and p.models() == before, (before, p.models())


SMALL = """#include <kubeml.h>

static kml_tensor model(kml_graph *g, kml_tensor x)
{
    x = kml_conv2d(g, x, .name = "conv1", .filters = 4, .kernel = 3, .padding = 1, .no_bias = true);
    x = kml_max_pool2d(g, kml_relu(g, kml_batch_norm2d(g, x, .name = "bn1")), .kernel = 2);
    x = kml_conv2d(g, x, .name = "layer1.0.conv1", .filters = 8, .kernel = 3, .padding = 1);
    x = kml_relu(g, kml_batch_norm2d(g, x, .name = "layer1.0.bn1"));
    x = kml_flatten(g, kml_global_avg_pool2d(g, x));
    return kml_linear(g, x, kml_classes(g), .name = "fc");
}

KUBEML_FUNCTION(.model = model);
"""
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden/checkpoint.safetensors"


def header(path):
    raw = pathlib.Path(path).read_bytes()
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])


@case(limit=90)
def weights_from_pytorch_and_back(p):
    s = shell(p)
    random = np.random.default_rng(1)
    np.save(s.folder / "x.npy", random.integers(0, 255, (24, 8, 8), dtype=np.uint8))
    np.save(s.folder / "y.npy", np.arange(24) % 3)
    s.out("dataset", "create", "--name", "small", "--traindata", "x.npy", "--trainlabels", "y.npy",
          "--testdata", "x.npy", "--testlabels", "y.npy")
    s.out("function", "create", "--name", "small", "--code", s.write("small.c", SMALL))
    train = ("train", "-f", "small", "-d", "small", "-e", 1, "-b", 8, "-p", 1, "--lr", 1e-30)
    job = s.out(*train, "--init", GOLDEN).strip()
    s.out("task", "wait", job)
    s.out("model", "export", job, "-o", "back.safetensors")
    theirs, ours = header(GOLDEN), header(s.folder / "back.safetensors")
    assert ours["__metadata__"] == {"format": "pt"}, ours["__metadata__"]
    shapes = lambda h: {k: (v["dtype"], v["shape"]) for k, v in h.items() if k != "__metadata__"}  # noqa: E731
    assert shapes(ours) == shapes(theirs), ours
    before, after = safetensors(GOLDEN), safetensors(s.folder / "back.safetensors")
    for name, t in before.items():  # a step of 1e-30 moves no weight; the running statistics move
        assert ((t == after[name]).all() if "running" not in name else (t != after[name]).any()), name
    renamed = GOLDEN.read_bytes().replace(b'"fc.bias"', b'"fc.bios"')
    for data, says in ((renamed, "fc.bias"), (GOLDEN.read_bytes().replace(b"[3,8]", b"[8,3]"), "fc.weight has shape (8, 3)")):
        failed = s.out(*train, "--init", s.write("wrong.safetensors", data)).strip()
        said = s.run("task", "wait", failed, status=1)[1]
        assert says in said, said
    s.refused(*train, "--init", s.write("cut.safetensors", GOLDEN.read_bytes()[:-5]), says="lie beyond")


@case(limit=90)
def formats(p):
    s = ready(p)
    job = train(s)
    s.out("task", "wait", job)
    for words, columns in (("dataset list", "NAME TRAIN TEST SHAPE CLASSES"), ("function list", "NAME VERSION KIND"),
                           ("task list --all", "ID STATE EPOCH OF"), ("history list", "ID FUNCTION DATASET EPOCHS"),
                           ("zoo list", "NAME PARAMETERS ABOUT")):
        words = words.split()
        narrow, wide = s.out(*words), s.out(*words, "-o", "wide")
        assert narrow.split()[:len(columns.split())] == columns.split(), narrow
        assert narrow.splitlines()[0] == s.out(*words, "-o", "table").splitlines()[0]
        assert narrow.count("\n") == wide.count("\n"), (narrow, wide)
        assert len(wide.splitlines()[0]) >= len(narrow.splitlines()[0])
        told = s.json(*words)
        assert len(told) == narrow.count("\n") - 1
        # What a job before this one left may still change between two looks.
        until(lambda w=words: yaml.safe_load(s.out(*w, "-o", "yaml")) == s.json(*w), 20,
              message=f"{words}: YAML is read as something else than JSON")
    for words in ("dataset get tiny", "function get lenet", f"task get {job}", f"history get {job}", f"explain {job}",
                  "explain lenet", "status"):
        told = s.json(*words.split())
        if words != "status":
            assert yaml.safe_load(s.out(*words.split(), "-o", "yaml")) == told, words
    assert table(s.out("dataset", "list")) == [
        {"NAME": "tiny", "TRAIN": "512", "TEST": "128", "SHAPE": "1x28x28", "CLASSES": "10"}]
    for words in ("dataset list", "dataset get tiny", "function get lenet", f"task get {job}", f"explain {job}",
                  f"history get {job}", "zoo list", "status"):
        s.refused(*words.split(), "-o", "xml", says='no output format "xml"', status=2)


SCALARS = ["2026-11-21T20:56:38.450Z", "2026-11-21", "2026-11-21 20:56:38", "190:20:30", "1:30", "1_000", "0b101", "0o17",
           "017", "0x1F", "1e5", "1234e56789", "12345678901234567890", "+1", "-1.5", ".5", ".inf", "-.INF", ".nan", "inf", "nan",
           "=", "<<", "~", "", "null", "Yes", "OFF", "n", "true", "- a", "a: b", "#", "2 epochs are trained", "two\nlines", " ",
           "ä", "'", '"', "\\", "*a", "&a", "!a", "%a", "@a", "`a", "{}", "[]", "? a", "---", "..."]
NUMBERS = [0, -1, 9007199254740993, 0.0, 1.0, -2.5, 1e-05, 2e-07, 1e22, -3e+100, 1.5e-300, 0.1, 5e-324, True, False, None]


@contextlib.contextmanager
def answering(pages, lost=None, refused=None):
    """The shell of somebody whose platform has these answers: {path: (rows or text, path of the next page or None)}. `lost`
    says of how many requests ("GET /path": 2) the connection ends without an answer, `refused` how many get a 503."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def is_one_of(self, those):
            asked = f"{self.command} {self.path}"
            if not (those or {}).get(asked):
                return False
            those[asked] -= 1
            return True

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.is_one_of(lost):
                self.close_connection = True
                return
            status = 503 if self.is_one_of(refused) else 200 if self.path in pages else 404
            rows, more = pages[self.path] if status == 200 else ({"detail": "there is no room" if status == 503 else "none"}, None)
            body = (rows if isinstance(rows, str) else json.dumps(rows)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/problem+json" if status == 503 else
                             "text/plain" if isinstance(rows, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            if more:
                self.send_header("Link", f'<{more}>; rel="next"')
            self.end_headers()
            self.wfile.write(body)

        do_DELETE = do_POST = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Shell(KUBEML_URL=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@case(limit=60, platform=False)
def a_proxy_of_the_environment_is_not_asked_for_this_machine():
    with answering({"/function": ([{"name": "a"}], None)}) as s:
        nobody = "http://127.0.0.1:1"
        s.environment.update({"http_proxy": nobody, "all_proxy": nobody, "no_proxy": "", "NO_PROXY": ""})
        assert s.json("function", "list") == [{"name": "a"}]


@case(limit=60, platform=False)
def a_server_that_is_none_of_ours_is_told_with_its_address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        Shell(KUBEML_URL=url).refused("task", "list", says=f"the server answered 501 to {url}/tasks")
        server.shutdown()


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
def a_list_is_read_to_its_last_page():
    with answering({"/function": ([{"name": "a"}], "/function?limit=1&continue=a"),
                    "/function?limit=1&continue=a": ([{"name": "b"}], "/function?limit=1&continue=b"),
                    "/function?limit=1&continue=b": ([], None),
                    "/tasks?state=all": ([{"id": "1", "created": "2026-01-02"}], "/tasks?state=all&continue=1"),
                    "/tasks?state=all&continue=1": ([{"id": "2", "created": "2026-01-01"}], None)}) as s:
        assert s.json("function", "list") == [{"name": "a"}, {"name": "b"}]
        assert [row["id"] for row in s.json("task", "list", "--all")] == ["2", "1"]


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


@case(limit=60, platform=False)
def what_has_targets_is_told_as_such():
    """A number as the platform says it; and no classes are none."""
    reg = {"name": "reg", "train_set_size": 500, "test_set_size": 100, "shape": [8, 1, 1], "dtype": "float32", "classes": 0,
           "targets": 2, "digest": "d1"}
    cls = {**reg, "name": "cls", "classes": 3, "targets": 0, "digest": "d2"}
    with answering({"/infer": ({"predictions": [[1.64222490788, 3.84632205963], [0, -1e-20]]}, None), "/dataset": ([cls, reg], None)}) as s:
        s.write("x.json", "[[1]]")
        assert s.out("infer", "-n", "a", "--datafile", "x.json") == "[1.64222490788,3.84632205963] [0,-1e-20]\n"
        assert [(row["NAME"], row["CLASSES"]) for row in table(s.out("dataset", "list"))] == [("cls", "3"), ("reg", "-")]
        wide = [(row["CLASSES"], row["TARGETS"], row["DIGEST"]) for row in table(s.out("dataset", "list", "-o", "wide"))]
        assert wide == [("3", "-", "d2"), ("-", "2", "d1")], wide


@case(limit=60, platform=False)
def a_loss_without_bounds_keeps_its_column():
    data = {"train_loss": [0.5, 2200036.1622, 1e300], "validation_loss": [0.25, -936120.6428, None],
            "accuracy": [96.02, 9.8, None], "epoch_duration": [1.5, 2.5, 3.5], "parallelism": [4, 4, 4]}
    with answering({"/history/x": ({"id": "x", "data": data}, None)}) as s:
        head, *rows = s.out("history", "get", "x").splitlines()
    assert [len(row) for row in rows] == 3 * [len(head)], (head, rows)
    assert [row.split()[1:3] for row in rows] == [["0.5000", "0.2500"], ["2.2e+06", "-9.361e+05"], ["1e+300", "-"]], rows


@case(limit=60, platform=False)
def yaml_is_read_as_what_json_says():
    """Also by YAML 1.1: times, digits with a colon, and numbers without a point."""
    told = [{"name": "a", "words": SCALARS, "numbers": NUMBERS, **{word: word for word in SCALARS}}]
    with answering({"/function": (told, None)}) as s:
        assert s.json("function", "list") == told
        read = yaml.safe_load(s.out("function", "list", "-o", "yaml"))
    for key, value in told[0].items():
        assert read[0][key] == value, (key, value, read[0][key])
        assert list(map(type, value)) == list(map(type, read[0][key])), (key, value, read[0][key])
    assert read == told


@case(limit=90)
def top(p):
    s = ready(p)
    assert "no function of a job runs" in s.run("top")[1] and s.json("top") == []
    job = endless(s)
    until(lambda: len(s.json("top")) == 2, 20)
    head, *rows = s.out("top").splitlines()
    assert head.split() == "JOB FUNCTION CPU % MEMORY GPU % GPU MEMORY WATTS".split(), head
    for i, row in enumerate(rows):
        id, function, cpu, memory, *gpu = row.split()
        assert (id, function, gpu) == (job, str(i), ["-"] * 3) and memory.endswith("Mi") and int(memory[:-2]) > 0, row
    until(lambda: all(r["cpu_percent"] > 0 for r in s.json("top")), 20)
    s.out("task", "stop", job)
    s.run("task", "wait", job, status=1)
    assert s.json("top") == [], s.json("top")
    used = json.loads(s.out("history", "get", job, "-o", "json"))["usage"]
    assert len(used["cpu_percent"]) == len(used["memory_bytes"]) and max(filter(None, used["memory_bytes"])) > 1 << 20


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
def tasks(p):
    s = ready(p)
    assert "no job waits or runs" in s.run("task", "list")[1] and s.json("task", "list") == []
    job = endless(s)
    row, = table(s.out("task", "list"))
    assert row["ID"] == job and row["STATE"] == "running" and row["OF"] == "50000", row
    s.refused("task", "wait", job, "--timeout", 1, says="did not end within 1 s")
    assert s.out("task", "stop", "--id", job) == f"job {job} stopped\n"
    out, said = s.run("task", "wait", job, status=1)
    assert said.startswith("cancelled: it was stopped"), said
    s.refused("task", "stop", job, says=job)
    before = s.json("task", "get", job)
    listed = s.out("task", "list", "-a")
    assert f"{before['validation_loss']:.4g}" in listed.split(), (listed, before)  # as the accuracy beside it
    done = before["epoch"]
    s.out("task", "resume", job)
    now = s.json("task", "get", job)
    assert now["epoch"] >= done and now["created"] == before["created"], (now, "what was trained is trained")
    until(lambda: s.json("task", "get", job)["epoch"] > done, message="it does not go on")
    waits = train(s, "-p", 4)
    assert s.out("explain", waits).split()[5] == "NoFreeSlot", s.out("explain", waits)
    out = s.out("task", "prune")
    assert job in out and waits in out, out
    until(lambda: s.json("task", "list") == [])
    with s.follow("logs", "-f", job) as follow:
        assert "kubeml-function" in follow.communicate(timeout=30)[0] and follow.returncode == 0


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


@case(limit=90)
def functions_and_histories(p):
    s = ready(p)
    s.write("linear.c", MODEL % "10")
    assert s.out("function", "update", "--name", "lenet", "--code", "linear.c") == "function lenet is at version 2\n"
    assert s.out("function", "update", "--name", "lenet", "--code", "linear.c") == "function lenet is at version 2\n"
    about = s.json("function", "get", "lenet")
    assert about["version"] == 2 and len(about["versions"]) == 2, about
    s.write("warned.c", MODEL.replace("return", "int spare;\n    return") % "10")
    for verb, done in (("create", "created"), ("update", "is at version 1")):  # again it is not compiled, but in a pod of its own
        out, said = s.run("function", verb, "--name", "warned", "--code", "warned.c")
        assert out == f"function warned {done}\n" and ("warning: unused variable 'spare'" in said or verb == "update"), said
    assert "compiler_output" not in s.json("function", "get", "warned"), "a record has none"
    s.out("function", "delete", "warned")
    s.out("function", "create", "-n", "zoo", "--model", "mlp")
    assert [r["MODEL"] for r in table(s.out("function", "list")) if r["NAME"] == "zoo"] == ["mlp"]
    s.out("function", "update", "-n", "zoo", "--model", "mlp,flip=on,crop=4,scale=min_max")
    assert s.json("function", "get", "zoo")["model"] == "mlp,flip=on,crop=4,scale=min_max"
    s.out("task", "wait", s.out("train", "-f", "zoo", "-d", "tiny", "-e", "1").strip())
    suspended, first = endless(s), train(s, "-p", 4)
    s.out("task", "stop", first)
    s.out("history", "prune")
    assert s.json("history", "list") != [] and first not in s.out("task", "list", "-a"), "one that never began goes too"
    s.out("task", "suspend", suspended)
    s.run("task", "wait", suspended, status=1)
    assert suspended not in s.out("history", "prune"), "it is to go on"
    s.refused("history", "delete", suspended, says="stop it first")
    s.out("task", "resume", suspended)
    s.out("task", "stop", suspended)
    s.run("task", "wait", suspended, status=1)
    assert suspended in s.out("history", "prune")
    jobs = [train(s, epochs=1) for _ in range(3)]
    for job in jobs:
        s.out("task", "wait", job)
    listed = [r["ID"] for r in table(s.out("task", "list", "-a"))]
    assert listed == jobs, (listed, jobs)
    # In the order of their starts, and two may start at once.
    assert sorted(r["ID"] for r in table(s.out("history", "list"))) == sorted(jobs)
    s.out("history", "delete", jobs[0])
    s.refused("history", "get", jobs[0], says=jobs[0])
    s.refused("model", "export", jobs[0], "-o", "x.npz", says=jobs[0])
    assert list(s.folder.glob("x.npz*")) == [], "a refused export leaves no file"
    assert s.out("history", "prune").count("deleted") == 2 and s.json("history", "list") == []
    for name in ("lenet", "zoo"):
        s.out("function", "delete", name)
    s.out("dataset", "delete", "--name", "tiny")
    assert s.json("function", "list") == [] and s.json("dataset", "list") == []


@case(limit=120)
def the_same_file_in_one_process(p):
    """kubeml run, and the platform with one function: the same losses."""
    s = ready(p)
    job = s.out("train", "-f", "lenet", "-d", "tiny", "-e", 3, "-b", 32, "--lr", 0.01, "-p", 1, "--static", "--K", -1,
                "--seed", 3).strip()
    s.out("task", "wait", job)
    history = s.json("history", "get", job)
    alone = [json.loads(line) for line in
             s.out("run", harness.LENET, "--dataset", "tiny", "-e", 3, "-b", 32, "--lr", 0.01, "--seed", 3,
                   "--threads", history["plan"]["threads"], "--json").splitlines()]
    alone = [line for line in alone if "train_loss" in line]
    assert len(alone) == 3, alone
    for i, line in enumerate(alone):
        assert abs(line["train_loss"] - history["data"]["train_loss"][i]) < 1e-8, (i, alone, history["data"])
    text = s.out("run", harness.LENET, "--dataset", "tiny", "-e", 1, "-b", 32, "--lr", 0.01)
    assert "epoch" in text and text.startswith("lenet.c: 61706 parameters"), text


@case()
def the_same_when_nothing_is_said(p):
    """Of what both take, the defaults of kubeml run are those of kubeml train."""
    s = ready(p)
    job = s.out("train", "-f", "lenet", "-d", "tiny", "-p", 1, "--static").strip()
    s.out("task", "wait", job)
    history = s.json("history", "get", job)
    alone = [json.loads(line) for line in s.out("run", harness.LENET, "--dataset", "tiny", "--threads",
                                                history["plan"]["threads"], "--json").splitlines()]
    losses = history["data"]["train_loss"]
    assert len(alone) == len(losses), (alone, history)
    assert all(abs(e["train_loss"] - loss) < 1e-8 for e, loss in zip(alone, losses)), (alone, history)


# ---- wrong usage ---------------------------------------------------------------------------------------

@case(platform=False)
def usage():
    s = Shell(KUBEML_URL="http://127.0.0.1:1")
    assert "usage: kubeml [--context NAME] COMMAND" in s.out("--help")
    s.refused(says="usage: kubeml [--context NAME] COMMAND", status=2)
    s.refused("task", says="kubeml task list", status=2)
    s.refused("trian", says='no command "trian"', status=2)
    s.refused("dataset", "crate", says=["dataset has no command \"crate\"", "kubeml dataset create"], status=2)
    s.refused("train", "-d", "x", says="--function NAME is missing", status=2)
    s.refused("train", "-f", "a", "-d", "x", "--bogus", says="no option --bogus", status=2)
    s.refused("train", "-f", "a", "-d", "x", "--bogus=1", says="no option --bogus=1\n", status=2)
    s.refused("train", "-f", "a", "-d", "s", "-xw", says="no option -x\n", status=2)
    s.refused("train", "-f", "a", "-d", "s", "-sx", says="no option -x\n", status=2)
    s.refused("train", "-f", "a", "-d", "s", "-ö", says="no option -ö\n", status=2)
    s.refused("train", "-f", "a", "-d", "x", "--static=yes", says="--static takes no value\n", status=2)
    s.refused("train", "--help=yes", says="--help takes no value\n", status=2)
    s.refused("train", "-f", "a", "-d", "x", "-se", says="-e wants a value", status=2)
    s.refused("train", "-f", "a", "-d", "x", "--epochs", says="--epochs wants a value", status=2)
    s.refused("train", "-f", "a", "-d", "x", "-e", "3x", says='whole number, not "3x"', status=2)
    s.refused("train", "-f", "a", "-d", "x", "--lr", "nan", says="--lr", status=2)
    s.refused("train", "-f", "a", "-d", "x", "-e", says="-e wants a value", status=2)
    s.refused("train", "-f", "", "-d", "x", says="--function must not be empty", status=2)
    s.refused("task", "get", says="which job?", status=2)
    s.refused("task", "get", "a", "b", says='"b" is too much', status=2)
    for verb in ("task get", "history get", "history delete", "logs", "explain"):
        s.refused(*verb.split(), "--id", "a", "b", says='"b" is too much: --id is given', status=2)
        s.refused(*verb.split(), says="which job or function?" if verb == "explain" else "which job?", status=2)
    for verb in ("get", "delete"):
        s.refused("dataset", verb, "--name", "a", "b", says='"b" is too much: --name is given', status=2)
        s.refused("function", verb, says="which function?", status=2)
    s.refused("history", "get", "a", "-o", "wide", says='no output format "wide"; there are: table json yaml', status=2)
    s.refused("function", "create", "--name", "x", says="either --code FILE or --model NAME", status=2)
    s.refused("completion", "fish", says="only bash", status=2)
    s.refused("--bogus", says="no option --bogus", status=2)
    for at in (["--context", "x"], ["--context=x"]):
        s.refused("task", "list", *at, says=[f"{at[0]} goes before the command", "kubeml --context NAME task list"], status=2)
    s.refused("task", "wait", "x", "--timeout", "-1", says="--timeout wants 0 or more, not -1", status=2)
    for verb, thing in (("dataset create", "data set"), ("function create", "function"), ("function update", "function"),
                        ("function logs", "function")):
        needed = ["--traindata", "x.npy"] if verb == "dataset create" else []
        s.refused(*verb.split(), *needed, says=f"which {thing}?", status=2)
        s.refused(*verb.split(), *needed, "--name", "a", "b", says='"b" is too much: --name is given', status=2)
    s.refused("run", says=["no FILE.c", "See kubeml run --help."], status=2)
    s.refused("run", "x.c", "--bogus", says="no option --bogus\n", status=2)
    s.refused("run", "x.c", "-xe", says="no option -x\n", status=2)
    for word in ("-e", "--epochs"):
        s.refused("run", "x.c", word, says=f"{word} wants a value\n", status=2)
    assert s.out("help") == s.out("--help")
    for words in ("train", "dataset create", "run", "dataset"):
        assert s.out("help", *words.split()) == s.out(*words.split(), "--help"), words
    assert "kubeml dataset create" in s.out("dataset", "--help")
    s.refused("help", "trian", says='no command "trian"', status=2)
    assert s.out("version").splitlines()[1:] == ["no platform at http://127.0.0.1:1"]
    nowhere = Shell(KUBECONFIG=s.folder / "none")
    assert nowhere.out("--context", "x", "version").splitlines()[1].startswith("no platform at x: "), nowhere.out("version")
    for words in ("task list", "task wait a", "logs a", "logs -f a"):
        s.refused(*words.split(), says=["connect", "kubeml up"])
    verbs = [line.split("  ")[1].strip() for line in s.out("--help").splitlines() if line.startswith("  ")
             and not line.strip().startswith(("KUBEML_", "--"))]
    assert len(verbs) > 25, verbs
    for verb in verbs:
        page = s.out(*verb.split(), "--help")
        assert "usage: kubeml " + verb in page, (verb, page)
        assert max(map(len, page.splitlines())) <= 120, page
        for line in page.partition("\noptions:\n")[2].splitlines():  # what a long one does is below it
            assert re.fullmatch(r".{32} \S.*| {6}--\S+ \S+", line), page
    assert "127.0.0.1:10100" in s.out("up", "--help")


@case(platform=False)
def completion():
    s = Shell()
    (s.folder / "bin").mkdir()
    s.write("bin/kubectl", '#!/bin/sh\n[ "$*" = "config get-contexts -o name" ] && printf "kind\\nlab\\n"\n')
    (s.folder / "bin/kubectl").chmod(0o755)
    at = {"kubeml da": "dataset", "kubeml task re": "resume", "kubeml train --goal": "--goal-accuracy=",
          "kubeml train --sta": "--static", "kubeml --con": "--context=", "kubeml --context k": "kind",
          "kubeml --context = l": "lab", "kubeml --context =": "kind lab", "kubeml --context kind da": "dataset",
          "kubeml --context = kind --namespace ml task re": "resume", "kubeml --context kind train --goal": "--goal-accuracy=",
          "kubeml run --train": "--traindata= --trainlabels=", "kubeml run lenet.c --js": "--json", "kubeml run lenet.c --dataset ": "",
          "kubeml help ta": "task", "kubeml help task re": "resume", "kubeml run le": ""}  # "": a file's name, if there is one
    s.write("complete.sh", f"""PATH=bin:{harness.BIN}:$PATH
source <(kubeml completion bash)
complete -p kubeml
compopt() {{ :; }}
try() {{
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _kubeml
    echo "${{COMPREPLY[@]}}"
}}
""" + "".join(f"try {words}{' ' + chr(39) * 2 if words[-1] == ' ' else ''}\n" for words in at))
    done = subprocess.run(["bash", "complete.sh"], capture_output=True, text=True, env=s.environment, timeout=60, cwd=s.folder)
    defined, *lines = done.stdout.splitlines()
    assert "-o default" in defined and "-F _kubeml kubeml" in defined and not done.stderr, done
    told = {words: set(line.split()) for words, line in zip(at, lines)}
    assert told == {words: set(line.split()) for words, line in at.items()}, told


@case()
def the_lines_that_convert_a_pickle_do(p):
    """As they are printed, for CIFAR-10's own batches, whose rows become images, and for images that are some."""
    s = shell(p)
    random = np.random.default_rng(1)
    for name, x in (("data_batch_1", random.integers(0, 255, (20, 3072), dtype=np.uint8)),
                    ("other.pkl", random.integers(0, 255, (20, 28, 28), dtype=np.uint8))):
        batch = pickle.dumps({"data": x, "labels": [i % 10 for i in range(20)]}, protocol=2)
        s.write(name, batch)
        s.write("f", batch)
        dataset = name.replace("_", "-")
        said = s.run("dataset", "create", "--name", dataset, "--traindata", name, "--trainlabels", name, "--testdata", name,
                     "--testlabels", name, status=1)[1]
        assert f"x-train ({name}): a pickle" in said, said
        subprocess.run([sys.executable, "-c", said[said.index("import pickle"):]], cwd=s.folder, check=True, timeout=60)
        with np.load(s.folder / "f.npz") as made:
            assert (made["x"].reshape(x.shape) == x).all() and list(made["y"]) == [i % 10 for i in range(20)]
        s.out("dataset", "create", "--name", dataset, "--traindata", "f.npz", "--trainlabels", "f.npz", "--testdata", "f.npz",
              "--testlabels", "f.npz")
        shape = s.json("dataset", "get", dataset)["shape"]
        assert shape == ([3, 32, 32] if x.ndim == 2 else [1, 28, 28]), shape


# ---- bad input -------------------------------------------------------------------------------------------

def arrays(s):
    """Good arrays, and each of the ways in which one can be wrong."""
    random = np.random.default_rng(1)
    x, y = random.integers(0, 255, (64, 28, 28), dtype=np.uint8), np.arange(64) % 10
    real = (x / 255).astype(np.float32)
    broken = real.copy()
    broken[3, 4, 5] = np.nan
    for name, value in {"x": x, "y": y, "y60": y[:60], "negative": y - 1, "half": y + 0.5, "real": real,
                        "nan": broken, "none": x[:0], "small": x[:, :3, :3]}.items():
        np.save(s.folder / f"{name}.npy", value)
    np.save(s.folder / "objects.npy", np.array([1, "a", None], dtype=object), allow_pickle=True)
    idx = gzip.compress(harness.idx(x.tobytes(), 64, 28, 28))
    s.write("cut.npy", (s.folder / "x.npy").read_bytes()[:5000])
    s.write("cut.gz", idx[:len(idx) // 2])
    s.write("pickle.pkl", pickle.dumps({"data": x}))
    s.write("text.txt", "this is no array\n")
    s.write("empty.npy", b"")
    np.savez(s.folder / "other.npz", samples=x, classes=y)


def make(x, y, tx="x.npy", ty="y.npy", name="new"):
    return ("dataset", "create", "--name", name, "--traindata", x, "--trainlabels", y, "--testdata", tx, "--testlabels", ty)


@case(limit=120)
def a_large_upload_needs_little_memory(p):
    """Neither the command line nor the controller holds what goes through it."""
    s = shell(p)
    samples = (64 if harness.SANITIZER else 256) << 20 >> 13
    for name, count in (("x", samples), ("tx", 1)):
        with (s.folder / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (count, 8, 32, 32)})
            file.truncate(file.tell() + (count << 13))
        np.save(s.folder / f"{'' if count > 1 else 't'}y.npy", np.zeros(count, np.uint8))

    def most():
        """KiB that were resident in the controller."""
        status = pathlib.Path(f"/proc/{p.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])
    before = most()
    # kubeml may have less than the file; a sanitizer's own memory would be counted.
    limit = None if harness.SANITIZER else lambda: resource.setrlimit(resource.RLIMIT_DATA, (32 << 20, 32 << 20))
    subprocess.run([str(KUBEML), *make("x.npy", "y.npy", "tx.npy", "ty.npy")], cwd=s.folder, env=s.environment,
                   preexec_fn=limit, timeout=100 * harness.STRETCH, check=True)
    assert s.json("dataset", "get", "new")["bytes"] >= samples << 13
    print(f"{samples >> 7} MiB: {most() - before >> 10} MiB in the controller")
    assert harness.SANITIZER or most() - before < 48 << 10


def on_terminal(s, *words, columns=0):
    """(stdout, what a terminal got as stderr) of `kubeml WORDS`, which succeeds; `columns` 0: it does not say how many."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as terminal:
        done = subprocess.run([str(KUBEML), *map(str, words)], stdout=subprocess.PIPE, stderr=terminal, cwd=s.folder,
                              env=s.environment, text=True, timeout=60 * harness.STRETCH, check=True)
    return done.stdout, harness.shown_on(ours)


@case()
def one_file_may_be_a_whole_dataset(p):
    s = shell(p)
    arrays(s)
    x, y = np.load(s.folder / "x.npy"), np.load(s.folder / "y.npy")
    np.savez(s.folder / "all.npz", x_train=x, y_train=y, x_test=x[:16], y_test=y[:16])
    np.savez(s.folder / "train.npz", x_train=x, y_train=y)
    s.out("dataset", "create", "all", "--traindata", "all.npz")
    told = s.json("dataset", "get", "all")
    assert (told["train_set_size"], told["test_set_size"]) == (64, 16), told
    s.refused("dataset", "create", "--name", "half", "--traindata", "train.npz", says="x-test")


@case(limit=90)
def what_is_long_shows_a_bar_on_a_terminal(p):
    s = ready(p)
    arrays(s)
    job = train(s, epochs=1)
    s.out("task", "wait", job)
    for words, label, out in ((make("x.npy", "y.npy"), "new", "dataset new created\n"),
                              (("model", "export", job, "-o", "m.npz"), "m.npz", f"model of job {job} in m.npz\n"),
                              (("model", "export", job, "-o", "m.safetensors"), "m.safetensors", None),
                              (("train", "-f", "lenet", "-d", "tiny", "--init", "m.safetensors"), "m.safetensors", None)):
        told, shown = on_terminal(s, *words)
        assert f"{label} ██" in shown and "100 %" in shown and "MiB/s" in shown and shown.endswith("\r\033[K"), shown
        assert out in (None, told), told
    long = "a-model-with-a-rather-long-name-that-no-line-has-room-for-beside-a-bar"
    for columns, name, shows in ((80, "m.npz", ["m.npz ██", "MiB/s"]), (48, "m.npz", ["m.npz ██", " MiB\r"]),
                                 (30, "m.npz", ["m.npz ██", "100 %\r"]), (80, long, ["a-model-with-", "100 %"]), (12, long, ["100 %"]),
                                 (3, "m.npz", [])):
        (s.folder / "deep/folder").mkdir(parents=True, exist_ok=True)
        shown = on_terminal(s, "model", "export", job, "-o", s.folder / "deep/folder" / name, columns=columns)[1]
        lines = [line.removeprefix("\x1b[K") for line in shown.split("\r")]
        assert all(len(line) < columns for line in lines), (columns, shown)
        assert all(part in shown for part in shows) and "deep" not in shown, (columns, shown)
    assert s.run(*make("x.npy", "y.npy", name="quiet"))[1] == "", "a log file gets none"
    assert "█" not in on_terminal(s, "task", "list", "--all")[1]


@case(limit=90)
def bad_datasets(p):
    s = shell(p)
    arrays(s)
    s.out(*make("x.npy", "y.npy", name="taken"))
    before = s.out("dataset", "list", "-o", "json"), p.stored_files()
    s.refused(*make("x.npy", "y60.npy"), says="x-train has 64 samples and y-train has 60")
    s.refused(*make("cut.npy", "y.npy"), says=["x-train (cut.npy)", "cut"])
    s.refused(*make("cut.gz", "y.npy"), says=["x-train (cut.gz)", "cut"])
    s.refused(*make("nan.npy", "y.npy", "real.npy"), says=["x-train (nan.npy)", "sample 3"])
    s.refused(*make("x.npy", "negative.npy"), says=["y-train (negative.npy)", "label -1 at sample 0"])
    s.refused(*make("x.npy", "half.npy"), says=["y-train (half.npy)", "label 0.5"])
    s.refused(*make("none.npy", "y.npy"), says="x-train")
    s.refused(*make("x.npy", "y.npy", "small.npy"), says=["(1, 28, 28)", "(1, 3, 3)"])
    s.refused(*make("pickle.pkl", "y.npy"), says=["x-train (pickle.pkl)", "pickle", "np.savez"])
    s.refused(*make("objects.npy", "y.npy"), says=["x-train (objects.npy)", "np.save"])
    s.refused(*make("text.txt", "y.npy"), says="x-train (text.txt): neither npy")
    s.refused(*make("empty.npy", "y.npy"), says="x-train (empty.npy): the file is empty")
    s.refused(*make("other.npz", "y.npy"), says=["x-train (other.npz): the npz file has no array", "it has samples, classes"])
    s.refused(*make("absent.npy", "y.npy"), says="no file absent.npy")
    s.refused(*make("x.npy", "y.npy")[:-4], says="x-test is missing (--testdata)")
    s.refused(*make("x.npy", ""), says="--trainlabels must not be empty", status=2)
    s.refused(*make("x.npy", "x.npy/y.npy"), says="x.npy/y.npy: Not a directory")
    s.refused(*make(".", "y.npy"), says=". is a folder, not a file")
    s.refused(*make("x.npy", "y.npy", name="taken"), says='"taken" exists')
    for name, says in (("a/b", "a/b"), ("../../etc", "../../etc"), ("n" * 300, "300 characters, more than 63")):
        s.refused(*make("x.npy", "y.npy", name=name), says=says)
    s.refused(*make("x.npy", "y.npy"), "--layout", "xyz", says="layout must be")
    assert (s.out("dataset", "list", "-o", "json"), p.stored_files()) == before, "a refusal changed something"


@case(limit=120)
def bad_requests(p):
    s = ready(p)
    before = s.json("task", "list", "--all")
    for words, says in {
            "-f nono -d tiny": 'no function "nono"', "-f lenet -d nono": 'no dataset "nono"',
            "-f lenet -d tiny -e 0": "epochs: 0", "-f lenet -d tiny -e -3": "epochs: -3",
            "-f lenet -d tiny -b 0": "batch_size: 0", "-f lenet -d tiny -b -1": "batch_size: -1",
            "-f lenet -d tiny -K 0": "options.k", "-f lenet -d tiny -K -2": "options.k: -2",
            "-f lenet -d tiny -p 0": "options.default_parallelism: 0",
            "-f lenet -d tiny -p 1000": "options.default_parallelism: 1000 is not within 1 to 256",
            "-f lenet -d tiny --lr -1": "lr: -1", "-f lenet -d tiny --goal-accuracy 101": "options.goal_accuracy: 101",
            "-f lenet -d tiny --merge x": "options.merge", "-f lenet -d tiny --mode p2p": '"p2p" is not built yet',
            "-f a/b -d tiny": "function_name", f"-f {'n' * 300} -d tiny": "function_name: 300 characters"}.items():
        s.refused("train", *words.split(), says=says)
    if not harness.another_platform:  # a cluster may get more
        s.refused("train", *"-f lenet -d tiny -p 5 --static".split(), says="options.default_parallelism: 5")
        options = {"default_parallelism": 5, "static_parallelism": True}
        assert p.post("/train", 422, json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32,
                                           "lr": 0.1, "options": options})["reason"] == "unsupported"
    assert p.post("/train", 422, json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32,
                                       "lr": 0.1, "options": {"mode": "p2p"}})["reason"] == "unsupported"
    assert "line 1" in p.post("/train", 400, data='{"epochs": 1,}', headers={"Content-Type": "application/json"})["detail"]
    for words in ("task get x", "task stop x", "task resume x", "task wait x", "explain x", "logs x", "history get x",
                  "history delete x", "model export x -o x.npz", "dataset get x", "dataset delete x", "function get x",
                  "function delete x", "function logs x"):
        s.refused(*words.split(), says='"x"')
    assert s.json("task", "list", "--all") == before, "a refusal made a job"


@case(limit=120)
def data_that_does_not_fit_the_model(p):
    harness.code_is_asked()
    s = ready(p)
    arrays(s)
    s.out(*make("small.npy", "y.npy", "small.npy", name="small"))
    s.write("five.c", MODEL % "5")
    s.out("function", "create", "--name", "five", "--code", "five.c")
    s.out("function", "create", "--name", "vgg", "--model", "vgg11")
    s.out("function", "create", "--name", "cropped", "--model", "mlp,crop=28")
    before = s.json("task", "list", "--all")
    for _ in range(2):  # what was answered once is kept
        for function, dataset, says in (
                ("lenet", "small", ["function lenet does not fit dataset small", "(1, 3, 3)", "conv2d 'conv2'", "kernel 5"]),
                ("cropped", "tiny", ["crop=28 does not fit dataset tiny", "crop of 28 does not fit samples of 28x28"]),
                ("five", "tiny", ["function five does not fit dataset tiny", "labels up to 9", "5 outputs"]),
                ("vgg", "small", ["vgg11 does not fit dataset small", "max_pool2d 'features.5'", "kernel 2", "1x1"])):
            s.refused("train", "-f", function, "-d", dataset, says=says)
    assert p.post("/train", 422, json={"function_name": "five", "dataset": "tiny", "epochs": 1, "batch_size": 32,
                                       "lr": 0.1})["reason"] == "unsupported"
    assert s.json("task", "list", "--all") == before, "a refusal made a job"
    # Another version of the code, another answer; and what the code does not say shows when its job starts.
    s.write("five.c", MODEL % "10")
    s.out("function", "update", "--name", "five", "--code", "five.c")
    s.out("task", "wait", s.out("train", "-f", "five", "-d", "tiny", "-e", "1").strip())
    s.write("five.c", "#include <stdlib.h>\n" + (MODEL % "10").replace("    return", "    abort();\n    return"))
    s.out("function", "update", "--name", "five", "--code", "five.c")
    out, said = s.run("task", "wait", s.out("train", "-f", "five", "-d", "tiny").strip(), status=1)
    assert "SIGABRT" in said, said


@case(limit=120)
def bad_inference(p):
    s = ready(p)
    arrays(s)
    job = train(s, epochs=1)
    s.out("task", "wait", job)
    s.refused("infer", "-n", "none", "--datafile", "x.npy", says='"none"')
    s.refused("infer", "-n", job, "--datafile", "absent.npy", says="absent.npy: No such file")
    s.refused("infer", "-n", job, "--datafile", "cut.npy", says="cut.npy")
    s.refused("infer", "-n", job, "--datafile", "small.npy", says=["(64, 3, 3)", "(1, 28, 28)"])
    broken = np.zeros((2, 1, 28, 28), np.float32)
    broken[1, 0, 3, 4] = np.nan
    np.save(s.folder / "nan.npy", broken)
    s.refused("infer", "-n", job, "--datafile", "nan.npy", says="nan.npy: NaN at [1, 0, 3, 4]")
    # What one request takes: 1628 bytes a sample of zeros.
    np.save(s.folder / "many.npy", np.zeros((9000, 1, 28, 28), np.uint8))
    fit = (8388608 - len('{"model_id":"","data":[]}') - len(job) + 1) // 1628
    s.refused("infer", "-n", job, "--datafile", "many.npy", says=["many.npy", "9000 samples", f"the first {fit} fit"])
    s.write("many.json", "[" + "0," * 5000000 + "0]")
    s.refused("infer", "-n", job, "--datafile", "many.json", says=["many.json", "10000003 bytes"])
    s.write("bad.json", "[1,\n")
    s.refused("infer", "-n", job, "--datafile", "bad.json", says=["bad.json", "line 2"])
    s.refused("infer", "-n", job, "--datafile", "text.txt", says="neither npy nor JSON")


HOSTILE = {
    "shadow": ('#include "/etc/shadow"\n', "shadow.c:1:10"),
    "environ": ("#include </proc/self/environ>\n", "environ.c:1:10"),
    "itself": ('#include "itself.c"\n', "nested"),
    "incbin": ('#include <kubeml.h>\n__asm__(".incbin \\"/etc/passwd\\"");\n', "/etc/passwd"),
    "nothing": ("#include <kubeml.h>\nint main(void) { return 0; }\n", "KUBEML_FUNCTION"),
    "syntax": ("#include <kubeml.h>\n\nint x = ;\n", "syntax.c:3:9: error"),
    # Each line doubles what the one before expands to.
    "bomb": ("#define A0 x x\n" + "".join(f"#define A{i} A{i - 1} A{i - 1}\n" for i in range(1, 40)) + "int A39;\n", "compiling "),
}


@case(limit=180)
def bad_code(p):
    s = ready(p)
    for name, (code, says) in HOSTILE.items():
        if name in ("environ", "incbin") and not p.sandbox:
            continue  # the builder's own pod: it may look there, and finds no token (test_controllers)
        s.write(f"{name}.c", code)
        s.refused("function", "create", "--name", name, "--code", f"{name}.c", says=says)
        why = s.json("explain", name)
        assert why["reason"] == ("CompileLimit" if says == "compiling " else "CompileError"), (name, why)
        assert says in why["message"] + "\n".join(why["evidence"]), (name, why)
    s.write("huge.c", " " * 3000000)
    s.refused("function", "create", "--name", "huge", "--code", "huge.c", says="over the limit of 2097152")
    s.refused("function", "create", "--name", "absent", "--code", "absent.c", says="no file absent.c")
    s.refused("function", "create", "--name", "zoo", "--model", "resnet43", says="the nearest are 'resnet")
    s.refused("function", "create", "--name", "zoo", "--model", "resnet34", "--stem", "mnist", says="neither cifar")
    s.refused("function", "create", "--name", "zoo", "--model", "lenet5", "--stem", "cifar", says="one stem alone")
    s.refused("function", "create", "--name", "zoo", "--model", "lenet5,crop=many", says="crop 'many' is not a number of pixels")
    s.refused("function", "create", "--name", "zoo", "--model", "lenet5,augment", says=["'augment' is unknown", "flip=on|off"])
    s.refused("function", "create", "--name", "zoo", "--code", harness.LENET, "--stem", "cifar", says="goes with --model", status=2)
    s.refused("function", "create", "--name", "lenet", "--code", harness.LENET, says="update it instead")
    s.refused("function", "update", "--name", "nono", "--code", harness.LENET, says='"nono"')
    for name in ("a/b", "n" * 300):
        s.refused("function", "create", "--name", name, "--code", harness.LENET, says="function name")
    for name in ("huge", "absent", "zoo", "nono", "a/b"):  # not the code's fault
        s.refused("explain", name, says=f'no job and no function "{name}"')
    assert s.json("explain", "lenet")["refused"] is None
    assert [f["name"] for f in s.json("function", "list")] == ["lenet"], "a refusal left a function"
    assert s.json("function", "get", "lenet")["version"] == 1


def without_redis(p):
    """A job is refused, and none is made."""
    s = shell(p)
    upload(s)
    s.out("function", "create", "--name", "zoo", "--model", "lenet5")
    s.refused("train", "-f", "zoo", "-d", "tiny", says="redis-server is not installed here; install the package redis-server")
    why = p.post("/train", 422, json={"function_name": "zoo", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01})
    assert why["reason"] == "unsupported" and "redis-server" in why["detail"], why
    assert p.get("/tasks?state=all") == [] and p.get("/history") == []
    return s


@case(options=("--pool-functions", "0", "--pool-ps", "0"), env={"PATH": "/nonexistent"})
def no_redis(p):
    without_redis(p)


@case(env={"PATH": "/nonexistent"})
def no_redis_for_the_pool(p):
    """Its kubeml-ps came up all the same."""
    p.warm(4, 1)
    without_redis(p)


@case(platform=False)
def a_job_is_not_resumed_without_redis():
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    redis = folder / "redis-server"
    redis.symlink_to(shutil.which("redis-server"))
    with harness.Platform(env={"PATH": str(folder)}) as p:
        p.dataset()
        p.post("/function/zoo", json={"model": "lenet5"})
        job = p.train(function="zoo", epochs=50000)
        until(lambda: p.task(job)["epoch"] >= 1)
        p.post(f"/tasks/{job}/suspend")
        before = p.wait(job)
        redis.unlink()
        shell(p).refused("task", "resume", job, says="install the package redis-server")
        assert p.task(job) == before and before["state"] == "suspended", (before, p.task(job))


if __name__ == "__main__":
    harness.main(globals())
