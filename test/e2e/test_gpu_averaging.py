#!/usr/bin/python3
"""Functions that are processes of their own on one GPU are averaged there: with the bits of the host's averaging, whatever
is killed, and `explain` says where and why. All programs are the platform's own; only the GPU is the tests': the engine's
fake device (test/cuda), whose memory is a file, and NVML's stand-in with two GPUs."""
import functools
import os
import pathlib
import signal
import tempfile

import fake_gpus
import harness
from fake_gpus import evidence, platform, prepare
from harness import case, until

OPTIONS = {"k": 1, "default_parallelism": 3, "seed": 7, "gpu": {"memory": "1Gi"}, "device": "cuda"}
HERE = "models are averaged on their one GPU, in function order, by CUDA IPC"
train = functools.partial(fake_gpus.train, options=OPTIONS)


@case(limit=240, platform=False)
def on_one_gpu_with_the_bits_of_the_hosts_averaging():
    with platform("--gpu-policy", "spread") as p:
        prepare(p)
        job = train(p)
        apart = p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "GPU GPU-0 is ready" in logs and "GPU GPU-1 is ready" in logs, logs
        assert any("on the host, in function order, through shared memory; not on a GPU: the model lies on another GPU" in line
                   for line in evidence(p, job)), evidence(p, job)
    with platform() as p:
        prepare(p)
        job = train(p)
        task = p.succeed(job)
        assert HERE in evidence(p, job), evidence(p, job)
        assert task["sha256"] == apart["sha256"], "other weights than the host's"
        assert not [c for c in task["conditions"] if c["type"] == "Exact" and c["status"] == "False"], task
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "is fetched" not in logs, logs
        shared = p.succeed(train(p, process="shared"))
        assert shared["sha256"] == task["sha256"], "other weights than in one process"
        reset = train(p, optimizer_state="reset")
        p.succeed(reset)
        assert HERE not in evidence(p, reset), "weights alone are averaged on the host"
    with platform(KUBEML_GPU_AVERAGE="host") as p:
        prepare(p)
        job = train(p)
        assert p.succeed(job)["sha256"] == task["sha256"], "other weights than on the GPU"
        assert any("KUBEML_GPU_AVERAGE says so" in line for line in evidence(p, job)), evidence(p, job)


@case(limit=240, platform=False)
def whatever_is_killed():
    with platform() as p:
        prepare(p)
        want = p.succeed(train(p, epochs=24))["sha256"]
        job = train(p, "paced", epochs=24)
        victims = [dict(role="function", function=0), dict(role="function", function=1), dict(role="ps"), None]
        for i, victim in enumerate(victims):
            until(lambda: p.task(job)["epoch"] >= 2 * i + 1, 60)
            pid = p.pod(job=job, **victim)["pid"] if victim else p.redis(job)
            os.kill(pid, signal.SIGKILL)
            until(lambda: not harness.alive(pid))
        task = p.succeed(job, 120)
        assert task["sha256"] == want, "other weights than without the kills"
        assert HERE in evidence(p, job), evidence(p, job)


@case(limit=300, platform=False)
def killed_at_every_phase():
    with platform() as p:
        prepare(p)
        want = p.succeed(train(p))["sha256"]
    for phase, count in (("fetch", 4), ("train", 5), ("average", 2), ("publish", 2), ("wait", 3), ("validate", 2)):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
        marker = folder / "fired"
        with platform(KUBEML_FAILPOINT=f"function.{phase}:{count}", KUBEML_FAILPOINT_FILE=str(marker)) as p:
            prepare(p)
            task = p.succeed(train(p))
            assert marker.exists(), f"no process was killed in {phase}"
            assert task["sha256"] == want, f"killed in {phase}: other weights"


if __name__ == "__main__":
    harness.main(globals())
