#!/usr/bin/python3
"""Functions are placed on the GPUs that NVML knows (here: the tests' own, with two of 8 GiB and no driver behind them, so
that the functions compute on the CPU all the same), and a job that finds no room waits and says for what."""
import os
import pathlib
import tempfile

import harness
from harness import BUILD, case, skip, until

NVML = BUILD / "testlib/fake-nvml.so"
ENV = {"KUBEML_NVML": str(NVML)}
OPTIONS = ("--gpus", "all", "--slots", "8")


def prepare(p):
    if not NVML.exists():
        skip("the tests' NVML is not built: make tests")
    if pathlib.Path("/dev/nvidiactl").exists():
        skip("here is a real GPU, which the tests' NVML does not know")
    p.dataset()
    p.post("/function/lenet", json={"model": "lenet5"})


def placed(p, job, parallelism):
    """The GPUs of its functions, when it trains."""
    until(lambda: p.task(job)["epoch"] >= 1, 60, message=f"{job} does not train")
    gpus = p.task(job)["gpus"]
    assert len(gpus) == parallelism, gpus
    return gpus


@case(options=OPTIONS, env=ENV, limit=120)
def a_job_waits_for_gpu_memory_and_gets_it(p):
    prepare(p)
    long = p.train(epochs=50000, default_parallelism=3, gpu={"memory": "3Gi"})
    assert placed(p, long, 3) == ["GPU-0", "GPU-0", "GPU-1"], p.task(long)
    text = p.get(f"/tasks/{long}/explain")["evidence"]
    assert "function 2 is on GPU GPU-1" in text, text
    waits = p.train(epochs=1, default_parallelism=1, gpu={"memory": "6Gi"})
    why = until(lambda: (w := p.get(f"/tasks/{waits}/explain"))["reason"] == "NoGpuMemory" and w)
    assert "needs 6.0 GiB" in why["message"] and long in why["message"], why
    assert "2.0 of 8.0 GiB on GPU 0, 5.0 of 8.0 GiB" in why["message"], why
    p.delete(f"/tasks/{long}")
    p.succeed(waits, 60)


@case(options=OPTIONS, env=ENV, limit=120)
def a_shared_process_has_one_gpu_with_room_for_all_its_functions(p):
    prepare(p)
    small = p.train(epochs=50000, default_parallelism=1, gpu={"memory": "3Gi"})
    assert placed(p, small, 1) == ["GPU-0"]
    job = p.train(epochs=50000, default_parallelism=3, process="shared", gpu={"memory": "2Gi"})
    assert placed(p, job, 3) == ["GPU-1"] * 3, "5 GiB are free on GPU 0, and it needs 6"
    assert len(p.pods(job=job, role="function")) == 1
    waits = p.train(epochs=1, default_parallelism=3, process="shared", gpu={"memory": "2Gi"})
    why = until(lambda: (w := p.get(f"/tasks/{waits}/explain"))["reason"] == "NoGpuMemory" and w)
    assert "its 3 functions share a process and need 6.0 GiB of GPU memory on one GPU" in why["message"], why
    p.delete(f"/tasks/{small}")
    p.succeed(waits, 60)
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(options=(*OPTIONS, "--gpu-policy", "spread", "--pool-functions", "0"), env=ENV, limit=120)
def spread_uses_both(p):
    prepare(p)
    job = p.train(epochs=50000, default_parallelism=2, gpu={"memory": "1Gi"})
    assert placed(p, job, 2) == ["GPU-0", "GPU-1"], p.task(job)
    logs = p.get(f"/tasks/{job}/logs").decode()
    for gpu in ("GPU-0", "GPU-1"):
        assert f"placed on GPU {gpu}, and computing on the cpu backend" in logs, logs
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(options=OPTIONS, env=ENV, limit=120)
def a_function_that_computes_beside_its_gpu_is_told_of(p):
    prepare(p)
    job = p.train(epochs=1, default_parallelism=1)
    task = p.succeed(job)
    why = "function 0: placed on GPU GPU-0, and computing on the cpu backend: backend cuda cannot run on this machine"
    said = [c for c in task["conditions"] if c["type"] == "GpuUnused"]
    assert [c["status"] for c in said] == ["True"] and why in said[0]["message"], task
    assert any(why in line for line in p.get(f"/tasks/{job}/explain")["evidence"]), p.get(f"/tasks/{job}/explain")
    assert why in p.log_text(), p.log_text()
    asked = p.succeed(p.train(epochs=1, default_parallelism=1, device="cpu"))
    assert not [c for c in asked["conditions"] if c["type"] == "GpuUnused"], asked


def gpu_of(pod):
    for line in pathlib.Path(f"/proc/{pod['pid']}/environ").read_bytes().split(b"\0"):
        if line.startswith(b"CUDA_VISIBLE_DEVICES="):
            return line.split(b"=")[1].decode()
    return None


@case(options=OPTIONS, env=ENV, limit=120)
def warm_functions_wait_where_functions_are_placed(p):
    """By best fit, on one GPU until that is full."""
    prepare(p)
    p.warm(4, 1)
    warm = p.pods(role="function")
    assert {gpu_of(pod) for pod in warm} == {"GPU-0"}
    job = p.train(epochs=50000, default_parallelism=4)
    assert placed(p, job, 4) == ["GPU-0"] * 4
    assert {pod["pid"] for pod in p.pods(role="function", job=job)} == {pod["pid"] for pod in warm}
    full = p.train(epochs=50000, default_parallelism=1, gpu={"memory": "4Gi"})
    assert placed(p, full, 1) == ["GPU-0"]
    until(lambda: any(gpu_of(pod) == "GPU-1" for pod in p.pods(role="function") if not pod["job"]), 30)
    for one in (job, full):
        p.delete(f"/tasks/{one}")
        p.wait(one)


@case(options=(*OPTIONS, "--gpu-policy", "spread"), env=ENV, limit=120)
def warm_functions_belong_to_a_gpu(p):
    """A warm function has one GPU alone before its eyes; a job's function gets one of its GPU."""
    prepare(p)
    p.warm(2, 1)
    assert {gpu_of(pod) for pod in p.pods(role="function")} == {"GPU-0", "GPU-1"}
    job = p.train(epochs=50000, default_parallelism=2, gpu={"memory": "5Gi"})
    assert placed(p, job, 2) == ["GPU-0", "GPU-1"]
    for pod in p.pods(role="function", job=job):
        assert gpu_of(pod) in (None, f"GPU-{pod['function']}"), pod
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(platform=False, limit=120)
def books_go_by_the_names_of_gpus():
    """Another list, or a shorter one, when the controller is started again: a job stays on its GPU, or is on none that is there."""
    with harness.Platform(*OPTIONS, "--pool-functions", "0", env={**ENV}) as p:
        prepare(p)

        def again(gpus):
            p.kill()
            p.env["CUDA_VISIBLE_DEVICES"] = gpus
            p.start()
        first = p.train(epochs=50000, default_parallelism=1, gpu={"memory": "6Gi"})
        assert placed(p, first, 1) == ["GPU-0"]
        again("GPU-1,GPU-0")
        assert p.task(first)["gpus"] == ["GPU-0"]
        second = p.train(epochs=50000, default_parallelism=1, gpu={"memory": "6Gi"})
        assert placed(p, second, 1) == ["GPU-1"]
        again("GPU-1")
        assert (p.task(first)["gpus"], p.task(second)["gpus"]) == ([], ["GPU-1"])
        assert f"job {first}: function 0 was on GPU GPU-0, which is not there now" in p.log_text(), p.log_text()
        waits = p.train(epochs=1, default_parallelism=1, gpu={"memory": "6Gi"})
        why = until(lambda: (w := p.get(f"/tasks/{waits}/explain"))["reason"] == "NoGpuMemory" and w)
        assert "2.0 of 8.0 GiB on GPU 0" in why["message"], why
        p.delete(f"/tasks/{first}")
        p.delete(f"/tasks/{second}")
        p.succeed(waits, 60)


@case(options=OPTIONS, env=ENV, limit=120)
def a_function_without_the_engine_fails_where_a_gpu_is_insisted_on(p):
    prepare(p)
    job = p.train(epochs=1, default_parallelism=1, device="cuda")
    task = p.wait(job)
    assert task["state"] == "failed" and task["reason"] == "NoGpu", task
    assert "cuda" in task["message"], task
    on_cpu = p.train(epochs=1, default_parallelism=1, device="cpu")
    assert p.succeed(on_cpu)["gpus"] == []


@case(platform=False, limit=120)
def where_mps_runs_threads_count_and_its_limits_are_set():
    pipe = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    (pipe / "control").write_text("")
    with harness.Platform(*OPTIONS, env={**ENV, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)}) as p:
        prepare(p)
        long = p.train(epochs=50000, default_parallelism=4, gpu={"memory": "1Gi", "threads": 50})
        assert placed(p, long, 4) == ["GPU-0", "GPU-0", "GPU-1", "GPU-1"], p.task(long)
        logs = p.get(f"/tasks/{long}/logs").decode()
        assert logs.count("MPS: 50 % of the threads, memory 0=1024M") == 4, logs
        waits = p.train(epochs=1, default_parallelism=1, gpu={"memory": "1Gi", "threads": 10})
        why = until(lambda: (w := p.get(f"/tasks/{waits}/explain"))["reason"] == "NoGpuThreads" and w)
        assert "10 % of a GPU's threads" in why["message"], why
        p.delete(f"/tasks/{long}")
        p.succeed(waits, 60)
        shared = p.train(epochs=1, default_parallelism=2, process="shared", gpu={"memory": "1Gi", "threads": 50})
        p.succeed(shared, 60)
        logs = p.get(f"/tasks/{shared}/logs").decode()
        assert "MPS: 100 % of the threads, memory 0=2048M" in logs, logs


@case(options=("--gpus", "none"), limit=60)
def without_gpus_only_who_insists_waits(p):
    prepare(p)
    waits = p.train(epochs=1, default_parallelism=1, device="cuda")
    until(lambda: p.get(f"/tasks/{waits}/explain")["reason"] == "NoGpu")
    p.succeed(p.train(epochs=1, default_parallelism=1, gpu={"memory": "2Gi"}))
    assert p.get(f"/tasks/{waits}/explain")["reason"] == "NoGpu"


@case(platform=False, limit=60)
def who_asks_for_all_gpus_hears_of_one_that_does_not_answer():
    if not NVML.exists():
        skip("the tests' NVML is not built: make tests")
    for env, why in (({**ENV, "FAKE_NVML": "lost"}, 'GPU "0" does not answer (NVML\'s error 15)'),
                     ({"KUBEML_NVML": "/nowhere"}, "there is no NVML")):
        p = harness.Platform(*OPTIONS, env=env).start(wait=False)
        assert p.process.wait(30) == 1 and not p.url, p.log_text()
        assert "--gpus all: " in p.log_text() and why in p.log_text(), p.log_text()


@case(options=OPTIONS, env={**ENV, "FAKE_NVML": "old"}, limit=120)
def a_gpu_that_is_too_old_is_left_out(p):
    prepare(p)
    job = p.train(epochs=50000, default_parallelism=2, gpu={"memory": "1Gi"})
    assert placed(p, job, 2) == ["GPU-1", "GPU-1"], p.task(job)
    assert "GPU 0 is left out: the GPU has compute capability 7.5; 8.0 is needed" in p.log_text(), p.log_text()
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(options=OPTIONS, env=ENV, limit=120)
def what_no_gpu_could_hold_holds_nobody_up(p):
    prepare(p)
    never = p.train(epochs=1, default_parallelism=1, gpu={"memory": "9Gi"})
    p.succeed(p.train(epochs=1, default_parallelism=1, device="cpu"))
    p.succeed(p.train(epochs=1, default_parallelism=1, gpu={"memory": "1Gi"}))
    why = p.get(f"/tasks/{never}/explain")
    assert why["reason"] == "NoGpuMemory" and "the largest GPU has 8.0 GiB" in why["message"], why


harness.main(globals())
