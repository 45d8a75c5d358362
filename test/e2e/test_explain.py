#!/usr/bin/python3
"""`kubeml explain`: each cause of waiting or failing is named, with its evidence, in the job's
conditions, the REST answer and the command line alike; and why an upload did not compile."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import harness
from harness import case, until

HEAD = "#include <kubeml.h>\n#include <math.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
MODEL = ("static kml_tensor model(kml_graph *g, kml_tensor x)\n"
         "{\n    return kml_linear(g, kml_flatten(g, x), 10);\n}\n")


def cli(p, *words, status=0):
    done = subprocess.run([harness.BIN / "kubeml", *words], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "KUBEML_URL": p.url})
    assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def explained(p, job, reason, *parts):
    """REST and the command line name that reason, and say those words."""
    why = p.get(f"/tasks/{job}/explain")
    assert why["reason"] == reason, why
    text = cli(p, "explain", job)
    assert reason in text and why["message"].replace("\n", "\\n") in text, (why, text)
    for part in parts:
        assert part in why["message"] + " ".join(map(str, why.get("evidence", []))), (part, why)
    return why


@case()
def no_free_slot(p):
    p.dataset()
    p.function()
    long = p.train(epochs=50000, default_parallelism=4)
    until(lambda: p.task(long)["state"] == "running")
    waits = p.train(epochs=1, default_parallelism=2)
    explained(p, waits, "NoFreeSlot", "0 of 4", long)
    p.delete(f"/tasks/{waits}")
    p.delete(f"/tasks/{long}")
    p.wait(long)


@case()
def more_functions_than_the_data_set_has_chunks(p):
    """A chunk is one function's: a static job is told that some have nothing to do, an elastic one does not grow beyond it."""
    p.dataset(files=harness.tiny_mnist(train=100))
    p.function()
    body = {"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01}
    options = {"default_parallelism": 4, "static_parallelism": True}
    said = "2 of the 4 functions train nothing"
    job = p.post("/train", json={**body, "options": options})
    assert said in job["note"] and 'dataset "tiny" has 2 chunks of 64 samples' in job["note"], job
    assert p.succeed(job["id"])["note"] == job["note"]
    assert job["note"] in p.get(f"/tasks/{job['id']}/explain")["evidence"]
    few = p.post("/train", json={**body, "options": {**options, "default_parallelism": 2}})
    assert "note" not in few and p.succeed(few["id"])["note"] is None, few
    fixed, note = cli(p, "train", "-f", "lenet", "-d", "tiny", "-p", "4", "--static").splitlines()
    assert said in note and p.succeed(fixed), note
    elastic, note = cli(p, "train", "-f", "lenet", "-d", "tiny", "-p", "4", "-e", "4").splitlines()
    assert "the job has no more than 2 functions" in note and p.succeed(elastic), note
    assert p.get(f"/history/{elastic}")["data"]["parallelism"] == [2] * 4


@case(platform=False)
def pool_empty():
    """With nothing warm a job waits for its pods. One that is held up at its start keeps it there until it was asked."""
    held = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))) / "held"
    with harness.Platform("--pool-functions", "0", "--pool-ps", "0", env={
            "KUBEML_FAILPOINT": "ps-starts:1:wait", "KUBEML_FAILPOINT_FILE": str(held)}) as p:
        p.dataset()
        p.function()
        job = p.train(epochs=1)
        until(held.exists, message="kubeml-ps is not held up")
        until(lambda: p.get(f"/tasks/{job}/explain")["reason"] == "PoolEmpty", message="never PoolEmpty")
        explained(p, job, "PoolEmpty")
        held.unlink()
        p.succeed(job)


GOOD = HEAD + MODEL + "KUBEML_FUNCTION(.model = model);\n"
BROKEN = GOOD.replace("10);", "10)")
WHERE = "broken.c:8:1: error: expected"


def upload(p, name, code, method="POST", status=200, file="broken.c"):
    return p.call(method, f"/function/{name}", status, files={"code": (file, code)})


def explained_function(p, name, state, reason, *parts):
    """As `explained`, of a function."""
    why = p.get(f"/function/{name}/explain")
    assert (why["name"], why["state"], why["reason"]) == (name, state, reason), why
    text = cli(p, "explain", name)
    for part in (f"function: {name}\n", reason, why["message"], *why["evidence"]):
        assert part in text, (part, text)
    for part in parts:
        assert part in why["message"] + "\n".join(why["evidence"]), (part, why)
    assert json.loads(cli(p, "explain", name, "-o", "json")) == why
    return why


@case()
def compile_error(p):
    """The compiler's words with their lines, and no function: told at once, and to whoever asks later."""
    folder = pathlib.Path(os.environ.get("TEST_TMP", "/tmp"))
    (folder / "broken.c").write_text(BROKEN)
    text = cli(p, "function", "create", "--name", "broken", "--code", str(folder / "broken.c"), status=1)
    assert WHERE in text, text
    p.get("/function/broken", 404)
    why = explained_function(p, "broken", "missing", "CompileError", "there is no version", WHERE)
    refused = why["refused"]
    assert why["version"] is None and refused["asked"] == "create" and WHERE in refused["error"], why
    first = refused["diagnostics"][0]
    assert (first["file"], first["line"], first["column"], first["severity"]) == ("broken.c", 8, 1, "error"), refused
    asked = {"function_name": "broken", "dataset": "none", "epochs": 1, "batch_size": 1, "lr": 0.1}
    said = p.post("/train", 404, json=asked)["detail"]
    assert 'there is no function "broken": its last upload did not compile: ' + WHERE in said, said
    upload(p, "broken", GOOD)
    assert 'no dataset "none"' in p.post("/train", 404, json=asked)["detail"]


@case()
def a_refused_update_leaves_the_version_in_use(p):
    upload(p, "updated", GOOD)
    assert explained_function(p, "updated", "ready", "Registered", "version 1 is in use", "broken.c")["refused"] is None
    for _ in range(2):
        upload(p, "updated", BROKEN, "PUT", 400)
    why = explained_function(p, "updated", "ready", "CompileError", "version 1 stays in use", WHERE)
    assert why["version"] == 1 and why["refused"]["asked"] == "update", why
    # The name is taken: nothing was compiled, and what is known stays.
    upload(p, "updated", "int x = ;", status=409)
    assert p.get("/function/updated/explain") == why
    # What is built next has the last word; also the same code again, and a model of the zoo.
    upload(p, "updated", GOOD, "PUT")
    assert explained_function(p, "updated", "ready", "Registered")["version"] == 1
    upload(p, "updated", BROKEN, "PUT", 400)
    p.call("PUT", "/function/updated", json={"model": "lenet5"})
    why = explained_function(p, "updated", "ready", "Registered", "version 2 is in use", "lenet5 of the zoo")
    assert why["refused"] is None, why
    upload(p, "updated", BROKEN, "PUT", 400)
    p.delete("/function/updated")
    p.get("/function/updated/explain", 404)
    assert 'no job and no function "updated"' in cli(p, "explain", "updated", status=1)


@case()
def what_is_no_fault_of_the_code_is_no_refusal(p):
    for code, file, says in ((GOOD, "broken.txt", "broken.txt"), (GOOD, "only.h", "no .c file"),
                             (b"// \xff\n" + GOOD.encode(), "latin.c", "latin.c is not UTF-8")):
        assert says in upload(p, "wrong", code, status=400, file=file)["detail"]
        p.get("/function/wrong/explain", 404)
    p.call("PUT", "/function/wrong", 404, files={"code": ("broken.c", BROKEN)})
    p.get("/function/wrong/explain", 404)


@case()
def a_refusal_outlives_the_controller(p):
    upload(p, "refused", BROKEN, status=400)
    before = explained_function(p, "refused", "missing", "CompileError", WHERE)
    assert p.stop() == 0
    p.start()
    assert explained_function(p, "refused", "missing", "CompileError", WHERE) == before
    p.kill()
    p.start()
    assert explained_function(p, "refused", "missing", "CompileError", WHERE) == before


@case(limit=120)
def refusals_are_bounded(p):
    """64 names; the oldest go."""
    for i in range(65):
        upload(p, f"n{i}", "int x = ;\n", status=400)
    p.get("/function/n0/explain", 404)
    for i in (1, 64):
        assert p.get(f"/function/n{i}/explain")["reason"] == "CompileError"


@case(platform=False)
def redis_missing():
    """It goes away between the submission, which asks for it, and the start of the job's kubeml-ps, whose last words are
    read although the controller, which stands still meanwhile, hears of its end first."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    held, redis = folder / "held", folder / "redis-server"
    redis.symlink_to(shutil.which("redis-server"))
    with harness.Platform("--pool-functions", "0", "--pool-ps", "0", env={
            "PATH": str(folder), "KUBEML_FAILPOINT": "ps-starts:1:wait,prepares:1:wait",
            "KUBEML_FAILPOINT_FILE": str(held)}) as p:
        p.dataset()
        p.post("/function/zoo", json={"model": "lenet5"})
        job = p.train(function="zoo", epochs=1)
        until(held.exists)
        redis.unlink()
        held.unlink()
        until(lambda: held.exists() and held.read_text().startswith("prepares "))
        ps = p.pod(job=job, role="ps")["pid"]
        p.process.send_signal(signal.SIGSTOP)
        held.unlink()
        until(lambda: not harness.alive(ps))
        p.process.send_signal(signal.SIGCONT)
        assert p.wait(job)["state"] == "failed"
        explained(p, job, "RedisMissing", "redis-server", "install")
        assert not any(c["type"] == "PSRestarted" for c in p.task(job)["conditions"]), p.task(job)


@case(limit=120)
def redis_gone(p):
    """Redis dies: the job's conditions say so, and that it came back."""
    p.dataset()
    p.function()
    job = p.train(epochs=50000, k=1)
    until(lambda: p.task(job)["epoch"] >= 1)
    os.kill(p.redis(job), signal.SIGKILL)
    until(lambda: any(c["type"] == "RedisGone" for c in p.task(job)["conditions"]))
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(limit=120, platform=False)
def redis_stays_away():
    """One that cannot be started again is named while it is tried; when it can be, the job goes on."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    (folder / "redis-server").write_text(f"#!/bin/sh\ntest ! -e {folder}/away || {{ echo out of order; exit 1; }}\n"
                                         f"exec {shutil.which('redis-server')} \"$@\"\n")
    (folder / "redis-server").chmod(0o755)
    with harness.Platform(env={"PATH": f"{folder}:{os.environ['PATH']}"}) as p:
        p.dataset()
        p.function()
        job = p.train(epochs=50000, k=1)
        until(lambda: p.task(job)["epoch"] >= 1)
        (folder / "away").touch()
        os.kill(p.redis(job), signal.SIGKILL)
        until(lambda: p.get(f"/tasks/{job}/explain")["reason"] == "RedisGone", message="never RedisGone")
        until(lambda: "cannot be restarted" in p.get(f"/tasks/{job}/explain")["message"], message="it does not say why")
        explained(p, job, "RedisGone", "the job's redis-server cannot be restarted", "out of order")
        before = p.task(job)["epoch"]
        (folder / "away").unlink()
        until(lambda: p.task(job)["epoch"] > before, 60, message="it does not go on")
        assert p.get(f"/tasks/{job}/explain")["reason"] != "RedisGone"
        p.delete(f"/tasks/{job}")
        p.wait(job)


@case(limit=150)
def store_down(p):
    """The store's folder cannot be written: the checkpoint waits, with the reason, then goes on."""
    p.dataset()
    p.function()
    job = p.train(epochs=50000, k=1)
    until(lambda: p.task(job)["epoch"] >= 1)
    tmp = p.folder / "home/store/tmp"
    hidden = p.folder / "home/store/tmp-hidden"
    tmp.rename(hidden)
    tmp.write_text("not a folder")
    try:
        until(lambda: p.get(f"/tasks/{job}/explain")["reason"] == "StoreDown", 30)
        explained(p, job, "StoreDown", "store/tmp")
    finally:
        tmp.unlink()
        hidden.rename(tmp)
    until(lambda: p.get(f"/tasks/{job}/explain")["reason"] != "StoreDown", 30)
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(limit=120)
def straggler(p):
    p.dataset()
    p.function()
    job = p.train(epochs=50000, k=1)
    until(lambda: p.task(job)["epoch"] >= 1)
    slow = p.pod(job=job, role="function", function=1)
    os.kill(slow["pid"], signal.SIGSTOP)
    try:
        until(lambda: p.get(f"/tasks/{job}/explain")["reason"] == "Straggler", 30)
        explained(p, job, "Straggler", "function 1")
    finally:
        os.kill(slow["pid"], signal.SIGCONT)
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case()
def not_a_number(p):
    p.dataset()
    doubled = "    x = kml_linear(g, kml_flatten(g, x), 10);\n" + "    x = kml_add(g, x, x);\n" * 140
    diverges = MODEL.replace("    return kml_linear(g, kml_flatten(g, x), 10);", doubled + "    return x;")
    p.function("nan", HEAD + diverges + "KUBEML_FUNCTION(.model = model);\n")
    job = p.train(function="nan", epochs=50)
    task = p.wait(job)
    assert task["state"] == "failed", task
    why = explained(p, job, "NaNLoss", "epoch 1")
    assert task["retries"] == 0 and not [c for c in task["conditions"] if c["type"] == "FunctionLost"], task
    if not harness.another_platform:  # in a cluster the pod may be gone before its log is asked for
        assert any(line.startswith("function-") and "NaNLoss: " in line for line in why["evidence"]), why


@case()
def crash_at_start(p):
    p.dataset()
    words = '    fputs("no table of weights\\n", stdout);\n    fputs("\\377 at all\\n", stderr);\n'
    crashing = MODEL.replace("    return", words + "    *(volatile int *)0 = 1;\n    return")
    p.function("crash", HEAD + crashing + "KUBEML_FUNCTION(.model = model);\n")
    job = p.train(function="crash")
    task = p.wait(job)
    assert task["state"] == "failed", task
    explained(p, job, "Crashed", "SIGSEGV", "no table of weights", "? at all", "crashed before it was ready")


@case(limit=90)
def crashes_again_and_again(p):
    """Each is survived, since it trains something in between: that it happens at all is told, and why."""
    p.dataset()
    step = """static int step(kml_step *s)
{
    static int steps;
    if (++steps == 6)
        *(volatile int *)0 = 1;
    return kml_gradients(s) ? -1 : kml_update(s, kml_learning_rate(s));
}
"""
    p.function("crash", HEAD + MODEL + step + "KUBEML_FUNCTION(.model = model, .step = step);\n")
    job = p.train(function="crash", epochs=1, k=1, default_parallelism=1)  # of 16 batches
    p.succeed(job)
    why = explained(p, job, "Completed", "FunctionLost: functions were lost 3 times, last: function 0: ")
    if not harness.another_platform:  # in a cluster there are longer words before that one
        assert any("SIGSEGV" in line for line in why["evidence"]), why
    assert p.get(f"/history/{job}")["lost"] == 3


def exact(task):
    return [(c["status"], c["reason"]) for c in task["conditions"] if c["type"] == "Exact"]


def left_out(p):
    """A job that runs, and one round of which was merged without a function that was lost."""
    job = p.train(p.paced(), epochs=50000, k=1, on_loss="continue")

    def one_lost_is_left_out():  # unless it had trained what was asked for, and waited
        before = p.task(job)["epoch"]
        os.kill(p.pod(job=job, role="function", function=1)["pid"], signal.SIGKILL)
        until(lambda: p.task(job)["epoch"] > before + 1)
        return exact(p.task(job))
    until(lambda: p.task(job)["epoch"] >= 1)
    until(one_lost_is_left_out)
    return job


@case()
def not_exact(p):
    """The weights are other ones than without what is told: that is bad where it is false, and stays when the job has ended."""
    p.dataset()
    job = left_out(p)
    p.delete(f"/tasks/{job}")
    p.wait(job)
    explained(p, job, "Cancelled", "Exact=False: epoch ", " is merged without function 1, which was lost")


@case(options=("--slots", "2"))
def not_exact_while_it_waits(p):
    """Neither that nor the model's hash is forgotten where it is resumed, suspended once more before it has begun, and resumed."""
    p.dataset()
    job = left_out(p)
    p.post(f"/tasks/{job}/suspend")
    sha256 = p.wait(job)["sha256"]
    until(lambda: not p.pods(job=job), message="pods of a suspended job")
    other = p.train("paced", epochs=50000)
    until(lambda: p.task(other)["state"] == "running")
    for ask in ("resume", "suspend"):
        p.post(f"/tasks/{job}/{ask}")
        task = p.task(job)
        assert task["state"] == ("queued" if ask == "resume" else "suspended"), task
        assert sha256 and task["sha256"] == sha256 and exact(task) == [("False", "LeftOut")], task
    p.post(f"/tasks/{job}/resume")
    p.delete(f"/tasks/{other}")
    until(lambda: p.task(job)["epoch"] > task["epoch"])
    task = p.task(job)
    assert task["sha256"] == "" and exact(task) == [("False", "LeftOut")], task
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case()
def ended_at_start(p):
    """Its last words are in the message itself, however long the lines before them."""
    p.dataset()
    leaves = MODEL.replace("    return", '    fputs("my table is empty\\n", stderr);\n    exit(3);\n    return')
    p.function("leaves", HEAD + leaves + "KUBEML_FUNCTION(.model = model);\n")
    job = p.train(function="leaves")
    assert p.wait(job)["state"] == "failed"
    why = explained(p, job, "Crashed", "exited with status 3", "my table is empty")
    if not harness.another_platform:  # in a cluster the pod may be gone before its log is asked for
        assert "my table is empty" in why["message"], why
        assert "my table is empty" in cli(p, "task", "wait", job, status=1)


@case(limit=90)
def ended_as_if_all_were_well(p):
    p.dataset()
    for name, ends in (("leaves", "exit(0)"), ("leaves-at-once", "_exit(0)")):
        step = f"#include <unistd.h>\nstatic int leave(kml_step *s)\n{{\n    (void)s;\n    {ends};\n}}\n"
        p.function(name, HEAD + MODEL + step + "KUBEML_FUNCTION(.model = model, .step = leave);\n")
        job = p.train(function=name)
        assert p.wait(job)["state"] == "failed"
        explained(p, job, "Crashed", "exited with status 1",
                  "ended the process with exit status 0 while it did: train, epoch 1")


@case(limit=90)
def what_code_says_stays_on_its_line(p):
    """Control bytes of a message do nothing to a terminal; and a log is quoted from the beginning of a word on."""
    p.dataset()
    step = r'static int step(kml_step *s) { return kml_step_fail(s, "first\n\x1b[31msecond é"); }'
    p.function("speaks", HEAD + MODEL + step + "\nKUBEML_FUNCTION(.model = model, .step = step);\n")
    job = p.train(function="speaks", default_parallelism=1)
    assert p.wait(job)["state"] == "failed"
    because = [line for line in cli(p, "explain", job).splitlines() if line.startswith("because: ")]
    assert because and r"first\n\x1b[31msecond é" in because[0], because
    if harness.another_platform:  # in a cluster the pod may be gone before its log is asked for
        return
    words = " ".join(f"words{i}" for i in range(100))
    p.function("talks", HEAD + MODEL.replace("    return", f'    fputs("{words}", stderr);\n    exit(3);\n    return')
               + "KUBEML_FUNCTION(.model = model);\n")
    job = p.train(function="talks", default_parallelism=1)
    assert p.wait(job)["state"] == "failed"
    quoted = p.task(job)["message"].split("its log ends: ")[1].split()
    assert quoted and all(word in words.split() for word in quoted[:-1]), quoted


@case(platform=False)
def a_function_that_takes_ever_more_memory():
    """Where functions have a limit it ends at that, alone: the rest is not short of memory for it."""
    takes = """#include <string.h>
static int step(kml_step *s)
{
    for (;;) {
        void *more = malloc(64 << 20);
        if (!more)
            return kml_step_fail(s, "no memory");
        memset(more, 1, 64 << 20);
    }
}
"""
    with harness.Platform("--function-memory", "2Gi") as p:
        p.dataset()
        p.function()
        p.function("takes", HEAD + MODEL + takes + "KUBEML_FUNCTION(.model = model, .step = step);\n")
        job, other = p.train(function="takes", default_parallelism=1), p.train(epochs=2, default_parallelism=2)
        assert p.wait(job)["state"] == "failed"
        explained(p, job, "StepFailed", "no memory")
        p.succeed(other)
        for pod in p.pods(role="function"):
            assert pathlib.Path(f"/proc/{pod['pid']}/oom_score_adj").read_text() == "500\n"


@case(limit=120)
def ps_restarted(p):
    p.dataset()
    job = p.train(p.paced(0.25), epochs=50000, k=1)  # it is said until the next epoch is there
    until(lambda: p.task(job)["epoch"] >= 1)
    os.kill(p.pod(job=job, role="ps")["pid"], signal.SIGKILL)
    until(lambda: p.get(f"/tasks/{job}/explain")["reason"] == "PSRestarted", 30,
          message=lambda: p.get(f"/tasks/{job}/explain"))
    explained(p, job, "PSRestarted", "kubeml-ps ended")
    before = p.task(job)["epoch"]
    until(lambda: p.task(job)["epoch"] > before)
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case()
def cancelled(p):
    p.dataset()
    p.function()
    job = p.train(epochs=50000)
    until(lambda: p.task(job)["state"] == "running")
    cli(p, "task", "stop", job)
    assert p.wait(job)["state"] == "cancelled"
    explained(p, job, "Cancelled")


if __name__ == "__main__":
    harness.main(globals())
