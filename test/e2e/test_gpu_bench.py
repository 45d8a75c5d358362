#!/usr/bin/python3
"""What `make check-gpu` and `make bench-gpu` do with what they measure, and what they say where there is no GPU. The benchmark
runs on the tests' own device and NVML: its numbers mean nothing, that they come and where they go is looked at."""
import contextlib
import csv
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import harness
from harness import BUILD, ROOT, case, skip

sys.path.insert(0, str(ROOT / "test/gpu"))
import bench_gpu  # noqa: E402
import bench_paper_gpu  # noqa: E402
import results  # noqa: E402

PROGRAM = BUILD / "fakegpu/bin/bench_gpu"
NVML = BUILD / "testlib/fake-nvml.so"
CHECKED = """#!/bin/sh
case $1 in
--list) printf '%s\\n' 'passes 5' 'fails 5' 'is_left_out 5' 'hangs 1' 'leaves_a_child 5' ;;
passes) [ -d test/golden ] && echo fine ;;
fails) echo 'loss 1.0, on the CPU 2.0'; exit 1 ;;
is_left_out) echo 'left out: there is one GPU only'; exit 77 ;;
hangs) exec sleep 60 ;;
leaves_a_child) sleep 60 & echo $! >${0%/*}/child; exit 1 ;;
esac
"""
# In bench_gpu's: batch norm beside a cuDNN that is slower, then one that is faster and lacks a way, then one that is wrong.
NORMS = """#!/bin/sh
case "$*" in
gpu) echo 'fake|none own1' ;;
'norm 64 32 128 fp32') echo '40.00 60.00 50.00 2500 80.00 100.00 -3000.00 2900 0.00012' ;;
'norm 64 32 128 bf16') echo '40.00 -3000.00 20.00 1250 80.00 -3000.00 -2.00 1450 0.0012' ;;
'norm 128 16 128 fp32') echo '1.00 2.00 2.00 1 1.00 2.00 2.00 1 nan' ;;
*) echo 'bench_gpu: no memory' >&2; exit 1 ;;
esac
"""
HANGS = f"""#!/bin/sh
[ "$1" = gpu ] || exec sleep 60
exec {PROGRAM} gpu
"""
# In PyTorch's place: 100 microseconds a step, unless FAKE_PEER says that it fails or hangs.
PEER = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo "a library's words"
echo ready
read line
case $FAKE_PEER in
fails) echo 'no more memory' >&2; exit 1 ;;
hangs) exec sleep 60 ;;
*) sleep 0.5; echo us 100 ;;
esac
read line
exit 0
"""


def folder():
    return pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    with open(path, "w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def others(rows):
    """As other kernels had measured them."""
    return [{**row, **{name: "others" for name in ("libraries", "kernels") if name in row}} for row in rows]


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


def call(main, *words):
    """(exit status, what is said on stderr)"""
    said = io.StringIO()
    sys.argv = ["script", *map(str, words)]
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        return end.code, said.getvalue()
    return 0, said.getvalue()


def bench(out, *words):
    return call(bench_gpu.main, PROGRAM, out, *words)


@case(platform=False)
def every_part_of_the_benchmark_has_its_rows():
    out = folder()
    with small():
        assert bench(out)[0] == 0
    rows = read(out / "gpu-fake-bench.csv")
    assert {(r["part"], r["engine"]) for r in rows} == {
        ("steps", "kubeml"), ("steps", "kubeml, samples on the device"), ("functions", "kubeml, one alone"),
        ("functions", "kubeml"), ("start", "kubeml, never measured"), ("start", "kubeml"), ("merge", "kubeml")}, rows
    assert all(r["gpu"] == "fake" and " own" in r["libraries"] and "failed" not in r["goal"] for r in rows), rows
    together = next(r for r in rows if (r["part"], r["engine"]) == ("functions", "kubeml"))
    assert (together["gpu_percent"], together["watts"], together["mib"]) == ("40", "123.4", "1024"), together
    start = next(r for r in rows if (r["part"], r["engine"]) == ("start", "kubeml"))
    assert "of 1000000000 ms: compiling" in start["goal"] and float(start["us_per_step"]) > 0, start


@case(platform=False)
def pytorchs_side_is_beside_ours():
    out = folder()
    sys.executable = str(script(out / "python", PEER))
    with small():
        # Our side was there before: it is judged when its peer is.
        python, sys.executable = sys.executable, "/none"
        assert bench(out, "--only", "steps,functions", "--seconds", "60")[0] == 0
        assert not any(r["goal"] for r in read(out / "gpu-fake-bench.csv") if r["part"] == "steps")
        sys.executable = python
        status, said = bench(out, "--only", "steps,functions,compiled", "--seconds", "60")
    rows = {(r["part"], r["engine"]): r for r in read(out / "gpu-fake-bench.csv")}
    eager, processes = rows["steps", "torch-eager"], rows["functions", "torch-eager processes"]
    assert (eager["us_per_step"], eager["samples_per_s"], eager["watts"]) == ("100.00", "20000.0", "123.4"), eager
    assert processes["samples_per_s"] == "40000.0", processes  # of both
    assert rows["compiled", "torch-compile max-autotune"]["us_per_step"] == "100.00", rows
    ours = [rows["steps", "kubeml"], rows["steps", "kubeml, samples on the device"]]
    for row in ours:
        ratio = 100 / float(row["us_per_step"])
        assert row["goal"] == f"missed: {ratio:.2f} of 10 times eager", row
    assert (status, "0 failed, 2 missed" in said) == (1, True), said


@case(platform=False)
def a_peer_that_fails_or_hangs_is_a_row_and_leaves_nobody_behind():
    out = folder()
    sys.executable = str(script(out / "python", PEER))
    bench_gpu.PEER_S = 3
    with small():
        for how, words in (("fails", "failed: PyTorch: no more memory"), ("hangs", "failed: PyTorch: no end within 3 s")):
            os.environ["FAKE_PEER"] = how
            assert "1 failed" in bench(out, "--only", "functions")[1]
            row = next(r for r in read(out / "gpu-fake-bench.csv") if r["engine"] == "torch-eager processes")
            assert row["goal"] == words, row
    left = subprocess.run(["pgrep", "-f", str(out / "python")], capture_output=True, text=True).stdout
    assert not left, left


@case(platform=False)
def parts_that_are_not_measured_stay_and_what_fails_has_a_row():
    out = folder()
    with small():
        assert bench(out, "--only", "merge,start")[0] == 0
        bench_gpu.FLOATS = 0
        status, said = bench(out, "--only", "merge")
        assert status == 1 and "1 failed, 0 missed" in said, said
    rows = read(out / "gpu-fake-bench.csv")
    assert [r["part"] for r in rows] == ["start", "start", "merge"], rows
    assert "failed: " in rows[2]["goal"] and "wrong number" in rows[2]["goal"], rows


@case(platform=False)
def batch_norm_is_beside_cudnns():
    out = folder()
    program = script(out / "bench_gpu", NORMS)
    with small():
        status, said = call(bench_gpu.main, program, out, "--only", "norm")
    rows = {(r["work"], r["precision"]): r for r in read(out / "gpu-fake-bench.csv")}
    assert len(rows) == 8 and all(r["part"] == "norm" and r["batch"] == "128" for r in rows.values()), rows
    first, second = rows["64x32x32", "fp32"], rows["64x32x32", "bf16"]
    assert (first["us_per_step"], first["goal"]) == (
        "120.00", "forward 40.0 us, 2500 GB/s, cuDNN's spatial 60.0, persistent 50.0: ours is 1.25 times as fast; "
        "backward 80.0 us, 2900 GB/s, cuDNN's spatial 100.0, persistent refused (3000): ours is 1.25 times as fast"), first
    assert second["goal"] == (
        "forward 40.0 us, 1250 GB/s, cuDNN's spatial refused (3000), persistent 20.0: cuDNN's is 2.00 times as fast; "
        "backward 80.0 us, 1450 GB/s, cuDNN's spatial refused (3000), persistent refused (2)"), second
    assert rows["128x16x16", "fp32"]["goal"].startswith("failed: cuDNN's results are nan of ours away; forward 1.0 us"), rows
    assert (status, "6 failed, 0 missed" in said) == (1, True), said


@case(platform=False)
def batch_norm_is_left_out_where_there_is_no_cudnn_and_said_so_when_asked_for():
    out = folder()
    with small():
        assert bench(out, "--only", "merge")[0] == 0 and len(read(out / "gpu-fake-bench.csv")) == 1
        assert bench(out, "--only", "norm,merge") == (0, "")
        rows = read(out / "gpu-fake-bench.csv")
        assert [(r["part"], r["goal"].partition(":")[0]) for r in rows][0] == ("norm", "left out") and len(rows) == 2, rows
        assert rows[0]["goal"] == "left out: bench_gpu: norm is not in this build, which has no cuDNN", rows


@case(platform=False)
def a_goal_that_is_missed_is_said_and_counts():
    out = folder()
    with small():
        bench_gpu.START_GOAL_MS, bench_gpu.TOGETHER_GOAL = 0, 10**9
        status, said = bench(out, "--only", "start,functions,merge")
        assert status == 1 and "0 failed, 2 missed" in said, said
    missed = {(r["part"], r["engine"]) for r in read(out / "gpu-fake-bench.csv") if r["goal"].startswith("missed: ")}
    assert missed == {("start", "kubeml"), ("functions", "kubeml")}, missed


@case(platform=False)
def a_benchmark_with_little_time_goes_on_where_it_ended():
    out = folder()
    path = out / "gpu-fake-bench.csv"
    with small():
        hangs = script(out / "hangs", HANGS)
        assert call(bench_gpu.main, hangs, out, "--only", "merge,start", "--seconds", "5") == (75, mention("merge"))
        hangs.write_text("#!/bin/sh\nexec sleep 60\n")
        assert call(bench_gpu.main, hangs, out, "--seconds", "0.01") == (75, BEFORE)
        assert bench(out, "--only", "merge", "--seconds", "60")[0] == 0
        merged = read(path)
        assert bench(out, "--only", "merge,start", "--seconds", "60")[0] == 0
        whole = read(path)
        assert whole[:1] == merged and len(whole) == 3, whole
        assert bench(out, "--only", "merge,start", "--seconds", "60")[0] == 0 and read(path) == whole
        # What failed stays until it is asked for; what other kernels did is measured again.
        rows = [{**whole[0], "goal": "failed: it was a Monday"}, {**whole[1], "libraries": "others"}, whole[2]]
        write(path, rows)
        assert bench(out, "--only", "merge,start", "--seconds", "60")[0] == 1
        now = read(path)
        assert now[0] == rows[0] and now[1] == rows[2] and now[2]["libraries"] == whole[0]["libraries"], now
        assert bench(out, "--only", "merge,start", "--seconds", "60", "--again")[0] == 0
        assert len(read(path)) == 3 and all("failed" not in r["goal"] for r in read(path))
        assert bench(out, "--only", "functions", "--seconds", "60")[0] == 0
    assert (out / "gpu-fake-bench.algorithms").exists()


@case(platform=False)
def a_pytorch_that_does_not_answer_is_no_success():
    out = folder()
    python = script(out / "python", "#!/bin/sh\nexit 3\n")
    sys.executable = str(python)
    with small():
        assert bench(out, "--only", "merge") == (0, "")
        python.write_text("#!/bin/sh\nexec sleep 60\n")
        results.START_S = 5
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            assert bench(out, "--only", "merge")[0] == 1
        assert "did not import PyTorch within 5 s" in told.getvalue() and "\nmerge\t" in told.getvalue(), told.getvalue()
        assert bench(out, "--only", "merge", "--seconds", "3") == (75, BEFORE)
        python.write_text("#!/bin/sh\necho 'libcudart.so.13: no such file' >&2\nexit 1\n")
        with contextlib.redirect_stdout(told):
            assert bench(out, "--only", "merge")[0] == 1
        assert "so this is not all (libcudart.so.13: no such file)" in told.getvalue(), told.getvalue()


BEFORE = "bench-gpu: the time was over before anything was measured: the same command goes on\n"


def mention(part):
    return f"bench-gpu: 0 failed, 0 missed their goal; the time was over in {part}: the same command goes on\n"


@case(limit=120, platform=False)
def what_other_kernels_did_stays_until_it_is_measured_again():
    out = folder()
    path, checked = out / "gpu-fake-bench.csv", out / "gpu-fake-check.csv"
    program = script(out / "test_it", CHECKED)
    said = io.StringIO()
    with small():
        assert bench(out, "--only", "steps,merge")[0] == 0 and check(out, program, "--only", "passes,fails").returncode == 1
        before, before_checked = others(read(path)), others(read(checked))
        write(path, before)
        write(checked, before_checked)
        hangs = script(out / "hangs", HANGS)
        assert call(bench_gpu.main, hangs, out, "--only", "merge,steps", "--seconds", "4")[0] == 75 and read(path) == before
        program.write_text(CHECKED.replace("passes)", "passes) exec sleep 60;;\npassed)"))
        assert check(out, program, "--only", "passes", "--seconds", "4").returncode == 75 and read(checked) == before_checked
        program.write_text(CHECKED)
        with contextlib.redirect_stdout(said):
            assert bench(out, "--only", "merge", "--seconds", "60")[0] == 0
        assert "2 of its rows are of other libraries" in said.getvalue(), said.getvalue()
        now = read(path)
        assert now[:2] == before[:2] and now[2]["part"] == "merge" and now[2]["libraries"] != "others" and len(now) == 3, now
        # Only what is of these kernels counts.
        done = check(out, program, "--only", "passes", "--seconds", "60")
        assert done.returncode == 0 and "\n1 passed, 0 failed, 0 left out" in done.stdout, done.stdout
        assert [r["libraries"] == "others" for r in read(checked)] == [True, False], read(checked)


@case(limit=120, platform=False)
def what_has_no_good_row_comes_first():
    out = folder()
    path, checked = out / "gpu-fake-bench.csv", out / "gpu-fake-check.csv"
    program = script(out / "test_it", CHECKED.replace("exec sleep 60", "exit 0"))
    with small():
        bench_gpu.WORK = [("mlp", [2, 4, 8], ["fp32"], {2: 10, 4: 10, 8: 10})]
        assert bench(out, "--only", "steps")[0] == 0
        # One is there, one has missed its goal, and of one a row is missing.
        rows = others(read(path))[:-1]
        rows[2]["goal"] = "missed: 9.00 of 10 times eager"
        write(path, rows)
        assert bench(out, "--only", "steps", "--seconds", "60")[0] == 0
        assert [r["batch"] for r in read(path)] == ["4", "4", "8", "8", "2", "2"], read(path)
        assert check(out, program, "--only", "passes,fails").returncode == 1
        write(checked, others(read(checked)))
        assert check(out, program, "--jobs", "1", "--seconds", "60").returncode == 1
        assert [r["case"] for r in read(checked)] == ["fails", "is_left_out", "hangs", "leaves_a_child", "passes"], read(checked)


@case(platform=False)
def every_case_of_the_check_has_a_row():
    out = folder()
    program = script(out / "test_it", CHECKED)
    begin = time.monotonic()
    with small():
        done = check(out, program)
        assert done.returncode == 1, done.stdout + done.stderr
        rows = {r["case"]: r for r in read(out / "gpu-fake-check.csv")}
        assert {name: r["result"] for name, r in rows.items()} == {
            "passes": "passed", "fails": "failed", "is_left_out": "left out", "hangs": "failed", "leaves_a_child": "failed"}, rows
        assert "on the CPU 2.0" in rows["fails"]["words"] and "no end within 4 s" in rows["hangs"]["words"], rows
        assert time.monotonic() - begin < 50 and not pathlib.Path("/proc", (out / "child").read_text().strip()).exists()
        # One alone, the others' rows stay.
        program.write_text(CHECKED.replace("exit 1", "exit 0"))
        assert check(out, program, "--only", "it:fails").returncode == 0
        now = {r["case"]: r["result"] for r in read(out / "gpu-fake-check.csv")}
        assert now == {**{name: r["result"] for name, r in rows.items()}, "fails": "passed"}, now


def check(out, program, *words):
    return subprocess.run([sys.executable, str(ROOT / "test/gpu/check_gpu.py"), str(PROGRAM), str(out), str(program), *words],
                          capture_output=True, text=True)


def packed(*words, name="packed"):
    return subprocess.run([str(ROOT / "test/gpu" / name), *map(str, words)], capture_output=True, text=True, cwd="/",
                          env={**os.environ, "GPU_PYTHON": sys.executable})


def make_pack(pack):
    for name in ("gpu", "bin", "lib"):
        (pack / name).mkdir(parents=True)
    (pack / "gpu/bench_gpu").symlink_to(PROGRAM)
    (pack / "lib/kubeml-cuda.so").symlink_to(PROGRAM)
    (pack / "sources").write_text(packed("sources").stdout)
    script(pack / "gpu/test_gpu_it", CHECKED)
    return pack


@case(platform=False)
def what_is_packed_runs_without_a_build_folder():
    out = folder()
    with small():
        pack = make_pack(out / "pack")
        done = packed(pack, "check", out, "--only", "passes,left_out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [r["program"] for r in read(out / "gpu-fake-check.csv")] == ["test_gpu_it"] * 2
    (pack / "data").mkdir()
    done = packed(pack, "paper", out, "--device", "cpu")
    assert done.returncode == 77 and f"{pack}/data/mnist/train-images-idx3-ubyte" in done.stderr, done.stderr
    (pack / "sources").write_text("1\n")
    done = packed(pack, "check", out)
    assert done.returncode == 2 and "is of other sources than lie here" in done.stderr, done.stderr


@case(limit=120, platform=False)
def a_lent_machine_gives_back_one_folder():
    out = folder() / "out"
    with small():
        pack = make_pack(folder() / "gpu-pack")
        subprocess.run(["tar", "-C", str(pack.parent), "-czf", f"{pack}.tar.gz", pack.name], check=True)
        done = packed(f"{pack}.tar.gz", out, 27, name="lent")
    said = done.stdout
    assert done.returncode in (1, 75), (done.returncode, said, done.stderr)
    parts = [line.split(",")[0] for line in said.splitlines() if line.startswith("=== ") and line.endswith(" s")]
    assert parts == ["=== check", "=== platform", "=== check", "=== bench"], said
    assert (out / "log").read_text() == said
    files = {path.name for path in out.iterdir()}
    before = {path.name for path in (ROOT / "docs/measurements").glob("gpu-*")}
    assert before | {"log", "gpu-fake-check.csv", "gpu-fake-platform.csv", "gpu-fake-bench.csv"} <= files, files
    assert len(files - before) <= 8 - 3, files  # of the fake one: a machine has one of these, and paper's


@case(limit=120, platform=False)
def a_check_with_little_time_goes_on_where_it_ended():
    out = folder()
    program = script(out / "test_it", CHECKED.replace("hangs 1", "hangs 5").replace("exec sleep 60", "sleep 5; echo $$ >>${0%/*}/ran"))
    with small():
        begun = check(out, program, "--seconds", "4", "--only", "hangs,passes")
        assert begun.returncode == 75 and "cases are not run yet" in begun.stderr, begun.stdout + begun.stderr
        assert "hangs" not in {r["case"] for r in read(out / "gpu-fake-check.csv")} and not (out / "ran").exists()
        assert check(out, program, "--seconds", "60").returncode == 1
        whole = read(out / "gpu-fake-check.csv")
        assert len(whole) == 5 and len((out / "ran").read_text().split()) == 1, whole
        assert check(out, program, "--seconds", "60").returncode == 1 and read(out / "gpu-fake-check.csv") == whole
        program.write_text(CHECKED.replace("exit 1", "exit 0"))
        assert check(out, program, "--seconds", "60", "--again").returncode == 0
        assert len((out / "ran").read_text().split()) == 1


# ---- the paper's figures -------------------------------------------------------------------------


def paper(out, *words):
    return call(bench_paper_gpu.main, "--device", "cpu", "--out", out, "--functions", "1,2", "--seeds", "1", *words)


@contextlib.contextmanager
def invented(seconds):
    """Runs that take what `seconds(side, model, batch, functions)` says; None: they do not come there."""
    def told(side, model, batch, functions):
        begun.append((side, model, batch, functions))
        took = seconds(side, model, batch, functions)
        if took == "fails":
            raise results.Failed("no more memory")
        return took, 7
    begun = []
    bench_paper_gpu.missing = lambda o: setattr(o, "left_out", {}) or []
    results.has_torch = lambda *_: True
    bench_paper_gpu.data_files = lambda o, figure, folder: {}
    bench_paper_gpu.ours = lambda o, clock, folder, files, model, zoo, goal, lr, batch, functions, seed, epochs: (
        clock.left(1), told("kubeml", model, batch, functions))[1]
    bench_paper_gpu.theirs = lambda o, clock, files, model, goal, lr, batch, seed, epochs: (
        clock.left(1), (*told("ddp", model, batch, None), "channels_last"))[1]
    yield begun


def verdicts(out):
    return {(r["model"], r["local_batch"], r["seed"]): (r["functions_or_gpus"], r["times_ddp"], r["words"])
            for r in read(out / "gpu-none-paper-try.csv") if not r["seed"].isdigit() and r["times_ddp"]}


@case(platform=False)
def the_papers_numbers_are_to_be_passed():
    def seconds(side, model, batch, functions):
        if side == "ddp":
            return None if (model, batch) == ("lenet", 32) else 28.0 + batch
        return {"lenet": {1: 30, 2: 16}, "resnet34": {1: 15.0, 2: None}}[model][functions]
    out = folder()
    with invented(seconds):
        status, said = paper(out, "--batches", "16,32")
    assert verdicts(out) == {
        ("lenet", "16", "middle of 1"): ("2", "2.75", "missed"),  # it is to be passed
        ("lenet", "32", "middle of 1"): ("2", "inf", "ahead"),
        ("lenet", "16 and 16", "best"): ("2", "2.75", ""),
        ("resnet34", "16", "middle of 1"): ("1", "2.93", ""),
        ("resnet34", "32", "middle of 1"): ("1", "4.00", "ahead"),
        ("resnet34", "32 and 16", "best"): ("1", "2.93", "ahead")}, verdicts(out)
    rows = read(out / "gpu-none-paper-try.csv")
    assert {(r["side"], r["layout"]) for r in rows} == {("kubeml", ""), ("ddp", "channels_last")}, rows
    assert (status, "0 failed, 1 missed" in said) == (1, True), said


@case(platform=False)
def runs_that_are_known_are_not_run_again():
    out = folder()
    words = ("--figures", "4", "--batches", "32", "--seconds", "60")
    with invented(lambda side, *_: "fails" if side == "ddp" else 5.0) as begun:
        assert paper(out, "--figures", "4", "--batches", "32", "--seconds", "0.000001")[0] == 75 and not begun
        status, said = paper(out, *words)
        assert status == 1 and "1 failed" in said and len(begun) == 3, (said, begun)
    with invented(lambda *_: 40.0) as begun:
        assert paper(out, *words)[0] == 1 and not begun, begun
        assert paper(out, *words, "--again")[0] == 0 and begun == [("ddp", "resnet34", 32, None)], begun
        assert verdicts(out)["resnet34", "32", "middle of 1"] == ("1", "8.00", "ahead"), verdicts(out)
        assert paper(out, *words[:4])[0] == 1 and len(begun) == 4, begun


@case(platform=False)
def runs_of_another_precision_or_of_other_kernels_stay():
    out = folder()
    words = ("--figures", "4", "--batches", "32")
    path = out / "gpu-none-paper-try.csv"

    def runs():
        return [(r["kernels"], r["precision"], r["side"]) for r in read(path) if r["seed"].isdigit()]
    bench_paper_gpu.kernels = lambda build: "ours"
    with invented(lambda *_: 5.0):
        paper(out, *words)
        paper(out, *words, "--precision", "tf32")
        assert [run[1] for run in runs()] == ["fp32"] * 3 + ["tf32"] * 3, runs()
        write(path, others(read(path)))
        assert paper(out, *words, "--seconds", "0.000001")[0] == 75
        assert runs() == [("others", "fp32", side) for side in ("kubeml", "kubeml", "ddp")] + [
            ("others", "tf32", side) for side in ("kubeml", "kubeml", "ddp")], runs()
        paper(out, *words, "--seconds", "60")
    assert [run[:2] for run in runs()] == [("others", "tf32")] * 3 + [("ours", "fp32")] * 3, runs()


@case(platform=False)
def without_a_gpu_the_goals_say_so_and_build_nothing():
    if pathlib.Path("/dev/nvidiactl").exists():
        skip("here is a GPU")
    out = folder()
    for goal in ("gpu", "check-gpu", "check-gpu-platform", "bench-gpu", "bench-paper-gpu"):
        done = subprocess.run(["make", "--no-print-directory", goal, f"BUILD={out}/build", f"GPU_OUT={out}/results"],
                              cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0 and "no /dev/nvidiactl" in done.stderr, (goal, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr and not list(out.iterdir()), (goal, done.stderr)


if __name__ == "__main__":
    harness.main(globals())
