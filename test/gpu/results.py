"""What check_gpu.py, bench_gpu.py and bench_paper_gpu.py share: the GPU, its CSV, and a limit of time.

A results file has a row for whatever was measured, written as soon as it is known: the file is written beside itself and
renamed, so that whoever is killed meanwhile loses at most what is being measured. On a machine whose commands are limited in
time --seconds N ends before that limit, and the next such run goes on: what the file has of this GPU, these libraries and these
kernels of ours is not measured again (what failed: with --again). What other kernels did stays until these have done it. Exit
status: 0, all is there and well; 1: all is there, something failed or missed its goal; 75: there is more to measure, the same
command goes on; 77: there is no GPU.
"""
import contextlib
import csv
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

UNFINISHED = 75
START_S = 120  # what the first use of CUDA, or of PyTorch, may take, on a machine that has just started
# A group to be ended with all that is in it; in the session of this script, with which whoever ends that ends them.
GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


class Failed(Exception):
    """This could not be measured."""


class OutOfTime(Exception):
    """--seconds are over."""


class Clock:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds if seconds else float("inf")

    def left(self, limit):
        """Seconds that something may take, `limit` at most."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return min(left, limit)

    def is_over(self):
        return time.monotonic() >= self.end


def add_options(parser):
    parser.add_argument("--seconds", type=float, help="end after so many, and go on where a run like this ended before")
    parser.add_argument("--again", action="store_true", help="with --seconds: measure again what failed before")


def end_group(process):
    """Kills what was started with GROUP, and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(command, limit, clock, **environment):
    """(status, stdout, stderr); status None: no end within `limit` seconds. Files, not pipes: what a process leaves behind
    may hold on to those, and is ended with it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                                   env={**os.environ, **environment}, **GROUP)
        try:
            status = process.wait(clock.left(limit))
        except subprocess.TimeoutExpired:
            if clock.is_over():
                raise OutOfTime from None
            status = None
        finally:
            end_group(process)
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return status, *texts


def run_first(command, what, clock):
    """As run, or the end, where nothing was measured yet."""
    try:
        return run(command, START_S, clock)
    except OutOfTime:
        print(f"{what}: the time was over before anything was measured: the same command goes on", file=sys.stderr)
        sys.exit(UNFINISHED)


def find_gpu(program, what, clock):
    """(name; its libraries and which kernels of ours), or the end, with the reason."""
    status, out, error = run_first([program, "gpu"], what, clock)
    if status != 0:
        print(f"{what}: {error.strip() or f'{program} gpu: no end within {START_S} s'}", file=sys.stderr)
        sys.exit(77 if status == 77 else 1)
    return out.strip().split("|")


def has_torch(python, what, clock, device="cuda"):
    """Whether it has PyTorch for that device, and says so where it has none; None: it did not answer, or failed."""
    absent = 3
    check = (f"import importlib.util as u, sys\nif not u.find_spec('torch'): sys.exit({absent})\nimport torch\n"
             f"sys.exit(0 if '{device}' == 'cpu' or torch.cuda.is_available() else {absent})")
    if not shutil.which(python):
        status = absent
    else:
        status, _, error = run_first([python, "-c", check], what, clock)
    if status == 0:
        return True
    if status == absent:
        why = f"has no PyTorch{' with CUDA' if device == 'cuda' else ''} (GPU_PYTHON=...)"
    elif status is None:
        why = f"did not import PyTorch within {START_S} s, so this is not all"
    else:
        why = f"fails to import PyTorch, so this is not all ({(error.strip().splitlines() or [f'status {status}'])[-1]})"
    print(f"{what}: {python} {why}: our side alone is measured", flush=True)
    return False if status == absent else None


def csv_path(folder, gpu, what):
    """gpu-nvidia-h200-bench.csv"""
    return pathlib.Path(folder) / f"gpu-{re.sub('[^a-z0-9]+', '-', gpu.lower()).strip('-')}-{what}.csv"


@contextlib.contextmanager
def new_cache(path, kept):
    """The processes of one measurement tell each other which algorithms are the fastest, those of another nothing: a file
    beside the results where the next run goes on with them, a temporary one otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KUBEML_CUDA_CACHE"] = str(path.with_suffix(".algorithms") if kept else f"{folder}/algorithms")
        yield


class Results:
    """Rows, by column; `key` names those that say what was measured, `version` the one of these that says with which kernels.
    `now`: the rows that are known, and those that were added; of the others each stays until one that differs by its version
    alone, if at all, is added. `sums(rows)`: rows that follow from the others, written behind them."""

    def __init__(self, path, columns, key, version, sums=lambda rows: []):
        self.path, self.columns, self.key, self.version, self.sums = path, columns, key, version, sums
        self.rows, self.now = [], []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with open(path, newline="") as file:
                self.rows = [row for row in csv.DictReader(file) if list(row) == columns]

    def know(self, known):
        """Those rows need not be measured."""
        self.now = [row for row in self.rows if known(row)]

    def keep(self, wanted):
        """Leaves the others out of the file: when all is measured that there is now."""
        self.rows = [row for row in self.rows if wanted(row)]

    def find(self, *key):
        key = list(map(str, key))
        return next((row for row in self.now if [row[name] for name in self.key] == key), None)

    def add(self, *values):
        assert len(values) == len(self.columns), values
        row = dict(zip(self.columns, map(str, values)))
        same = [name for name in self.key if name != self.version]
        self.rows = [old for old in self.rows if any(old[name] != row[name] for name in same)] + [row]
        self.now.append(row)
        self.write()
        return row

    def change(self, row, **values):
        row.update(values)
        self.write()

    def end(self, version):
        """Says where the rows are, and how many are of another one."""
        self.write()
        old = sum(row[self.version] != version for row in self.rows)
        print(f"written: {self.path}" + (f"; {old} of its rows are of other {self.version}" if old else ""))

    def write(self):
        beside = self.path.with_suffix(".new")
        with open(beside, "w", newline="") as file:
            out = csv.DictWriter(file, self.columns, lineterminator="\n")
            out.writeheader()
            out.writerows(self.rows + self.sums(self.rows))
        os.replace(beside, self.path)
