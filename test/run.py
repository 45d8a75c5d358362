#!/usr/bin/env python3
"""Runs every test case in a process of its own, with a time limit and an empty folder.

A test program answers `--list` with "name seconds" lines and runs one case when given its name:
exit status 0 passed, 77 left out (the reason on stdout), anything else failed. Programs are the
unit tests under $BUILD/test and the end-to-end tests test/e2e/test_*.py (see test/e2e/harness.py).
"-" and a reason in the seconds' place: it is left out, and is not started to say so. Words after the
seconds are what the case takes for itself: two that take the same do not run beside each other. Those
that do find a number of their own in TEST_LANE, from 0 on or from the one that is there already.

usage: run.py [--unit | --e2e | --cluster] [-j N] [-v] [PATTERN ...]
"""
import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from processes import ended, start

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("BUILD", "build/release")
SANITIZER = os.environ.get("SANITIZER", "")
# Sanitized code is slower; the limit catches hangs, it is no measurement.
STRETCH = float(os.environ.get("TEST_STRETCH", 6 if "thread" in SANITIZER else 4 if SANITIZER else 1))


# What a sanitizer has nothing to find in, and would spend most of its time on. (sanitizer, cases, why)
LEFT_OUT = [
    # The cases with threads (layers_avx512, threads_agree, the merge, the stores, the programs) stay.
    ("thread", r"test_mnist.py:|test_notebook.py:the_|test_golden:|test_graph_ops:|test_zoo:models_|test_simulate:|test_cpu_golden:(lenet5|resnet20|same_bits)_"
               r"|test_cpu_layers:ops_|test_cpu_layers:layers_(avx2|generic)|test_cpu_bf16:(lenet|resnet20|every)_",
     "one thread has no races, and whole epochs find none that tiny ones do not; it runs without ThreadSanitizer"),
    ("thread", r"test_rest.py:the_server_keeps_openapi|test_history:(the_most_epochs|many_epochs)_",
     "one request, or one record, after another has no races; it runs without ThreadSanitizer"),
    # one_seed_one_model stays: the same programs on the same data, for three epochs instead of 38.
    ("", r"test_notebook.py:the_notebook|test_cpu_bf16:resnet20_learns|test_mnist.py:(sorted_by_label|one_function_is_kubeml_run|every_k_trains|an_elastic_job_)",
     "how well many epochs learn is no question of memory or threads; it runs without sanitizers"),
    ("", r"test_readme.py:", "each of its commands runs under it in test_cli*.py; the page itself runs without sanitizers"),
    ("", r"test_simulate:finds_", "that a planted mistake is found is no question of memory; it runs without sanitizers"),
    ("", r"test_ps:(redis_that_hangs_under|redis_that_stands_still|the_container_of_redis_hangs)|test_faults.py:what_stands_still_",
     "it waits for a minute or two; test_ps:redis_that_hangs_is_killed goes the same way; it runs without sanitizers"),
    ("", r"test_cuda_compare:", "how far weights move is no question of memory or threads; it runs without sanitizers"),
    ("", r"test_explain.py:a_function_that_takes_", "sanitizers take more addresses than a limit leaves; it runs without them"),
    ("address", r"test_cpu_bf16:every_",
     "test_cpu_layers:layers_bf16 takes the same loops through smaller and odder shapes; it runs without sanitizers"),
    ("address", r"test_zoo:models_compute_",
     "test_cpu_layers takes the same loops through smaller and odder shapes; it runs without sanitizers"),
    ("address", r"test_cuda_graph_ops:random_",
     "test_cuda_graph_ops:every_backend_agrees_with_the_reference takes the same kernels through odd shapes; it runs without sanitizers"),
]


def label_of(program, name):
    return f"{pathlib.Path(program[-1]).name}:{name}"


def left_out_reason(label):
    return next((why for sanitizer, cases, why in LEFT_OUT
                 if SANITIZER and sanitizer in SANITIZER and re.match(cases, label)), None)


def sanitizer_environment():
    """Options under which a report is a failure."""
    return {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={ROOT}/test/tsan.supp",
        "LSAN_OPTIONS": f"suppressions={ROOT}/test/lsan.supp:print_suppressions=0",
    }


def environment_of_all():
    return {**os.environ, **sanitizer_environment(), "BUILD": str(BUILD), "PYTHONPYCACHEPREFIX": str(BUILD / "pycache")}


def find_data():
    """Real data for the cases that want some: the folder of MNIST's files is MNIST, where it is at hand."""
    there = subprocess.run([ROOT / "scripts/mnist-data", "--at-hand", ROOT / "demo-out/mnist"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if there.returncode == 0:
        os.environ["MNIST"] = there.stdout.strip()


def has_source(name, sources):
    """False: an earlier build left this program, whose test was renamed or removed since. Tests of test/cuda and the engine's
    tests with the CUDA backend have the names of scripts/cuda.mk."""
    names = (name, name.removeprefix("test_"), name.replace("_cuda_", "_"), name.replace("_races_", "_"), name.replace("_races_", "_cuda_"))
    return not name.startswith("test_") or not sources.isdisjoint(names)


def programs(args):
    found = []
    if args.cluster:
        return [[sys.executable, str(p)] for p in sorted((ROOT / "test/cluster").glob("test_*.py"))]
    if not args.e2e:
        sources = {p.stem for p in (ROOT / "test").glob("*/*.c*")}
        found += [[str(p)] for p in sorted((BUILD / "test").glob("*"))
                  if os.access(p, os.X_OK) and p.is_file() and not re.match(r"simulate$|mutant-", p.name) and has_source(p.name, sources)]
    if not args.unit:
        found += [[sys.executable, str(p)] for p in sorted((ROOT / "test/e2e").glob("test_*.py"))]
    return found


def listing_of(program):
    """Its cases' lines, and nothing; or none, and what run() gives of a case that failed."""
    started = time.monotonic()
    # Libraries write to stderr as they are loaded: libmongoc where a process that was killed had this one's number.
    with tempfile.TemporaryFile() as errors:
        process = start(program + ["--list"], environment_of_all(), ROOT, errors=errors)
        output, status = ended(process, 60 * STRETCH)
        lines = output.decode(errors="replace").splitlines()
        if status == 0 and lines:
            return lines, None
        errors.seek(0)
        said = (output + errors.read()).decode(errors="replace") if status else "it lists no case"
    return [], (label_of(program, "--list"), f"status {status}", said, time.monotonic() - started)


def cases(args):
    """Those to be run or left out; and the failures of what was to tell of them, or names none."""
    there = programs(args)
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        listings = list(pool.map(listing_of, there))
    found, failures, unknown = [], [failure for _, failure in listings if failure], set(args.pattern)
    for program, (listing, _) in zip(there, listings):
        for line in listing:
            name, limit, *rest = line.split()
            label = label_of(program, name)
            named = {p for p in args.pattern if p in label}
            unknown -= named
            if named or not args.pattern:
                reason = left_out_reason(label) or (f"left out: {' '.join(rest)}" if limit == "-" else "")
                found.append((program, name, 0 if reason else int(limit), set() if reason else set(rest), reason))
    return found, failures + [(pattern, "no case", "no case's name has this in it", 0) for pattern in sorted(unknown)]


def run(case, lane=0):
    program, name, limit, *_ = case
    label = label_of(program, name)
    folder = tempfile.mkdtemp(prefix="kubeml-test-")
    started = time.monotonic()
    environment = {**environment_of_all(), "TEST_TMP": folder, "TEST_LANE": str(lane)}
    process = start(program + [name], environment, ROOT)
    output, status = ended(process, limit * STRETCH)
    shutil.rmtree(folder, ignore_errors=True)
    return label, status, output.decode(errors="replace"), time.monotonic() - started


class Queue:
    """Cases that are still to run, the longest first, or one of them is left to run with nothing beside it. Those that take
    the same thing are as long as all of them, which run one after the other."""

    def __init__(self, waiting, lanes):
        def length(case):
            return sum(c[2] for c in waiting if c is case or c[3] & case[3])
        # Without a lane beside it the order of the programs is the easier to read.
        self.waiting = sorted(waiting, key=lambda c: (-length(c), -c[2])) if lanes > 1 else list(waiting)
        self.taken, self.changed = set(), threading.Condition()

    def next(self):
        """The first case that nothing under way excludes, when there is one; None: there are no more."""
        with self.changed:
            while self.waiting:
                case = next((c for c in self.waiting if not c[3] & self.taken), None)
                if case:
                    self.waiting.remove(case)
                    self.taken |= case[3]
                    return case
                self.changed.wait()
        return None

    def done(self, case):
        with self.changed:
            self.taken -= case[3]
            self.changed.notify_all()


def why(output):
    """What a case that failed ended with, short: of a log that is cut the line with its name stays."""
    words = [line for line in output.splitlines() if line.strip() and not line.startswith("FAIL ")]
    said = next((line for line in reversed(words) if re.match(r"[\w.]+(Error|Exception|Expired)\b", line)), words[-1] if words else "")
    return ": " + said.strip()[:300] if said else ""


def check_libraries():
    """What every end-to-end test loads: one line, and not a failure of each."""
    missing = [name for name in ("numpy", "requests", "yaml") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"run.py: {sys.executable} has no {', '.join(missing)}; Debian's is /usr/bin/python3, with the packages of "
              "scripts/install-packages", file=sys.stderr)
        sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", action="store_true")
    parser.add_argument("--e2e", action="store_true")
    parser.add_argument("--cluster", action="store_true", help="see test/cluster/run.sh, which starts one")
    parser.add_argument("-j", type=int, default=3 * (os.cpu_count() or 1),
                        help="so many at once; three for each core, since most of their time they wait for something")
    parser.add_argument("-v", action="store_true")
    parser.add_argument("pattern", nargs="*")
    args = parser.parse_args()
    if not args.unit:
        check_libraries()
    find_data()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    left_out = []
    slowest = []

    def report(result):
        label, status, output, seconds = result
        slowest.append((seconds, label))
        if status == 0:
            counts["passed"] += 1
            if args.v:
                print(f"ok   {label} ({seconds:.1f} s)")
        elif status == 77:
            counts["skipped"] += 1
            left_out.append(f"{label}: {output.strip().splitlines()[-1] if output.strip() else ''}")
        else:
            counts["failed"] += 1
            print(f"FAIL {label} ({status}, {seconds:.1f} s){why(output)}")
            print("".join(f"     {line}\n" for line in output.splitlines()[-(250 if args.cluster else 60):]), flush=True)

    every = []
    found, failures = cases(args)
    for failure in failures:
        report(failure)
    for case in found:
        if case[4]:
            counts["skipped"] += 1
            left_out.append(f"{label_of(case[0], case[1])}: {case[4]}")
        else:
            every.append(case)
    waiting, reporting = Queue(every, args.j), threading.Lock()

    def run_lane(lane):
        while case := waiting.next():
            try:
                result = run(case, lane)
            finally:
                waiting.done(case)
            with reporting:
                report(result)
    first = int(os.environ.get("TEST_LANE", 0))
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        list(pool.map(run_lane, range(first, first + args.j)))
    for line in left_out:
        print(f"left out {line}")
    if slowest:
        print("the slowest:", ", ".join(f"{label} {seconds:.0f} s"
                                      for seconds, label in sorted(slowest, reverse=True)[:10]))
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{skipped}")
    sys.exit(1 if counts["failed"] or not counts["passed"] else 0)


if __name__ == "__main__":
    main()
