"""make check-gpu-platform: the platform on a GPU. Jobs of several functions there, what `explain`, `top` and the books say of them,
and what is killed meanwhile; a CSV named by the GPU.

A row a case: passed, failed or left out, with figures or the last words. Every case has a platform of its own, with the programs
of BUILD, in a temporary folder, and ends it. What is judged is what the platform says of itself and, wherever models are averaged in
function order, that the weights are the same, bit for bit. What has never passed comes first. Exit status 1: a case failed; 75:
--seconds are over, the case that ran then has no row, and the same command goes on; 77: there is no GPU. However a case or this
script ends, but by SIGKILL, nothing of its platform stays on the GPU.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import results
from results import Clock, OutOfTime

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/e2e"))
try:
    import harness
    from harness import Skip, skip, until
except ImportError as missing:
    sys.exit(f"check-gpu-platform: {sys.executable}: {missing}")

COLUMNS = "gpu libraries case result seconds words".split()
LIMIT_S = 120  # of a job, and of an event in it
CASE_S = 240  # of a case: one that hangs leaves the others some of the time
START_S = 30  # which no case is begun without
START_GOAL_MS = 50
STARTS = 5
# What the jobs train, and how much of it; the tests of this script have less.
MODEL, LARGE, LARGE_BATCH = "lenet5", "resnet34", 16384
SAMPLES, EPOCHS, EPOCHS_KILLED, MANY = 8192, 5, 150, 64
OPTIONS = {"k": 8, "seed": 7, "device": "cuda", "static_parallelism": True, "default_parallelism": 4, "gpu": {"memory": "3Gi"}}
BY_IPC = "models are averaged on their one GPU, in function order, by CUDA IPC"
BY_NCCL = "models are averaged between their GPUs by NCCL, whose order of summation is its own"


def add_model(p):
    p.post("/function/model", json={"model": MODEL})


def end_all(p):
    """What is left of it, the pods too, which a controller that is killed does not end. The time is not over in here."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    jobs = {pod["job"] for pod in p.pods()}

    def ended():
        left = harness.processes_of(p.folder)
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left
    until(ended, message=lambda: f"left running: {harness.processes_of(p.folder)}")
    for segment in pathlib.Path("/dev/shm").glob("kubeml-*"):
        if segment.name.split("-")[1] in jobs:
            segment.unlink()


@contextlib.contextmanager
def platform(*options, **env):
    with tempfile.TemporaryDirectory(prefix="kubeml-gpu-", ignore_cleanup_errors=True) as folder:
        os.environ["TEST_TMP"] = folder
        p = harness.Platform("--gpus", "all", "--slots", str(2 * MANY), *options, home=folder,
                             env={"KUBEML_INCLUDE": str(ROOT / "function-runtime/include"), **env})
        try:
            p.start()
            p.dataset(files=harness.tiny_mnist(train=SAMPLES, test=SAMPLES // 8))
            add_model(p)
            yield p
            p.__exit__()  # ends by itself, and leaves nothing
        finally:
            end_all(p)


def gpus(p):
    return len(re.findall(r"GPU \d+: \S+, [0-9.]+ GiB", p.log_text()))


def train(p, function="model", **others):
    return p.train(function, **{"batch_size": 16, "epochs": EPOCHS, **OPTIONS, **others})


def averaging(p, job):
    """The evidence of where its models are averaged."""
    return next((line for line in p.get(f"/tasks/{job}/explain")["evidence"] if "averaged" in line), "")


def on_the_gpu(p, job):
    unused = [c for c in p.task(job)["conditions"] if c["type"] == "GpuUnused"]
    assert not unused, unused
    logs = p.get(f"/tasks/{job}/logs").decode(errors="replace")
    assert "is ready" in logs, logs[-2000:]


def epoch_ms(p, job):
    """The middle of its epochs' milliseconds, validation and all: of the same job averaged here and there what that costs."""
    return f"{1000 * statistics.median(p.get(f'/history/{job}')['data']['epoch_duration']):.0f} ms an epoch"


def trained(p, job):
    task = p.succeed(job, LIMIT_S)
    on_the_gpu(p, job)
    return task["sha256"]


def averages_on_the_gpu_with_the_hosts_bits():
    with platform() as p:
        job = train(p)
        sha = trained(p, job)
        where = averaging(p, job)
        assert BY_IPC in where, f"averaged elsewhere: {where}"
        by_ipc = epoch_ms(p, job)
        shared = train(p, process="shared")
        assert trained(p, shared) == sha, "other weights than in one process"
        in_one = epoch_ms(p, shared)
        p.stop()
        p.env["KUBEML_GPU_AVERAGE"] = "host"
        p.start()
        on_host = train(p)
        assert trained(p, on_host) == sha, "other weights than the host's averaging"
        return f"{where}: {by_ipc}; on the host {epoch_ms(p, on_host)}; in one process {in_one}"


CODE = harness.LENET


def takes_uploaded_code():
    if not shutil.which("gcc"):
        skip("there is no gcc, which compiles what is uploaded")
    with platform() as p:
        p.function("uploaded", CODE)
        job = train(p, "uploaded")
        trained(p, job)
        return f"accuracy {p.task(job)['accuracy']:.1f} %"


def survives_kills():
    with platform() as p:
        sha = trained(p, train(p, epochs=EPOCHS_KILLED))
        job = train(p, epochs=EPOCHS_KILLED)
        for i, victim in enumerate((dict(role="function", function=0), dict(role="function", function=1), dict(role="ps"))):
            until(lambda: p.task(job)["epoch"] >= 2 * i + 1, LIMIT_S)
            pid = p.pod(job=job, **victim)["pid"]
            os.kill(pid, signal.SIGKILL)
            until(lambda: not harness.alive(pid))
        assert trained(p, job) == sha, "other weights than without the kills"
        return averaging(p, job)


def holds_many_functions_in_a_process():
    with platform() as p:
        job = train(p, process="shared", default_parallelism=MANY, epochs=100000, gpu={"memory": "512Mi"})
        until(lambda: p.task(job)["epoch"] >= 2, LIMIT_S, message=lambda: f"it does not train: {p.task(job)}")
        pid = p.pod(job=job, role="function")["pid"]
        opened = len(os.listdir(f"/proc/{pid}/fd"))
        limit = re.search(r"Max open files +(\d+)", pathlib.Path(f"/proc/{pid}/limits").read_text())[1]
        on_the_gpu(p, job)
        p.delete(f"/tasks/{job}")
        p.wait(job)
        return f"{MANY} functions: {opened} open files of {limit}"


def keeps_a_cap_and_the_neighbours_feel_nothing():
    with platform() as p:
        sha = trained(p, train(p, default_parallelism=2, epochs=EPOCHS_KILLED))
        p.post("/function/large", json={"model": LARGE})
        beside = train(p, default_parallelism=2, epochs=EPOCHS_KILLED)
        until(lambda: p.task(beside)["epoch"] >= 1, LIMIT_S)
        job = train(p, "large", default_parallelism=1, batch_size=LARGE_BATCH)
        task = p.wait(job, LIMIT_S)
        assert (task["state"], task["reason"]) == ("failed", "GpuMemory"), task
        assert "layer" in task["message"] and "the cap is" in task["message"], task
        assert trained(p, beside) == sha, "other weights than alone"
        return task["message"]


def tells_what_a_function_takes():
    with platform() as p:
        job = train(p, default_parallelism=2, epochs=100000)

        def usage():
            figures = [row["gpu"] for row in p.get("/usage") if row["job"] == job and row.get("gpu")]
            return len(figures) == 2 and all(f.get("own_bytes") and f.get("percent") for f in figures) and figures
        figures = until(usage, 30, message=lambda: f"no own_bytes or percent: {p.get('/usage')}")
        label = f'jobid="{job}",function="0"'
        metrics = p.get("/metrics").decode()
        for name in ("gpu_percent", "gpu_memory_bytes", "gpu_watts", "gpu_own_bytes"):
            assert f"kubeml_function_{name}{{{label}}}" in metrics, name
        p.delete(f"/tasks/{job}")
        p.wait(job)
        assert p.get(f"/history/{job}").get("usage"), "the history has no usage"
        return "; ".join(" ".join(f"{k}={v}" for k, v in f.items()) for f in figures)


def starts_warm():
    with platform("--pool-functions", "2") as p:
        took = []
        for _ in range(STARTS + 1):  # the first measures algorithms
            p.warm(2, 1)
            job = train(p, default_parallelism=1, epochs=1)
            trained(p, job)
            took.append(p.task(job)["start_ms"]["total"])
        first, *rest = took
        middle = statistics.median(rest)
        words = (f"a job's beginning to its first trained batch: {middle:.0f} ms ({' '.join(f'{t:.0f}' for t in rest)}) of "
                 f"{START_GOAL_MS}; where nothing was measured before {first:.0f} ms")
        assert middle <= START_GOAL_MS, words
        return words


@contextlib.contextmanager
def mps():
    """The daemon, for one platform."""
    if not shutil.which("nvidia-cuda-mps-control"):
        skip("there is no nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory(prefix="kubeml-mps-", ignore_cleanup_errors=True) as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        done = subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **env}, capture_output=True, text=True, timeout=30)
        if done.returncode:
            skip(f"MPS's daemon does not start: {(done.stdout + done.stderr).strip()}")
        try:
            yield env
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], env={**os.environ, **env}, input="quit\n", text=True, timeout=30,
                           stdout=subprocess.DEVNULL, check=False)


def shares_by_mps():
    with mps() as env, platform(**env) as p:
        job = train(p, gpu={"memory": "3Gi", "threads": 25})
        trained(p, job)
        logs = p.get(f"/tasks/{job}/logs").decode(errors="replace")
        assert logs.count("MPS: 25 % of the threads, memory 0=3072M") == 4, logs[-2000:]
        return averaging(p, job)


def averages_between_gpus_by_nccl():
    with platform() as p:
        if gpus(p) < 2:
            skip("there is one GPU only")
        job = train(p, merge="nccl", default_parallelism=2)
        trained(p, job)
        where = averaging(p, job)
        assert BY_NCCL in where, f"averaged elsewhere: {where}"
        assert any(c["type"] == "Exact" and c["status"] == "False" for c in p.task(job)["conditions"]), p.task(job)
        return where


def spreads_over_gpus():
    with platform("--gpu-policy", "spread") as p:
        if gpus(p) < 2:
            skip("there is one GPU only")
        job = train(p, default_parallelism=2)
        trained(p, job)
        logs = p.get(f"/tasks/{job}/logs").decode(errors="replace")
        ready = set(re.findall(r"GPU (\S+) is ready", logs))
        assert len(ready) == 2, f"on {ready or 'none'}"
        return averaging(p, job)


CASES = [averages_on_the_gpu_with_the_hosts_bits, takes_uploaded_code, keeps_a_cap_and_the_neighbours_feel_nothing,
         tells_what_a_function_takes, starts_warm, survives_kills, holds_many_functions_in_a_process, shares_by_mps,
         averages_between_gpus_by_nccl, spreads_over_gpus]


def out_of_time(*_):
    raise OutOfTime


def run_case(case, clock):
    """(result, seconds, words)"""
    begin = time.monotonic()
    if clock.left(LIMIT_S) < START_S:
        raise OutOfTime
    try:
        signal.setitimer(signal.ITIMER_REAL, clock.left(CASE_S) + 0.01)  # by then the clock is over, if that was less
        result, words = "passed", case() or ""
    except OutOfTime:
        if clock.is_over():
            raise
        result, words = "failed", f"no end within {CASE_S} s"
    except Skip as reason:
        result, words = "left out", str(reason)
    except Exception as error:  # of whatever kind: it is this case's row, and the others are to run
        traceback.print_exc()
        result, words = "failed", str(error) or type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return result, time.monotonic() - begin, " / ".join(words.strip().splitlines())[-1000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="bench_gpu, which knows the GPU's name")
    parser.add_argument("out", type=pathlib.Path, help="the CSV's folder")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""],
                        help="cases with one of these in their names; what else the GPU's file has stays")
    results.add_options(parser)
    o = parser.parse_args()
    clock = Clock(o.seconds)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    gpu, libraries = results.find_gpu(o.bench, "check-gpu-platform", clock)
    path = results.csv_path(o.out, gpu, "platform")
    table = results.Results(path, COLUMNS, ["gpu", "libraries", "case"], "libraries")
    wanted = [case for case in CASES if any(part in case.__name__ for part in o.only)]
    names = {case.__name__ for case in wanted}

    table.know(lambda row: o.seconds and row["case"] in names and [row["gpu"], row["libraries"]] == [gpu, libraries] and
               not (o.again and row["result"] == "failed"))
    # What has never passed comes first: the time may not do for all.
    passed = {row["case"] for row in table.rows if row["result"] != "failed"}
    wanted.sort(key=lambda case: case.__name__ in passed)
    unfinished = 0
    for case in wanted:
        if table.find(gpu, libraries, case.__name__):
            continue
        try:
            result, seconds, words = run_case(case, clock)
        except OutOfTime:
            unfinished += 1
            continue
        table.add(gpu, libraries, case.__name__, result, f"{seconds:.1f}", words)
        print(f"{result:8} {case.__name__} ({seconds:.1f} s) {words}", flush=True)
    if not unfinished and o.only == [""]:
        table.keep(lambda row: row["case"] in names)
    table.end(libraries)
    count = {result: sum(row["result"] == result for row in table.now) for result in ("passed", "failed", "left out")}
    print(", ".join(f"{n} {result}" for result, n in count.items()))
    if unfinished:
        print(f"check-gpu-platform: {unfinished} cases are not run yet: the same command goes on", file=sys.stderr)
        sys.exit(results.UNFINISHED)
    sys.exit(1 if count["failed"] else 0)


if __name__ == "__main__":
    main()
