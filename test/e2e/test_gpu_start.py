#!/usr/bin/python3
"""What a function does with the GPU that it was given, before its job and as it begins: a warm one keeps what the driver opened. The
engine is on the tests' own GPU (test/cuda), whose descriptors it holds as the driver's are held; the programs are the platform's."""
import harness
from fake_gpus import platform, prepare, train
from harness import case, until

OPTIONS = {"default_parallelism": 2, "static_parallelism": True, "device": "cuda"}


@case(limit=120, platform=False)
def a_warm_function_computes_on_the_gpu_that_was_made_ready():
    with platform("--gpu-policy", "spread", "--pool-functions", "2", "--pool-ps", "1") as p:
        prepare(p)
        p.warm(2, 1)
        warm = {pod["pid"] for pod in p.pods(role="function")}
        # Both are on GPUs of their own, and on none is there room for two.
        job = train(p, "paced", options=OPTIONS, gpu={"memory": "5Gi"}, epochs=50000)
        task = until(lambda: ((t := p.task(job))["state"] == "failed" or t["epoch"] >= 1) and t, 60, message=f"{job} does not train")
        assert task["state"] == "running", task
        assert {pod["pid"] for pod in p.pods(role="function", job=job)} == warm
        p.delete(f"/tasks/{job}")
        p.wait(job)


if __name__ == "__main__":
    harness.main(globals())
