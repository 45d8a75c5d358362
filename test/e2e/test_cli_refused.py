#!/usr/bin/python3
"""The command line where the input is wrong: usage (exit status 2), data, requests and code, or something lacks (1)."""
import http.server
import os
import pathlib
import re
import shutil
import tempfile
import threading

import numpy as np

import harness
from client import MODEL, Shell, arrays, make, ready, shell, train, upload
from harness import case, until


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


@case(limit=60, platform=False)
def a_server_that_is_none_of_ours_is_told_with_its_address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        Shell(KUBEML_URL=url).refused("task", "list", says=f"the server answered 501 to {url}/tasks")
        server.shutdown()


# ---- bad input -------------------------------------------------------------------------------------------

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
    # In more than one request: of each what fits, 1628 bytes a sample of zeros.
    many = np.zeros((6000, 1, 28, 28), np.float32)
    many[5500, 0, 2, 1] = np.inf
    np.save(s.folder / "many.npy", many)
    s.refused("infer", "-n", job, "--datafile", "many.npy", says="many.npy: an infinite value at [5500, 0, 2, 1]")
    np.save(s.folder / "wide.npy", np.zeros((2, 1, 5000, 1000), np.uint8))
    s.refused("infer", "-n", job, "--datafile", "wide.npy", says=["wide.npy: a sample", "8388608 bytes"])
    np.save(s.folder / "high.npy", np.full((3, 1200, 1200), 255, np.uint8))
    s.refused("infer", "-n", job, "--datafile", "high.npy", says=["1 of 3, as a request has 8388608 bytes", "(1, 1200, 1200)"])
    np.save(s.folder / "one.npy", np.uint8(1))
    s.refused("infer", "-n", job, "--datafile", "one.npy", says="one.npy: a single number")
    s.refused("infer", "-n", job, "--datafile", "cut.gz", says="cut.gz: ")
    s.refused("infer", "-n", job, "--datafile", ".", says=".: Is a directory")
    s.refused("infer", job, "-n", job, "--datafile", "x.npy", says="too much", status=2)
    s.refused("infer", "--datafile", "x.npy", says="which job?", status=2)
    s.write("many.json", "[" + "0," * 5000000 + "0]")
    s.refused("infer", "-n", job, "--datafile", "many.json", says=["many.json", "10000003 bytes"])
    s.write("bad.json", "[1,\n")
    s.refused("infer", "-n", job, "--datafile", "bad.json", says=["bad.json", "line 2"])
    s.refused("infer", "-n", job, "--datafile", "text.txt", says="neither npy, IDX nor JSON")


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
