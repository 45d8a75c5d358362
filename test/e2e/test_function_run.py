#!/usr/bin/python3
"""`kubeml run`: the same file in one process; its losses are those of a job with one function."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import numpy as np

import harness
from harness import BIN, LENET, STRETCH, case, until


def start(*arguments, env=None, stdout=subprocess.PIPE, folder=BIN):
    """kubeml-function run ..., which SIGINT ends, also where a shell has this test ignore it."""
    return subprocess.Popen([str(folder / "kubeml-function"), "run", *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE,
                            text=True, stdin=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                            env={**os.environ, "KUBEML_INCLUDE": str(harness.ROOT / "function-runtime/include"), **(env or {})})


def run(*arguments, status=0, **more):
    """Its output and what it said."""
    with start(*arguments, **more) as process:
        try:
            out, said = process.communicate(timeout=60 * STRETCH)
        finally:
            process.kill()
    assert process.returncode == status, f"status {process.returncode}\n{out}\n{said}"
    return out, said


def files():
    """tiny_mnist as files, and the options that name them."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    options = []
    for field, option in (("x-train", "--traindata"), ("y-train", "--trainlabels"), ("x-test", "--testdata"),
                          ("y-test", "--testlabels")):
        (folder / field).write_bytes(harness.tiny_mnist()[field])
        options += [option, folder / field]
    return folder, options


def epochs(text):
    return [json.loads(line) for line in text.splitlines()]


def same(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 1e-9 * abs(y) for x, y in zip(a, b))


@case(limit=60, platform=False)
def an_option_that_its_kind_does_not_have_is_refused():
    folder, options = files()
    (folder / "option.c").write_text(LENET.read_text().replace("kml_sgd(.momentum = 0.9", "kml_adam(.momentum = 0.9"))
    assert "kml_adam has no .momentum" in run(folder / "option.c", *options, status=1)[1]


@case(limit=60, platform=False)
def code_that_ends_the_process_has_not_trained():
    folder, options = files()
    for ends, status in (("exit(0)", 0), ("_exit(0)", 0), ("_Exit(0)", 0), ("exit(256)", 0), ("exit(1)", 1), ("_exit(7)", 7)):
        code = LENET.read_text().replace("#include <kubeml.h>", "#include <kubeml.h>\n#include <stdlib.h>\n#include <unistd.h>")
        leave = f"static int leave(kml_step *s)\n{{\n    (void)s;\n    {ends};\n}}\n\nKUBEML_FUNCTION("
        (folder / "leaves.c").write_text(code.replace("KUBEML_FUNCTION(", leave).replace(".lr = 0.01", ".lr = 0.01, .step = leave"))
        _, said = run(folder / "leaves.c", *options, "--save", folder / "model", status=status or 1)
        assert f"the function's code ended the process with exit status {status} while it did: train, epoch 1\n" in said, (ends, said)
        assert said.count("ended the process") == 1, said
        assert not (folder / "model").exists()


STEP = """static int step(kml_step *s)
{
    (void)s;
    return *(volatile int *)0;
}

KUBEML_FUNCTION("""


@case(limit=60, platform=False)
def what_code_printed_is_there_when_it_crashes():
    folder, options = files()
    code = LENET.read_text().replace("KUBEML_FUNCTION(", STEP.replace("(void)s;", '(void)s;\n    printf("%d rows\\n", 3);'))
    (folder / "prints.c").write_text("#include <stdio.h>\n" + code.replace(".lr = 0.01", ".lr = 0.01, .step = step"))
    out, said = run(folder / "prints.c", *options, status=-signal.SIGSEGV)
    assert out.endswith("\n3 rows\n") and "crashed with SIGSEGV" in said, (out, said)


@case(limit=60, platform=False)
def no_copy_of_the_data_stays_however_it_ends():
    folder, options = files()
    tmp, labels = folder / "tmp", folder / "labels"
    tmp.mkdir()

    def begin(*arguments):
        return start(*arguments, env={"TMPDIR": str(tmp)})

    def copies():
        return list(tmp.glob("kubeml-run-*"))
    # While it trains nothing has a name any more.
    with begin("--model", "lenet5", *options, "-e", 10000, "--json") as process:
        try:
            assert "train_loss" in process.stdout.readline()
            assert not copies(), copies()
            process.send_signal(signal.SIGINT)
            assert process.wait(60 * STRETCH) == -signal.SIGINT
        finally:
            process.kill()
    assert not copies(), copies()
    code = LENET.read_text().replace("KUBEML_FUNCTION(", STEP).replace(".lr = 0.01", ".lr = 0.01, .step = step")
    (folder / "crashes.c").write_text(code)
    run(folder / "crashes.c", *options, status=-signal.SIGSEGV, env={"TMPDIR": str(tmp)})
    assert not copies(), copies()
    # It waits for labels: it is ended while there is a copy.
    os.mkfifo(labels)
    options[options.index("--trainlabels") + 1] = labels
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with begin("--model", "lenet5", *options) as process:
            try:
                until(lambda: list(tmp.glob("kubeml-run-*/records.mdb")))
                process.send_signal(number)
                assert process.wait(60 * STRETCH) == -number
                until(lambda: not copies())
            finally:
                process.kill()


@case(limit=60, platform=False)
def nothing_of_the_compiler_stays_when_it_is_ended_meanwhile():
    folder, options = files()
    tmp, never = folder / "tmp", folder / "never.h"
    tmp.mkdir()
    os.mkfifo(never)  # the compiler waits for its text
    (folder / "waits.c").write_text(f'#include "{never}"\n' + LENET.read_text())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with start(folder / "waits.c", *options, env={"TMPDIR": str(tmp)}) as process:
            try:
                until(lambda: list(tmp.glob("**/waits.c")))
                process.send_signal(number)
                assert process.wait(60 * STRETCH) == -number
                until(lambda: not list(tmp.iterdir()), message=lambda: f"after {number} there is {list(tmp.rglob('*'))}")
            finally:
                process.kill()


@case(limit=60)
def the_losses_of_a_job_with_one_function(p):
    p.dataset()
    p.function()
    job = p.train(epochs=3, default_parallelism=1, seed=5)
    p.succeed(job)
    record = p.get(f"/history/{job}")
    data, threads = record["data"], record["plan"]["threads"] # they fix the order of sums
    options = [LENET, "-e", 3, "-b", 32, "--lr", 0.01, "--seed", 5, "--threads", threads, "--json"]
    by_store = epochs(run(*options, "--dataset", "tiny", env={"KUBEML_HOME": str(p.folder / "home")})[0])
    by_files = epochs(run(*options, *files()[1])[0])
    for mine in (by_store, by_files):
        assert same([e["train_loss"] for e in mine], data["train_loss"]), (mine, data)
        assert same([e["validation_loss"] for e in mine], data["validation_loss"]), (mine, data)
        assert [e["accuracy"] for e in mine] == data["accuracy"], (mine, data)
    other = epochs(run(*options, *files()[1], "--seed", 6)[0])
    assert not same([e["train_loss"] for e in other], data["train_loss"])


# Its rate is gone as soon as a validation loss is no millionth of the one before, which the noise of the targets sees to: from
# the third epoch on it learns nothing.
SUMS = """#include <kubeml.h>

static kml_tensor model(kml_graph *g, kml_tensor x)
{
    return kml_linear(g, kml_flatten(g, x), kml_classes(g));
}

KUBEML_FUNCTION(.model = model, .loss = KML_MSE, .optimizer = kml_sgd(.momentum = 0.5),
                .schedule = kml_plateau(.patience = -1, .gamma = 1e-30, .threshold = 0.999999));
"""


def sums(train=512, test=64):
    """Samples of 8 numbers and two targets each, a little beside two sums of them."""
    r = np.random.default_rng(1)
    weights = r.normal(size=(8, 2))
    out = {}
    for split, n in ("train", train), ("test", test):
        x = r.uniform(-1, 1, (n, 8))
        out[f"x-{split}"], out[f"y-{split}"] = x, x @ weights + r.normal(0, 0.1, (n, 2))
    return {name: values.astype(np.float32) for name, values in out.items()}


@case(limit=60)
def a_job_on_targets(p):
    data, folder = sums(), pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    for name, values in data.items():
        np.save(folder / f"{name}.npy", values)
    p.post("/dataset/sums?regression=true", files={name: (folder / f"{name}.npy").read_bytes() for name in data})
    told = p.get("/dataset/sums")
    assert (told["classes"], told["targets"]) == (0, 2), told
    p.function("sums", SUMS)
    job = p.train("sums", "sums", epochs=4, lr=0.1, k=3, seed=5)
    task = p.succeed(job)
    record = p.get(f"/history/{job}")
    train, valid = record["data"]["train_loss"], record["data"]["validation_loss"]
    assert train[1] < train[0] / 2 and valid[1] < valid[0], record["data"]
    assert valid[1] == valid[2] == valid[3], "the schedule had the losses before"
    assert record["data"]["accuracy"] == [None] * 4 and task["accuracy"] is None, "nothing is right or wrong"
    assert {e["accuracy"] for n, e in p.events(job) if n == "epoch"} == {None}
    said = p.post("/infer", json={"model_id": job, "data": data["x-test"].reshape(-1, *told["shape"]).tolist()})["predictions"]
    assert abs(np.mean((np.array(said) - data["y-test"]) ** 2) - valid[3]) < 1e-5 * valid[3], (said, valid)
    (folder / "sums.c").write_text(SUMS)
    options = [folder / "sums.c", "-e", 4, "-b", 32, "--lr", 0.1, "--seed", 5, "--threads", record["plan"]["threads"],
               "--functions", 2, "--k", 3]
    named = ["--regression"] + [word for name in data for word in (
        f"--{name[2:]}{'data' if name[0] == 'x' else 'labels'}", folder / f"{name}.npy")]
    mine = epochs(run(*options, *named, "--json")[0])
    assert same([e["train_loss"] for e in mine], train) and same([e["validation_loss"] for e in mine], valid), (mine, train)
    assert [e["accuracy"] for e in mine] == [None] * 4, mine
    text = run(*options, *named)[0]
    assert "validation loss" in text and "accuracy" not in text, text


@case()
def float_images_with_their_channels_last(p):
    """Taken as (N, C, H, W), as nothing tells them from it; that is said, here and there, and --layout says how they are meant."""
    folder, r = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))), np.random.default_rng(2)
    data = {"x-train": r.random((64, 8, 6, 3), np.float32), "y-train": r.integers(0, 10, 64),
            "x-test": r.random((64, 8, 6, 3), np.float32), "y-test": r.integers(0, 10, 64)}
    words = []
    for name, values in data.items():
        np.save(folder / f"{name}.npy", values)
        words += [f"--{name[2:]}{'data' if name[0] == 'x' else 'labels'}", folder / f"{name}.npy"]
    note = "note: the samples are taken as 8 channels of 6x3; if they are images of 8x6 with the channels last: layout hwc\n"
    for more, shape, told in (([], [8, 6, 3], note), (["--layout", "hwc"], [3, 8, 6], ""), (["--layout", "chw"], [8, 6, 3], "")):
        out, said = run("--model", "mlp", *words, *more, "-e", 1)
        assert "samples of ({}, {}, {})".format(*shape) in out and said == told, (out, said)
        name = "".join(more).replace("-", "") or "auto"
        done = subprocess.run([str(BIN / "kubeml"), "dataset", "create", "--name", name, *map(str, words), *more], capture_output=True,
                              text=True, timeout=60 * STRETCH, env={**os.environ, **p.environment()})
        assert (done.returncode, done.stdout, done.stderr) == (0, f"dataset {name} created\n", told), done
        assert p.get(f"/dataset/{name}")["shape"] == shape
    said = run("--model", "mlp", *words, "--layout", "whc", status=2)[1]
    assert "--layout: layout must be auto, chw or hwc" in said, said
    said = run("--model", "mlp", "--dataset", "auto", "--layout", "hwc", status=2)[1]
    assert "--layout goes with --traindata" in said, said


@case()
def an_accuracy_is_no_goal_where_there_is_none(p):
    data, folder = sums(64, 64), pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    for name, values in data.items():
        np.save(folder / f"{name}.npy", values)
    p.post("/dataset/sums?regression=true", files={name: (folder / f"{name}.npy").read_bytes() for name in data})
    p.function("sums", SUMS)
    body = {"function_name": "sums", "dataset": "sums", "epochs": 1, "batch_size": 32, "lr": 0.1}
    said = p.post("/train", 422, json={**body, "options": {"goal_accuracy": 99.5}})["detail"]
    assert said.startswith("options.goal_accuracy: 99.5 %") and "dataset sums has targets and no classes" in said, said
    assert p.get("/tasks?state=all") == []
    train = ["train", "-f", "sums", "-d", "sums", "-e", "1", "-b", "32", "--lr", "0.1"]
    done = subprocess.run([str(BIN / "kubeml"), *train, "--goal-accuracy", "90"], capture_output=True, text=True,
                          timeout=60 * STRETCH, env={**os.environ, **p.environment()})
    assert done.returncode == 1 and "options.goal_accuracy: 90 %" in done.stderr, (done.returncode, done.stderr)
    (folder / "sums.c").write_text(SUMS)
    options = [folder / "sums.c", "-e", 1, "--dataset", "sums"]
    home = {"KUBEML_HOME": str(p.folder / "home")}
    said = run(*options, "--goal-accuracy", 90, status=1, env=home)[1]
    assert "--goal-accuracy" in said and "targets and no classes" in said, said
    # 100 is no goal, and what a request has that names none.
    run(*options, "--goal-accuracy", 100, env=home)
    p.succeed(p.post("/train", json={**body, "options": {"goal_accuracy": 100}})["id"])
    done = subprocess.run([str(BIN / "kubeml"), *train, "--watch"], capture_output=True, text=True,
                          timeout=60 * STRETCH, env={**os.environ, **p.environment()})
    assert done.returncode == 0, done.stderr


@case(platform=False)
def saved_weights_are_a_beginning():
    folder, data = files()
    model = folder / "lenet.safetensors"
    first = epochs(run(LENET, *data, "-e", 2, "--json", "--save", model)[0])
    assert model.stat().st_size > 61706 * 4
    second = epochs(run(LENET, *data, "-e", 1, "--json", "--init", model)[0])
    assert second[0]["train_loss"] < first[0]["train_loss"]
    (folder / "wide.safetensors").write_bytes(harness.floats_as("F64", model.read_bytes()))
    wide = epochs(run(LENET, *data, "-e", 1, "--json", "--init", folder / "wide.safetensors")[0])
    assert [e["train_loss"] for e in wide] == [e["train_loss"] for e in second], "the same floats"
    # Where they cannot go is told before they are trained.
    for place, why in ((folder / "none/model.safetensors", "No such file or directory"), (folder, "is a folder")):
        out, said = run(LENET, *data, "-e", 2, "--json", "--save", place, status=1)
        assert out == "" and said.startswith(f"kubeml run: {place}: ") and why in said, (out, said)
    # Of another model it is refused by the tensor's name.
    said = run("--model", "mlp", *data, "-e", 1, "--init", model, status=1)[1]
    assert "fc1.weight" in said, said


@case(platform=False)
def all_layers_but_the_last_of_a_model_with_other_classes():
    folder, data = files()
    model, code = folder / "ten.safetensors", folder / "five.c"
    run(LENET, *data, "-e", 3, "--json", "--save", model)
    labels = list(data)
    for at, split in ((3, "train"), (7, "test")):  # five classes instead of ten
        raw = data[at].read_bytes()
        labels[at] = folder / f"five-{split}"
        labels[at].write_bytes(raw[:8] + bytes(b // 2 for b in raw[8:]))
    code.write_text(LENET.read_text())
    last = re.findall(r'"(fc\d)\.', (model.read_bytes()[8:3000]).decode("latin1"))[-1]
    said = run(code, *labels, "-e", 1, "--init", model, status=1)[1]
    assert f"tensor {last}.weight has shape (10, 84), the model's is (5, 84)" in said, said
    said = run(code, *labels, "-e", 1, "--init", model, "--init-without", "last", status=1)[1]
    assert said == f"kubeml run: {model}: no tensor of the model is last, nor begins with last.\n", said
    for wrong, part in (("fc,", "has an empty name"), ("", "no tensor is named")):
        said = run(code, *labels, "--init", model, "--init-without", wrong, status=2)[1]
        assert "--init-without: " in said and part in said, said
    said = run(code, *labels, "--init-without", last, status=2)[1]
    assert "--init-without goes with --init" in said, said
    still = [code, *labels, "-e", 1, "--lr", 1e-30, "--save"]  # no weight moves
    run(*still, folder / "fresh")
    for more in ([], ["--functions", 2]):
        run(*still, folder / "began", "--init", model, "--init-without", last, *more)
        ten, fresh, began = (harness.tensors_of(p.read_bytes()) for p in (model, folder / "fresh", folder / "began"))
        for name, (_, values) in began.items():
            assert values == (fresh if name.startswith(f"{last}.") else ten)[name][1], (name, more)


@case(platform=False)
def what_is_interrupted_leaves_the_weights_of_its_last_epoch():
    folder, data = files()
    model, pipe = folder / "lenet.safetensors", folder / "pipe"
    with start(LENET, *data, "-e", 10000, "--json", "--save", model) as process:
        try:
            first = json.loads(process.stdout.readline())
            until(model.exists)
            process.send_signal(signal.SIGINT)
            assert process.wait(60 * STRETCH) == -signal.SIGINT
        finally:
            process.kill()
    second = epochs(run(LENET, *data, "-e", 1, "--json", "--init", model)[0])
    assert second[0]["train_loss"] < first["train_loss"]
    os.mkfifo(pipe)  # who reads it takes the one model
    with start(LENET, *data, "-e", 3, "--json", "--save", pipe) as process:
        try:
            assert len(pipe.read_bytes()) == model.stat().st_size
            assert len(epochs(process.communicate(timeout=60 * STRETCH)[0])) == 3 and process.returncode == 0
        finally:
            process.kill()


@case(platform=False)
def a_models_text_says_what_code_says_in_its_transform():
    folder, data = files()
    code, seen = folder / "model.c", []
    for options, transform in (("", ".standardise = true"), (",flip=on,crop=4", ".standardise = true, .flip = true, .crop = 4"),
                               (",scale=min_max", ".min_max = true"), (",crop=2,scale=none", ".crop = 2")):
        code.write_text("#include <kubeml.h>\n"
                        "static kml_tensor model(kml_graph *g, kml_tensor x)\n"
                        "{\n    return kml_zoo(g, x, \"lenet5\", kml_classes(g));\n}\n"
                        "KUBEML_FUNCTION(.model = model, .optimizer = kml_sgd(.momentum = 0.9, .weight_decay = 1e-4),\n"
                        f"                .transform = kml_transform({transform}));\n")
        rest = [*data, "-e", 2, "--threads", 1, "--json"]
        by_text = epochs(run("--model", "lenet5" + options, *rest)[0])
        by_code = epochs(run(code, *rest)[0])
        for key in ("train_loss", "validation_loss"):
            assert [e[key] for e in by_text] == [e[key] for e in by_code], (options, by_text, by_code)
        seen.append(by_text[0]["train_loss"])
    assert len(set(seen)) == len(seen), seen
    said = run("--model", "lenet5,flip=both", *data, "-e", 1, status=1)[1]
    assert "flip 'both' is neither on nor off" in said, said


@case(platform=False)
def files_of_one_field_follow_each_other():
    """CIFAR-10's batches, as kubeml dataset create takes them; what is one array is refused twice."""
    folder, data = files()
    draw = np.random.default_rng(0)
    parts = []
    for i in range(3):
        rows = draw.integers(0, 256, (20 + i, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        parts.append(rows.tobytes())
        (folder / f"batch_{i}").write_bytes(parts[-1])
    (folder / "all").write_bytes(b"".join(parts[:2]))
    rest = ["--testdata", folder / "batch_2", "-b", 8, "-e", 1, "--threads", 1]
    batches = ["--traindata", folder / "batch_0", *rest, "--traindata", folder / "batch_1"]
    assert "41 + 22 samples of (3, 32, 32)" in run("--model", "mlp", *batches)[0]
    one, many = (epochs(run("--model", "mlp", *words, "--json")[0]) for words in (["--traindata", folder / "all", *rest], batches))
    assert one[0]["train_loss"] == many[0]["train_loss"], (one, many)
    said = run("--model", "lenet5", *data, *data[:2], status=1)[1]
    assert "x-train" in said, said


@case(platform=False)
def a_full_disk_is_told_with_its_cause():
    folder, data = files()
    (folder / "full").symlink_to("/dev/full")
    with open("/dev/full", "w") as full:
        said = run("--model", "lenet5", *data, "-e", 1, "--json", status=1, stdout=full)[1]
    assert said == "kubeml run: standard output: No space left on device\n", said
    said = run("--model", "lenet5", *data, "-e", 1, "--save", folder / "full", status=1)[1]
    assert said == "kubeml run: /dev/full: No space left on device\n", said
    assert (folder / "full").is_char_device()


@case(platform=False)
def its_functions_share_the_cores_that_it_may_run_on():
    _, data = files()
    cores = sorted(os.sched_getaffinity(0))

    def threads(functions, *on):
        os.sched_setaffinity(0, on)
        try:
            out, _ = run("--model", "lenet5", *data, "-e", 1, "--functions", functions)
        finally:
            os.sched_setaffinity(0, cores)
        return int(re.search(r"(\d+) threads?;", out)[1])

    assert threads(1, cores[0]) == threads(3, cores[0]) == 1
    most = threads(1, *cores[:4])
    for functions in range(2, 4):
        assert threads(functions, *cores[:4]) == max(1, most // functions), (functions, most)


@case(platform=False)
def its_lines_and_its_words():
    folder, data = files()
    out, said = run("--model", "lenet5", *data, "-e", 1)
    assert "61706 parameters" in out and "epoch   1/1   train loss" in out and not said, (out, said)
    assert "usage: kubeml run" in run("--help")[0]
    for arguments, part in (((LENET,), "no data"), ((), "no FILE.c"), ((LENET, *data, "-e", "0"), "--epochs"),
                            ((LENET, *data, "--lr", "-1"), "--lr"), ((LENET, *data, "--frob"), "--frob"),
                            ((LENET, "--model", "mlp", *data), "exclude"),
                            ((LENET, "--dataset", "x", *data[4:6]), "--dataset and files of data"),
                            ((LENET, "--dataset", "x", *data[6:8]), "--dataset and files of data"),
                            ((LENET, "--dataset", "x", "--regression"), "--regression"),
                            ((LENET, "--store", folder, *data), "--store goes with --dataset"),
                            ((LENET, *data[2:]), "no data")):
        said = run(*arguments, status=2)[1]
        assert part in said, said
    broken = folder / "broken.c"
    broken.write_text("#include <kubeml.h>\n\nint x = y;\n")
    said = run(broken, *data, status=1)[1]
    assert "broken.c:3:9: error: " in said, said
    said = run(folder / "none.c", *data, status=1)[1]
    assert "none.c" in said, said
    said = run(LENET, "--dataset", "x", status=1, env={"KUBEML_HOME": str(folder / "home")})[1]
    assert "no local platform" in said, said
    said = run(LENET, *data, "-e", 5, "--lr", 1000, status=1)[1]
    assert "NaNLoss" in said, said
    said = run(LENET, *data, "--lr", "1e30", status=2)[1]
    assert '--lr: "1e30" is not a number above 0 and at most 1e+06' in said, said


MODEL = """#include <kubeml.h>
static kml_tensor model(kml_graph *g, kml_tensor x) { return kml_linear(g, kml_flatten(g, x), 10); }
KUBEML_FUNCTION(.model = model, %s);
"""


@case(platform=False)
def a_value_without_its_name_is_a_mistake_at_its_line():
    """It would be the next one of the struct: kml_sgd(0.9) a weight decay of 0.9."""
    folder, data = files()
    code = folder / "unnamed.c"
    for settings, part in ((".optimizer = kml_sgd(\n0.9)", "positional initialization"),
                           (".optimizer = kml_adam(.beta1 = 0.8,\n0.9)", "positional initialization"),
                           (".schedule = kml_milestones(\n1, 3)", "positional initialization"),
                           (".transform = kml_transform(.flip = true,\n4)", "positional initialization"),
                           (".schedule = kml_milestones(.at = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,\n17})",
                            "excess elements in array initializer")):
        code.write_text(MODEL % settings)
        said = run(code, *data, status=1)[1]
        assert f"kubeml run: unnamed.c:4:1: error: {part}" in said, said


# It says that it was asked.
ENGINE = """#include <stdio.h>
#include "kernels/backend.h"
static int missing(err *e)
{
    e->code = ERR_UNSUPPORTED;
    snprintf(e->message, sizeof e->message, "it is a stand-in");
    return -1;
}
__attribute__((visibility("default"))) const char backend_cuda_seam[] = SEAM;
__attribute__((visibility("default"))) const backend backend_cuda = {.name = "cuda", .missing = missing};
"""


@case(platform=False)
def an_engine_of_another_build_is_not_used():
    folder, options = files()
    for name in ("bin", "lib"):
        (folder / name).mkdir()
    shutil.copy(BIN / "kubeml-function", folder / "bin")
    (folder / "engine.c").write_text(ENGINE)
    seam = (harness.BUILD / "backend_seam.h").read_text().split()[-1]

    def run_with(seam):
        subprocess.run(["gcc", "-D_GNU_SOURCE", "-I.", f"-DSEAM={seam}", "-shared", "-fPIC", "-o",
                        folder / "lib/kubeml-cuda.so", folder / "engine.c"], cwd=harness.ROOT, check=True)
        # As where there is a GPU: without its device nothing is loaded.
        done = subprocess.run(["bwrap", "--bind", "/", "/", "--dev", "/dev", "--ro-bind", "/dev/null", "/dev/nvidiactl",
                               folder / "bin/kubeml-function", "run", "--model", "lenet5", "--backend", "cuda", *options],
                              capture_output=True, text=True)
        if done.stderr.startswith("bwrap: "):
            harness.skip(f"no sandbox here: {done.stderr}")
        return done.stderr
    assert "it is a stand-in" in run_with(seam)
    other = run_with('"0"')
    reason = "backend cuda cannot run on this machine: the CUDA engine is not used: "
    assert reason in other and "kubeml-cuda.so is of another build than this program" in other.split(reason)[1], other
    assert "it is a stand-in" not in other, other


if __name__ == "__main__":
    harness.main(globals())
