#!/usr/bin/python3
"""Jobs whose functions share one process: the weights, ledger and validation of functions with a process each, bit for
bit, whatever is killed, and one contribution a round."""
import os
import pathlib
import signal
import tempfile

import harness
from harness import case, until

EPOCHS = 3
KILLS = harness.times(3)
OPTIONS = {"k": 2, "default_parallelism": 3, "seed": 7}


def prepare(p):
    p.dataset()
    p.function()


def compare(p, own, shared):
    """Two jobs that differ in their processes alone."""
    a, b = p.task(own), p.task(shared)
    assert a["sha256"] == b["sha256"], (a, b)
    old, new = p.get(f"/history/{own}"), p.get(f"/history/{shared}")
    assert old["ledger"] == new["ledger"], "another function put in what it should not have"
    for name in ("train_loss", "validation_loss", "accuracy", "parallelism"):
        assert old["data"][name] == new["data"][name], name
    assert not [c for c in b["conditions"] if c["type"] == "Exact" and c["status"] == "False"], b
    assert not [c for c in b["conditions"] if c["type"] == "FunctionLost"], "its process ended, and was replaced"


@case(limit=120)
def the_weights_of_functions_with_a_process_each(p):
    prepare(p)
    for options in ({}, {"k": -1}, {"merge": "server"}, {"optimizer_state": "reset", "default_parallelism": 4},
                    {"default_parallelism": 1}):
        options = {**OPTIONS, **options}
        own = p.train(epochs=EPOCHS, **options)
        p.succeed(own)
        shared = p.train(epochs=EPOCHS, process="shared", **options)
        p.succeed(shared)
        compare(p, own, shared)


@case(limit=60)
def it_is_one_pod_and_says_so(p):
    prepare(p)
    job = p.train(p.paced(), epochs=1000, process="shared", **OPTIONS)
    until(lambda: p.task(job)["epoch"] >= 1)
    pods = p.pods(job=job, role="function")
    assert [pod["function"] for pod in pods] == [0], pods
    said = p.get(f"/tasks/{job}/explain")["evidence"]
    assert ("its functions share one process; models are averaged on the host, in function order: not every function "
            "has a GPU") in said, said
    assert p.get("/ready")["slots_free"] == p.get("/ready")["slots"] - 3, "three functions are three slots"
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(limit=120)
def every_process_killed(p):
    """kill -9 of the functions' process, of kubeml-ps and of Redis: the weights are those of processes of their own."""
    prepare(p)
    # Long enough not to end while a victim is looked for: in a cluster that alone takes seconds.
    options = {"epochs": 20, **OPTIONS}
    want = p.train(**options)
    p.succeed(want)
    job = p.train(p.paced(), process="shared", **options)
    victims = [dict(role="function", function=0), dict(role="ps"), dict(role="function", function=0), None]
    for i, victim in enumerate(victims):
        until(lambda: p.task(job)["epoch"] >= 2 * i + 1)
        pid = p.pod(job=job, **victim)["pid"] if victim else p.redis(job)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not harness.alive(pid))
    task = p.succeed(job)
    assert task["sha256"] == p.task(want)["sha256"], "other weights than without the kills"
    assert p.get(f"/history/{job}")["ledger"] == p.get(f"/history/{want}")["ledger"], "another ledger"
    kinds = {c["type"] for c in task["conditions"]}
    assert "FunctionLost" in kinds and "PSRestarted" in kinds, task["conditions"]
    until(lambda: not p.pods(job=job), message="pods of an ended job")


@case(limit=240, platform=False)
def killed_at_every_phase():
    with harness.Platform() as p:
        prepare(p)
        want = p.succeed(p.train(epochs=EPOCHS, **OPTIONS))["sha256"]
    for phase, count in (("load", 1), ("fetch", 3), ("train", 7), ("publish", 3), ("wait", 3), ("validate", 2)):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
        marker = folder / "fired"
        with harness.Platform(home=str(folder), env={"KUBEML_FAILPOINT": f"function.{phase}:{count}",
                                                     "KUBEML_FAILPOINT_FILE": str(marker)}) as p:
            prepare(p)
            for _ in range(KILLS):
                marker.unlink(missing_ok=True)
                task = p.succeed(p.train(epochs=EPOCHS, process="shared", **OPTIONS))
                assert marker.exists(), f"no process was killed in {phase}"
                assert task["sha256"] == want, f"killed in {phase}: other weights"


@case(limit=60)
def the_controller_killed_and_the_job_stopped_and_resumed(p):
    prepare(p)
    want = p.succeed(p.train(epochs=8, **OPTIONS))["sha256"]
    job = p.train(p.paced(), epochs=8, process="shared", **OPTIONS)
    until(lambda: p.task(job)["epoch"] >= 2)
    p.kill()
    p.start()
    until(lambda: p.task(job)["epoch"] >= 3)
    p.delete(f"/tasks/{job}")
    assert p.wait(job)["state"] == "cancelled"
    p.post(f"/tasks/{job}/resume")
    assert p.succeed(job)["sha256"] == want


@case(limit=60)
def what_cannot_share_is_refused_and_what_fails_is_named(p):
    prepare(p)
    body = {"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01}
    for options, why in (({"process": "shared"}, "static_parallelism"),
                         ({"process": "both"}, "must be"),
                         ({"process": "shared", "static_parallelism": True, "default_parallelism": 65}, "at most 64"),
                         ({"process": "shared", "static_parallelism": True, "merge": "nccl"}, "nccl")):
        reply = p.ask("POST", "/train", None, json={**body, "options": options}, timeout=60)
        assert reply.status_code in (400, 422) and why in reply.text, (options, reply.status_code, reply.text)
    job = p.train(lr=1e6, epochs=3, process="shared", **OPTIONS)
    task = p.wait(job)
    assert task["state"] == "failed" and task["reason"] == "NaNLoss", task


if __name__ == "__main__":
    harness.main(globals())
