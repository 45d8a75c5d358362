#!/usr/bin/python3
"""What `make check-gpu-platform` does on a machine with a GPU, tried out on the tests' own: its cases pass there too, with a model
that this device computes in no time, and what fails or finds no time has its row or its word."""
import contextlib
import csv
import functools
import io
import os
import pathlib
import signal
import sys
import tempfile

import fake_gpus
import harness
from harness import ROOT, case, skip, until

sys.path.insert(0, str(ROOT / "test/gpu"))
import check_platform  # noqa: E402
import results  # noqa: E402

PROGRAM = harness.BIN / "bench_gpu"
TMP = os.environ.get("TEST_TMP")  # the cases have others


def check(out, *words):
    """(exit status, what is said, rows)"""
    if not PROGRAM.exists() or not fake_gpus.NVML.exists():
        skip("the programs on the fake GPU are not built: make tests (not under ThreadSanitizer)")
    if pathlib.Path("/dev/nvidiactl").exists():
        skip("here is a real GPU, which the tests' NVML does not know")
    c = check_platform
    c.add_model = lambda p: p.function("model", fake_gpus.CODE % "")
    c.CODE, c.LARGE, c.LARGE_BATCH = fake_gpus.CODE % "", "resnet20", 4096
    c.SAMPLES, c.EPOCHS, c.EPOCHS_KILLED, c.MANY, c.STARTS = 192, 2, 24, 8, 2
    c.START_GOAL_MS = 10**6  # which any machine reaches
    c.OPTIONS = {**c.OPTIONS, "k": 1, "default_parallelism": 3, "gpu": {"memory": "1Gi"}}
    os.environ.update(KUBEML_NVML=str(fake_gpus.NVML), KUBEML_FAKE_GPU=tempfile.mktemp(prefix="gpu", dir=TMP))
    said = io.StringIO()
    sys.argv = ["check", str(PROGRAM), str(out), *words]
    status = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            c.main()
        except SystemExit as end:
            status = end.code
    path = pathlib.Path(out) / "gpu-fake-platform.csv"
    text = path.read_text() if path.exists() else ""
    return status, said.getvalue(), {row["case"]: row for row in csv.DictReader(io.StringIO(text))}


def folder():
    return tempfile.mkdtemp(dir=TMP)


@case(limit=300, platform=False)
def its_cases_pass():
    status, said, rows = check(folder())
    assert status == 0 and len(rows) == len(check_platform.CASES), said
    left_out = [row["case"] for row in rows.values() if row["result"] == "left out"]
    assert left_out in ([], ["shares_by_mps"]), said
    assert "by CUDA IPC" in rows["averages_on_the_gpu_with_the_hosts_bits"]["words"], rows
    assert "of 256" in rows["holds_many_functions_in_a_process"]["words"], rows


@case(limit=120, platform=False)
def nothing_stays_on_the_gpu_however_a_case_ends():
    def be_over(_):
        results.Clock.is_over = lambda clock: True
        signal.raise_signal(signal.SIGALRM)
    ways = {
        "it takes too long": lambda p: signal.raise_signal(signal.SIGALRM),
        "the time is over": be_over,
        "this script is ended": lambda p: signal.raise_signal(signal.SIGTERM),
        "it fails": lambda p: 1 / 0,
        "its controller does not end": lambda p: p.process.send_signal(signal.SIGSTOP),
    }
    ended = []
    for how, end in ways.items():
        out, seen = folder(), []

        def trains_on():
            with check_platform.platform() as p:
                p.stop = functools.partial(harness.Platform.stop, p, seconds=1)
                seen.extend([p.folder, signal.getitimer(signal.ITIMER_REAL)[0]])
                job = check_platform.train(p, epochs=100000)
                until(lambda: p.task(job)["epoch"] >= 1, 60)
                seen.append(list(pathlib.Path("/dev/shm").glob(f"kubeml-{job}-*")))
                end(p)
        check_platform.CASES = [trains_on]
        status, said, rows = check(out, "--seconds", "100")
        where, left, segments = seen
        assert 30 < left <= 100, left
        assert not harness.processes_of(where), (how, harness.processes_of(where))
        assert segments and not any(segment.exists() for segment in segments), (how, segments)
        ended.append((status, rows.get("trains_on", {}).get("words", "").partition(":")[0]))
    assert ended == [(1, "no end within 240 s"), (75, ""), (143, ""), (1, "division by zero"),
                     (1, "the controller did not end by itself")], ended


@case(limit=60, platform=False)
def no_case_is_begun_without_time():
    out = folder()
    check_platform.CASES = [lambda: 1 / 0]
    assert check(out, "--seconds", "29")[::2] == (75, {})


@case(limit=60, platform=False)
def what_fails_has_its_row_and_no_time_is_told():
    out = folder()

    def fails():
        raise AssertionError("it was a Monday")
    check_platform.CASES = [fails]
    assert check(out, "--seconds", "0.000001")[::2] == (75, {})
    status, said, rows = check(out, "--seconds", "60")
    assert (status, rows["fails"]["result"], rows["fails"]["words"]) == (1, "failed", "it was a Monday"), (status, said)
    fails.__code__ = (lambda: "on a Tuesday").__code__
    assert check(out, "--seconds", "60")[0] == 1, "what failed is known"
    assert check(out, "--seconds", "60", "--again")[2]["fails"]["words"] == "on a Tuesday"


if __name__ == "__main__":
    harness.main(globals())
