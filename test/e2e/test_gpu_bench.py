#!/usr/bin/python3
"""What `make check-gpu` and `make bench-gpu` do with what they measure, and what they say where there is no GPU. The benchmark
runs on the tests' own device and NVML: its numbers mean nothing, that they come and where they go is looked at."""
import contextlib
import csv
import os
import pathlib
import subprocess
import sys
import tempfile

import harness
from harness import BUILD, ROOT, case, skip

sys.path.insert(0, str(ROOT / "test/gpu"))
import bench_gpu  # noqa: E402

PROGRAM = BUILD / "fakegpu/bin/bench_gpu"
NVML = BUILD / "testlib/fake-nvml.so"
CHECKED = """#!/bin/sh
case $1 in
--list) printf '%s\\n' 'passes 5' 'fails 5' 'is_left_out 5' 'hangs 1' ;;
passes) echo fine ;;
fails) echo 'loss 1.0, on the CPU 2.0'; exit 1 ;;
is_left_out) echo 'left out: there is one GPU only'; exit 77 ;;
hangs) exec sleep 60 ;;
esac
"""


def folder():
    return pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@contextlib.contextmanager
def small():
    """The benchmark with a model that the tests' device computes in no time."""
    if not PROGRAM.exists():
        skip("the benchmark on the fake GPU is not built: make tests (not under ThreadSanitizer)")
    bench_gpu.WORK = [("mlp", [2], ["fp32"], {2: 10})]
    bench_gpu.SHARED, bench_gpu.FUNCTIONS, bench_gpu.STARTS, bench_gpu.FLOATS = ("mlp", 2, "fp32"), 2, 2, 1000
    # which any machine reaches
    bench_gpu.TOGETHER_GOAL, bench_gpu.PROCESSES_GOAL, bench_gpu.START_GOAL_MS, bench_gpu.MERGE_GOAL = 0, 0, 10**9, 0
    os.environ["KUBEML_NVML"] = str(NVML)
    yield


def bench(out, *words):
    """The exit status, or the words that are said with a 1."""
    sys.argv = ["bench_gpu.py", str(PROGRAM), str(out), *words]
    try:
        bench_gpu.main()
    except SystemExit as end:
        return end.code
    return 0


@case(platform=False)
def every_part_of_the_benchmark_has_its_rows():
    out = folder()
    with small():
        assert bench(out) == 0
    rows = read(out / "gpu-fake-bench.csv")
    ours = [r for r in rows if r["engine"].startswith("kubeml")]
    assert {(r["part"], r["engine"]) for r in ours} == {
        ("steps", "kubeml"), ("steps", "kubeml, samples on the device"), ("functions", "kubeml"),
        ("start", "kubeml, never measured"), ("start", "kubeml"), ("merge", "kubeml")}, rows
    assert all(r["gpu"] == "fake" and "failed" not in r["goal"] for r in rows), rows
    together = next(r for r in ours if r["part"] == "functions")
    assert (together["gpu_percent"], together["watts"], together["mib"]) == ("40", "123.4", "1024"), together
    start = next(r for r in ours if (r["part"], r["engine"]) == ("start", "kubeml"))
    assert "of 1000000000 ms: compiling" in start["goal"] and float(start["us_per_step"]) > 0, start


@case(platform=False)
def parts_that_are_not_measured_stay_and_what_fails_has_a_row():
    out = folder()
    with small():
        assert bench(out, "--only", "merge,start") == 0
        bench_gpu.FLOATS = 0
        assert "1 failed, 0 missed" in bench(out, "--only", "merge")
    rows = read(out / "gpu-fake-bench.csv")
    assert [r["part"] for r in rows] == ["start", "start", "merge"], rows
    assert "failed: " in rows[2]["goal"] and "wrong number" in rows[2]["goal"], rows


@case(platform=False)
def a_goal_that_is_missed_is_said_and_counts():
    out = folder()
    with small():
        bench_gpu.START_GOAL_MS, bench_gpu.TOGETHER_GOAL = 0, 10**9
        assert "0 failed, 2 missed" in bench(out, "--only", "start,functions,merge")
    missed = {(r["part"], r["engine"]) for r in read(out / "gpu-fake-bench.csv") if r["goal"].startswith("missed: ")}
    assert missed == {("start", "kubeml"), ("functions", "kubeml")}, missed


@case(platform=False)
def every_case_of_the_check_has_a_row():
    out = folder()
    program = out / "test_it"
    program.write_text(CHECKED)
    program.chmod(0o755)
    with small():
        done = subprocess.run([sys.executable, str(ROOT / "test/gpu/check_gpu.py"), str(PROGRAM), str(out), str(program)],
                              capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {r["case"]: r for r in read(out / "gpu-fake-check.csv")}
    assert {name: r["result"] for name, r in rows.items()} == {
        "passes": "passed", "fails": "failed", "is_left_out": "left out", "hangs": "failed"}, rows
    assert "on the CPU 2.0" in rows["fails"]["words"] and "no end within 4 s" in rows["hangs"]["words"], rows


@case(platform=False)
def without_a_gpu_the_goals_say_so_and_build_nothing():
    if pathlib.Path("/dev/nvidiactl").exists():
        skip("here is a GPU")
    out = folder()
    for goal in ("gpu", "check-gpu", "bench-gpu", "bench-paper-gpu"):
        done = subprocess.run(["make", "--no-print-directory", goal, f"BUILD={out}/build", f"GPU_OUT={out}/results"],
                              cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0 and "no /dev/nvidiactl" in done.stderr, (goal, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr and not list(out.iterdir()), (goal, done.stderr)


if __name__ == "__main__":
    harness.main(globals())
