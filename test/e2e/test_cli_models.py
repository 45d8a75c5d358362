#!/usr/bin/python3
"""The command line from a file of samples to a model's file: uploads, training from weights, the same in one process, exports."""
import fcntl
import json
import os
import pathlib
import pickle
import pty
import re
import resource
import struct
import subprocess
import sys
import termios

import numpy as np

import harness
from client import KUBEML, MODEL, arrays, endless, make, ready, shell, train
from harness import case, until


def safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + size])
    head.pop("__metadata__", None)
    return {k: np.frombuffer(raw[8 + size:], np.float32, (v["data_offsets"][1] - v["data_offsets"][0]) // 4,
                             v["data_offsets"][0]).reshape(v["shape"])
            for k, v in head.items() if v["dtype"] == "F32"}


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

    # A whole test set: more than a request may have, and in the file that was uploaded.
    np.save(s.folder / "all.npy", np.tile(images, (1000, 1, 1, 1)))
    whole = json.loads(s.out("infer", job, "--datafile", "all.npy", "-o", "json"))
    assert whole["predictions"] == answer["predictions"] * 1000
    assert np.allclose(whole["logits"], answer["logits"] * 1000, atol=1e-5)
    with open(s.folder / "x-test.gz", "rb") as packed:
        classes = s.out("infer", job, "--datafile", "-", stdin=packed).split()
    assert len(classes) == 128 and classes[:5] == guesses.split() and classes == s.out("infer", job, "--datafile", "x-test.gz").split()


@case(limit=90)
def a_large_sample_is_asked_for_whole(p):
    """5.1 MB of JSON, which of many samples would go in three requests."""
    s = ready(p)
    s.write("wide.c", MODEL.replace("kml_flatten(g, x)", "kml_flatten(g, kml_global_avg_pool2d(g, x))") % "2")
    s.out("function", "create", "--name", "wide", "--code", "wide.c")
    np.save(s.folder / "x.npy", np.full((2, 2, 800, 800), 200, np.uint8))
    np.save(s.folder / "y.npy", np.arange(2))
    s.out(*make("x.npy", "y.npy", name="wide"))
    job = s.out("train", "-f", "wide", "-d", "wide", "-e", 1, "-b", 2, "--lr", 0.01, "-p", 1).strip()
    s.out("task", "wait", job)
    np.save(s.folder / "one.npy", np.full((2, 800, 800), 200, np.uint8))
    assert s.out("infer", job, "--datafile", "one.npy").split() == s.out("infer", job, "--datafile", "x.npy").split()[:1]


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
    # Half the bits, and twice as many, are taken too; what comes back is float32.
    for dtype, rounded in (("F16", lambda t: t.astype(np.float16).astype(np.float32)), ("F64", lambda t: t),
                           ("BF16", lambda t: (t.view(np.uint32) & 0xffff0000).view(np.float32))):
        job = s.out(*train, "--init", s.write("typed.safetensors", harness.floats_as(dtype, GOLDEN.read_bytes()))).strip()
        s.out("task", "wait", job)
        s.out("model", "export", job, "-o", "typed.safetensors")
        assert shapes(header(s.folder / "typed.safetensors")) == shapes(theirs), dtype
        for name, t in safetensors(s.folder / "typed.safetensors").items():
            assert "running" in name or (t == rounded(before[name])).all(), (dtype, name)
    # For five classes all but the last layer; what is left out is what a fresh job of that seed draws.
    np.save(s.folder / "five.npy", np.arange(24) % 5)
    s.out("dataset", "create", "--name", "five", "--traindata", "x.npy", "--trainlabels", "five.npy",
          "--testdata", "x.npy", "--testlabels", "five.npy")
    five = ("train", "-f", "small", "-d", "five", "-e", 1, "-b", 8, "--lr", 1e-30, "--seed", 3)
    job = s.out(*five, "-p", 1).strip()
    s.out("task", "wait", job)
    s.out("model", "export", job, "-o", "fresh.safetensors")
    fresh = safetensors(s.folder / "fresh.safetensors")
    for more in (("-p", 1), ("-p", 2, "--static"), ("-p", 2, "--static", "--process", "shared"), ("-p", 2, "--merge", "server")):
        job = s.out(*five, "--init", GOLDEN, "--init-without", "fc", *more).strip()
        s.out("task", "wait", job)
        s.out("model", "export", job, "-o", "five.safetensors")
        for name, t in safetensors(s.folder / "five.safetensors").items():
            assert "running" in name or (t == (fresh if name.startswith("fc.") else before)[name]).all(), (more, name)
        assert s.json("task", "get", job)["request"]["init_without"] == "fc"
    for names, says in (("fc.bias", "fc.weight has shape (3, 8)"), ("fc,cf", "no tensor of the model is cf, nor begins with cf.")):
        failed, note = s.run(*five, "--init", GOLDEN, "--init-without", names)
        said = s.run("task", "wait", failed.strip(), status=1)[1]
        named = re.search(r"init: (\w+): ", said)[1]
        assert says in said and f"{GOLDEN} is uploaded as model {named}\n" in note, (said, note)
    s.refused(*five, "--init-without", "fc", says="init_without: goes with init")
    s.refused(*five, "--init", job, "--init-without", "fc,,a", says="has an empty name")
    renamed = GOLDEN.read_bytes().replace(b'"fc.bias"', b'"fc.bios"')
    for data, says in ((renamed, "fc.bias"), (GOLDEN.read_bytes().replace(b"[3,8]", b"[8,3]"), "fc.weight has shape (8, 3)")):
        failed = s.out(*train, "--init", s.write("wrong.safetensors", data)).strip()
        said = s.run("task", "wait", failed, status=1)[1]
        assert says in said, said
    s.refused(*train, "--init", s.write("cut.safetensors", GOLDEN.read_bytes()[:-5]), says="lie beyond")


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


@case()
def the_lines_that_convert_a_pickle_do(p):
    """As they are printed, for CIFAR's own batches, whose rows become images, and for images that are some."""
    s = shell(p)
    random = np.random.default_rng(1)
    classes = [i % 10 for i in range(20)]
    for name, x, labels in (("data_batch_1", random.integers(0, 255, (20, 3072), dtype=np.uint8), {"labels": classes}),
                            ("cifar-100", random.integers(0, 255, (20, 3072), dtype=np.uint8),
                             {"coarse_labels": [0] * 20, "fine_labels": classes}),
                            ("other.pkl", random.integers(0, 255, (20, 28, 28), dtype=np.uint8), {"labels": np.array(classes)})):
        batch = pickle.dumps({"data": x, **labels}, protocol=2)
        s.write(name, batch)
        s.write("f", batch)
        dataset = name.replace("_", "-")
        said = s.run("dataset", "create", "--name", dataset, "--traindata", name, "--trainlabels", name, "--testdata", name,
                     "--testlabels", name, status=1)[1]
        assert f"x-train ({name}): a pickle" in said, said
        subprocess.run([sys.executable, "-c", said[said.index("import numpy"):]], cwd=s.folder, check=True, timeout=60)
        with np.load(s.folder / "f.npz") as made:
            assert (made["x"].reshape(x.shape) == x).all() and list(made["y"]) == classes
        s.out("dataset", "create", "--name", dataset, "--traindata", "f.npz", "--trainlabels", "f.npz", "--testdata", "f.npz",
              "--testlabels", "f.npz")
        shape = s.json("dataset", "get", dataset)["shape"]
        assert shape == ([3, 32, 32] if x.ndim == 2 else [1, 28, 28]), shape


@case()
def several_pickles_become_one_file_as_the_page_says(p):
    s = shell(p)
    random = np.random.default_rng(1)
    batches = [random.integers(0, 255, (20, 3072), dtype=np.uint8) for _ in range(5)]
    for i, rows in enumerate(batches):
        s.write(f"data_batch_{i + 1}", pickle.dumps({"data": rows, "labels": [i] * 20}, protocol=2))
    code, = re.findall("```python\n(.*?)```", (harness.ROOT / "docs/reference/formats.md").read_text(), re.S)
    subprocess.run([sys.executable, "-c", code], cwd=s.folder, check=True, timeout=60)
    with np.load(s.folder / "train.npz") as made:
        assert (made["x"] == np.concatenate(batches).reshape(-1, 3, 32, 32)).all() and (made["y"] == np.arange(100) // 20).all()
    files = ("--testdata", "train.npz", "--traindata", "train.npz")
    s.refused("dataset", "create", "c", *files, "--traindata", "train.npz",
              says="only CIFAR's binary batches may come as several files; join the arrays first")
    s.out("dataset", "create", "c", *files)
    assert s.json("dataset", "get", "c")["train_set_size"] == 100


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
        shown = re.sub(r"m.safetensors is uploaded as model \w+\r\n$", "", shown)  # on a line that is free
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


if __name__ == "__main__":
    harness.main(globals())
