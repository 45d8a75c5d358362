#!/usr/bin/python3
"""Functions that are processes of their own on GPUs of their own are averaged between the GPUs (`merge: nccl`): what comes out is the
mean, `explain` says where and the job that it is not exact, whatever is killed or fails ends well, and where NCCL cannot be the host
averages and the reason is named. All programs are the platform's own; only GPUs and NCCL are the tests' (test/cuda: an engine whose
device's memory is a file, and ranks that meet in it) and NVML's stand-in with two GPUs."""
import functools
import os
import pathlib
import signal
import tempfile

import numpy

import fake_gpus
import harness
from fake_gpus import evidence, platform, prepare
from harness import case, until

OPTIONS = {"k": 1, "default_parallelism": 2, "static_parallelism": True, "seed": 7, "device": "cuda", "merge": "nccl"}
HERE = "models are averaged between their GPUs by NCCL, whose order of summation is its own"
train = functools.partial(fake_gpus.train, options=OPTIONS)


def inexact(task):
    return [c for c in task["conditions"] if c["type"] == "Exact" and c["status"] == "False"]


def weights(p, job):
    path = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))) / "model.npz"
    path.write_bytes(p.get(f"/model/{job}?format=npz"))
    with numpy.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def check_close(a, b):
    assert a.keys() == b.keys() and a
    for name in a:
        assert numpy.allclose(a[name], b[name], rtol=1e-4, atol=1e-6), (name, abs(a[name] - b[name]).max())


@case(limit=240, platform=False)
def what_comes_out_is_the_mean():
    with platform() as p:
        prepare(p)
        host = train(p, merge="database")
        p.succeed(host)
        job = train(p)
        task = p.succeed(job)
        assert HERE in evidence(p, job), evidence(p, job)
        assert [c["reason"] for c in inexact(task)] == ["NcclOrder"], task
        assert not inexact(p.task(host)), "the host's averaging is exact"
        record = p.get(f"/history/{job}")
        assert any(c["type"] == "Exact" and c["status"] == "False" for c in record.get("conditions", [])), record
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "GPU GPU-0 is ready" in logs and "GPU GPU-1 is ready" in logs, "best fit would have put both on one"
        assert "rank 1 of 2 GPUs" in logs and "is fetched" not in logs, logs
        check_close(weights(p, host), weights(p, job))


@case(limit=240, platform=False)
def whatever_is_killed():
    with platform() as p:
        prepare(p)
        host = train(p, merge="database", epochs=24)
        p.succeed(host)
        job = train(p, "paced", epochs=24)
        victims = [dict(role="function", function=0), dict(role="function", function=1), dict(role="ps"), None]
        for i, victim in enumerate(victims):
            until(lambda: p.task(job)["epoch"] >= 2 * i + 1, 60)
            pid = p.pod(job=job, **victim)["pid"] if victim else p.redis(job)
            os.kill(pid, signal.SIGKILL)
            until(lambda: not harness.alive(pid))
            if i == 0:
                assert f'kubeml_job_averaging{{jobid="{job}",path="nccl"}} 1' in p.get("/metrics").decode()
        p.succeed(job, 120)
        assert HERE in evidence(p, job), evidence(p, job)
        assert inexact(p.task(job)), p.task(job)
        check_close(weights(p, host), weights(p, job))


@case(limit=400, platform=False)
def killed_at_every_phase():
    with platform() as p:
        prepare(p)
        host = train(p, merge="database")
        p.succeed(host)
        want = weights(p, host)
    for phase, count in (("fetch", 4), ("train", 5), ("connect", 1), ("reduce", 2), ("average", 2), ("publish", 2), ("wait", 3),
                         ("validate", 2)):
        marker = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))) / "fired"
        with platform(KUBEML_FAILPOINT=f"function.{phase}:{count}", KUBEML_FAILPOINT_FILE=str(marker)) as p:
            prepare(p)
            job = train(p)
            p.succeed(job)
            assert marker.exists(), f"no process was killed in {phase}"
            assert HERE in evidence(p, job), (phase, evidence(p, job))
            check_close(want, weights(p, job))


@case(limit=240, platform=False)
def where_it_cannot_be_the_host_averages_and_why_is_named():
    for env, options, why in (({"KUBEML_FAKE_NCCL": "missing"}, {}, "not by NCCL: NCCL is not installed: fake"),
                              ({"KUBEML_FAKE_NCCL": "init"}, {}, "not by NCCL: NCCL says: remote process exited"),
                              ({"KUBEML_FAKE_NCCL": "reduce"}, {}, "not by NCCL: NCCL says: remote process exited"),
                              ({}, {"default_parallelism": 3}, "not by NCCL: functions 0 and 2 are on one GPU")):
        with platform(**env) as p:
            prepare(p)
            host = train(p, **{"merge": "database", **options})
            p.succeed(host)
            job = train(p, **options)
            task = p.succeed(job)
            assert task["sha256"] == p.task(host)["sha256"], "other weights than the host's"
            assert not inexact(task), task
            assert any("on the host, in function order, through shared memory; " + why in line for line in evidence(p, job)), \
                evidence(p, job)


@case(limit=240, platform=False)
def errors_of_nccls_are_recovered_from():
    for fault in ("init:1", "reduce:2", "odd"):
        with platform(KUBEML_FAKE_NCCL=fault) as p:
            prepare(p)
            host = train(p, merge="database")
            p.succeed(host)
            job = train(p)
            task = p.succeed(job)
            logs = p.get(f"/tasks/{job}/logs").decode()
            assert HERE in evidence(p, job), (fault, evidence(p, job))
            assert ("its sum is another" if fault == "odd" else "remote process exited") in logs, (fault, logs)
            assert inexact(task), task
            check_close(weights(p, host), weights(p, job))


@case(limit=120, platform=False)
def on_one_gpu_it_is_by_cuda_ipc_and_exact():
    with platform(CUDA_VISIBLE_DEVICES="0") as p:
        prepare(p)
        job = train(p, default_parallelism=3)
        task = p.succeed(job)
        assert "models are averaged on their one GPU, in function order, by CUDA IPC" in evidence(p, job), evidence(p, job)
        assert not inexact(task), task


@case(limit=120, platform=False)
def what_can_never_be_is_refused():
    with platform() as p:
        prepare(p)
        for options, why in (({"static_parallelism": False}, "needs options.static_parallelism"),
                             ({"process": "shared"}, "a shared process has one"),
                             ({"optimizer_state": "reset"}, "averages the optimizer's state"),
                             ({"device": "cpu"}, "averages between GPUs")):
            reply = p.ask("POST", "/train", None, json={"function_name": "small", "dataset": "tiny", "epochs": 1, "batch_size": 16,
                                                        "lr": 0.1, "options": {**OPTIONS, **options}}, timeout=60)
            assert reply.status_code in (400, 422) and why in reply.text, (options, reply.status_code, reply.text)


if __name__ == "__main__":
    harness.main(globals())
