#!/usr/bin/python3
"""What a function may take of its GPU: what it is booked with there, also where the job says nothing of memory; and what it is
told to take, beside what all take. The GPUs are the tests' (test/cuda), of 8 GiB each, and the programs are the platform's."""
import harness
from fake_gpus import platform, prepare
from harness import case, until

JOB = {"epochs": 1, "default_parallelism": 1, "static_parallelism": True, "device": "cuda"}


@case(limit=120, platform=False)
def a_function_without_a_limit_is_held_to_the_part_it_is_booked_with():
    with platform() as p:
        prepare(p)
        p.post("/function/large", json={"model": "resnet20"})
        job = p.train("large", batch_size=4096, **JOB)
        task = p.wait(job)
        assert (task["state"], task["reason"]) == ("failed", "GpuMemory"), task
        assert "batch 4096, layer" in task["message"] and "the cap is 889.0 MiB" in task["message"], task
        job = p.train("small", batch_size=16, **JOB)
        p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "the engine may take 889.0 MiB of GPU memory, of a share of 1024.0 MiB" in logs, logs


@case(limit=120, platform=False)
def a_limit_is_of_the_process_and_of_all_functions_in_it():
    with platform() as p:
        prepare(p)
        job = p.train("small", batch_size=16, **JOB, gpu={"memory": "2Gi"})
        p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "the engine may take 1913.0 MiB of GPU memory, of a share of 2048.0 MiB" in logs, logs
        job = p.train("small", batch_size=16, **{**JOB, "default_parallelism": 3}, gpu={"memory": "2Gi"}, process="shared")
        p.succeed(job)
        logs = p.get(f"/tasks/{job}/logs").decode()
        assert "the engine may take 6009.0 MiB of GPU memory, of a share of 6144.0 MiB" in logs, logs


@case(limit=120, platform=False)
def a_share_that_cudas_context_fills_is_refused_with_what_is_needed():
    with platform() as p:
        prepare(p)
        job = p.train("small", batch_size=16, **JOB, gpu={"memory": "100Mi"})
        task = p.wait(job)
        assert (task["state"], task["reason"]) == ("failed", "GpuMemory"), task
        assert "CUDA's context takes 7 MiB of it, and more than 151 MiB are needed" in task["message"], task


@case(limit=120, platform=False)
def a_function_has_figures_of_its_own_beside_its_gpus():
    with platform() as p:
        prepare(p)
        job = p.train("paced", batch_size=16, **{**JOB, "epochs": 50000})
        gpu = until(lambda: next((row["gpu"] for row in p.get("/usage") if row["job"] == job), None), 60)
        assert (gpu["percent"], gpu["memory_bytes"], gpu["own_bytes"]) == (40, 1 << 30, 7 << 20), gpu
        assert 0 <= gpu["own_percent"] <= 12, gpu
        label = f'jobid="{job}",function="0"'
        gauges = dict(line.rsplit(" ", 1) for line in p.get("/metrics").decode().splitlines() if label in line)
        own = gauges["kubeml_function_gpu_own_bytes{%s}" % label], gauges["kubeml_function_gpu_own_percent{%s}" % label]
        assert float(own[0]) == 7 << 20 and 0 <= float(own[1]) <= 12, gauges
        p.delete(f"/tasks/{job}")
        p.wait(job)
        until(lambda: label not in p.get("/metrics").decode())


@case(limit=120, platform=False)
def what_nvml_does_not_tell_of_a_part_of_a_gpu_has_no_figure():
    with platform(FAKE_NVML="mig") as p:
        prepare(p)
        job = p.train("paced", batch_size=16, **{**JOB, "epochs": 50000})
        gpu = until(lambda: next((row["gpu"] for row in p.get("/usage") if row["job"] == job), None), 60)
        assert p.task(job)["gpus"] == ["MIG-2"], p.task(job)
        assert gpu == {"name": "Fake MIG-2", "memory_bytes": 1 << 28, "own_bytes": 7 << 20}, gpu
        label = f'jobid="{job}",function="0"'
        shown = {line.split("{")[0] for line in p.get("/metrics").decode().splitlines() if label in line}
        assert "kubeml_function_gpu_memory_bytes" in shown, shown
        assert not shown & {"kubeml_function_gpu_percent", "kubeml_function_gpu_watts"}, shown
        p.delete(f"/tasks/{job}")
        p.wait(job)


if __name__ == "__main__":
    harness.main(globals())
