#!/usr/bin/python3
"""What a function may take of its GPU: what it is booked with there, also where the job says nothing of memory. The GPUs are
the tests' (test/cuda), of 8 GiB each, and the programs are the platform's."""
import harness
from fake_gpus import platform, prepare
from harness import case

JOB = {"epochs": 1, "default_parallelism": 1, "static_parallelism": True, "device": "cuda"}


@case(limit=120, platform=False)
def a_function_without_a_limit_is_held_to_the_part_it_is_booked_with():
    with platform() as p:
        prepare(p)
        p.post("/function/large", json={"model": "resnet20"})
        job = p.train("large", batch_size=4096, **JOB)
        task = p.wait(job)
        assert (task["state"], task["reason"]) == ("failed", "GpuMemory"), task
        assert "batch 4096, layer" in task["message"] and "the cap is 512.0 MiB" in task["message"], task
        job = p.train("small", batch_size=16, **JOB)
        p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "the engine may take 512.0 MiB of GPU memory, of a share of 1024.0 MiB" in logs, logs


@case(limit=120, platform=False)
def a_limit_is_of_the_process_and_of_all_functions_in_it():
    with platform() as p:
        prepare(p)
        job = p.train("small", batch_size=16, **JOB, gpu={"memory": "2Gi"})
        p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "the engine may take 1536.0 MiB of GPU memory, of a share of 2048.0 MiB" in logs, logs
        job = p.train("small", batch_size=16, **{**JOB, "default_parallelism": 3}, gpu={"memory": "2Gi"}, process="shared")
        p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "the engine may take 5632.0 MiB of GPU memory, of a share of 6144.0 MiB" in logs, logs


if __name__ == "__main__":
    harness.main(globals())
