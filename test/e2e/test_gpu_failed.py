#!/usr/bin/python3
"""A GPU that fails under a function, as after an error of its memory or of another of MPS's clients: a new process finds it in
order, and the job ends with the weights that it would have had. The GPUs are the tests' (test/cuda)."""
import harness
from fake_gpus import platform, prepare, train
from harness import case

OPTIONS = {"k": 1, "default_parallelism": 2, "seed": 7, "gpu": {"memory": "1Gi"}, "device": "cuda"}


@case(limit=300, platform=False)
def once_and_the_job_goes_on():
    with platform() as p:
        prepare(p)
        want = p.succeed(train(p, options=OPTIONS))["sha256"]
        shared = p.succeed(train(p, options=OPTIONS, process="shared"))["sha256"]
        assert shared == want
    # while ways are measured, when the first model is drawn, in training, when averaging
    for calls, options in ((5, {}), (110, {}), (128, {}), (146, {}), (164, {}), (100, {"process": "shared"})):
        with platform(KUBEML_FAKE_GPU_FAILS=str(calls)) as p:
            prepare(p)
            job = train(p, options=OPTIONS, **options)
            task = p.succeed(job)
            assert any(c["type"] == "FunctionLost" for c in task["conditions"]), f"no GPU failed at call {calls}: {task}"
            assert task["sha256"] == want, f"a GPU failed at call {calls}: other weights"


@case(limit=120, platform=False)
def full_for_a_moment_and_the_job_goes_on():
    with platform(KUBEML_FAKE_GPU_FULL="1") as p:
        prepare(p)
        job = train(p, options=OPTIONS)
        task = p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "GpuMemory: model for samples" in logs and "the GPU has 8192 MiB left" in logs, logs
        assert any(c["type"] == "FunctionLost" for c in task["conditions"]), task


if __name__ == "__main__":
    harness.main(globals())
