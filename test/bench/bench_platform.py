#!/usr/bin/python3
"""The platform's own cost: a job beside the engine alone, the start of a job, idle memory.

usage: bench_platform.py job|start|memory|load [--jobs N] [--pairs N]

job     epochs of a 10-epoch LeNet job on MNIST (4 functions, batch 32, K = -1; training, validation,
        merge, checkpoint) beside bench_epoch: the same batches and validations, engine alone, the
        same cores. In turn, medians, ratio.
start   POST /train to the first trained batch, jobs of one batch, warm pool: p50, p95, p99; and how
        long a warm runtime took to specialise. The job's start_ms ends when kubeml-ps has told that a batch is
        trained, and begins in the controller; the whole of POST as its client sees it, answer and all, is
        added to that: at most so much went by between the request and the batch.
load    what loading (with flips and crops) and converting take of a function's time, from the stages in the
        job's history: LeNet on MNIST with and without flips and crops, batch 32, and ResNet-34 on images of
        CIFAR-10's shape, batch 128; a function for each core.
memory  private (smaps Private_*) and resident size of the idle controller and an idle warm runtime.

Exit status 1 where a goal is missed.
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import requests

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("BUILD", "build/release")
PORT = 10170
ENDS = (signal.SIGINT, signal.SIGTERM)


class Platform:
    """A platform of its own home and port, for one benchmark; it ends with it, however that ends."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="kubeml-bench-")
        self.home = self.folder.name
        self.url = f"http://127.0.0.1:{PORT}"
        self.environment = {**os.environ, "KUBEML_HOME": self.home, "KUBEML_URL": self.url}
        self.api = requests.Session()
        self.api.headers["Accept"] = "application/json"
        try:
            self.kubeml("up", "--listen", f"127.0.0.1:{PORT}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)  # a second ^C must not leave the platform behind
        try:
            self.kubeml("down")
        finally:
            self.folder.cleanup()

    def kubeml(self, *words):
        done = subprocess.run([BUILD / "bin/kubeml", *words], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"kubeml {' '.join(words)}: {done.stderr}")
        return done.stdout

    def call(self, method, path, **arguments):
        reply = self.api.request(method, self.url + path, timeout=120, **arguments)
        if not reply.ok:
            sys.exit(f"{method} {path}: {reply.status_code} {reply.text}")
        return reply.json()

    def upload(self, data):
        files = {"x-train": "train-images-idx3-ubyte", "y-train": "train-labels-idx1-ubyte",
                 "x-test": "t10k-images-idx3-ubyte", "y-test": "t10k-labels-idx1-ubyte"}
        self.call("POST", "/dataset/mnist", files={
            field: (name, data[name]) for field, name in files.items()})
        code = (ROOT / "function-runtime/examples/lenet.c").read_bytes()
        self.call("POST", "/function/lenet", files={"code": ("lenet.c", code)})

    def locator(self):
        found = list(pathlib.Path(self.home).glob("store/datasets/*/data.mdb"))
        assert len(found) == 1, found
        return f"lmdb:{found[0]}"

    def epoch_times(self, request):
        """Seconds between the ends of a job's epochs, as they come over its event stream."""
        job = self.call("POST", "/train", json=request)["id"]
        ends, kind = [], None
        with self.api.get(f"{self.url}/tasks/{job}/events", stream=True, timeout=600,
                          headers={"Accept": "text/event-stream"}) as stream:
            for line in stream.iter_lines(decode_unicode=True, chunk_size=1):
                if line.startswith("event:"):
                    kind = line[6:].strip()
                elif line.startswith("data:"):
                    if kind == "epoch":
                        ends.append(time.monotonic())
                    elif kind == "state":
                        state = json.loads(line[5:])["state"]
                        if state == "succeeded":
                            break
                        if state in ("failed", "cancelled"):
                            sys.exit(f"job {job} {state}: {line}")
        return [b - a for a, b in zip(ends, ends[1:])]


def mnist():
    folder = pathlib.Path(subprocess.run([ROOT / "scripts/mnist-data", ROOT / "demo-out/mnist"],
                                         check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    return {name: gzip.open(folder / (name + ".gz")).read() for name in
            ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
             "t10k-labels-idx1-ubyte")}


def bench_job(pairs):
    request = {"function_name": "lenet", "dataset": "mnist", "epochs": 10, "batch_size": 32,
               "lr": 0.01, "options": {"default_parallelism": 4, "static_parallelism": True, "k": -1}}
    with Platform() as platform:
        platform.upload(mnist())
        job, alone = [], []
        for _ in range(pairs):
            output = subprocess.run([BUILD / "bench/bench_epoch", platform.locator(), "4", "32", "10"],
                                    check=True, stdout=subprocess.PIPE, text=True).stdout
            alone.append([float(line) for line in output.split()])
            job.append(platform.epoch_times(request))
    ratios = [statistics.median(j) / statistics.median(a) for j, a in zip(job, alone)]
    print("job against engine: LeNet, MNIST, 4 functions, batch 32, K=-1, an epoch with validation")
    print(f"  engine alone   median {statistics.median(sum(alone, [])):.3f} s")
    print(f"  job            median {statistics.median(sum(job, [])):.3f} s")
    print(f"  ratio          median {statistics.median(ratios):.3f}  "
          f"(pairs: {' '.join(f'{r:.3f}' for r in ratios)}; goal: at most 1.15)")
    return statistics.median(ratios) <= 1.15


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def small(data, count):
    """The first images of each split: a job of one batch."""
    out = {}
    for name, raw in data.items():
        dims = raw[3]
        shape = struct.unpack(f">{dims}I", raw[4:4 + 4 * dims])
        size = 1
        for side in shape[1:]:
            size *= side
        header = raw[:4] + struct.pack(f">{dims}I", count, *shape[1:])
        out[name] = header + raw[4 + 4 * dims:][:count * size]
    return out


def wait_warm(platform):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pool = platform.call("GET", "/ready")
        if pool["warm_functions"] >= 1 and pool["warm_ps"] >= 1:
            return
        time.sleep(0.005)
    sys.exit("the pool did not become warm within 30 s")


def progress(done, count):
    if sys.stderr.isatty():
        print(f"\r  {done} of {count} jobs", end="\n" if done == count else "", file=sys.stderr, flush=True)


def bench_start(jobs):
    request = {"function_name": "lenet", "dataset": "mnist", "epochs": 1, "batch_size": 32, "lr": 0.01,
               "options": {"default_parallelism": 1, "static_parallelism": True}}
    starts, posts, totals = [], [], []
    with Platform() as platform:
        platform.upload(small(mnist(), 32))
        specialise = []
        for done in range(jobs):
            progress(done, jobs)
            wait_warm(platform)
            began = time.monotonic()
            job = platform.call("POST", "/train", json=request)["id"]
            posts.append(1e3 * (time.monotonic() - began))
            platform.kubeml("task", "wait", job)
            task = platform.call("GET", f"/tasks/{job}")
            totals.append(task["start_ms"]["total"])
            starts.append(posts[-1] + totals[-1])
            log = platform.kubeml("logs", job)
            specialise += [float(ms) for ms in re.findall(r"specialised in ([0-9.]+) ms", log)]
            platform.call("DELETE", f"/history/{job}")
        progress(jobs, jobs)
    print(f"start: POST /train to the first trained batch, {jobs} jobs of one batch, warm pool")
    print(f"  p50 {percentile(starts, .5):.0f} ms   p95 {percentile(starts, .95):.0f} ms   "
          f"p99 {percentile(starts, .99):.0f} ms   (goal: p95 at most 150 ms)")
    for part, ms in (("the client's POST, its answer too", posts), ("start_ms.total", totals)):
        print(f"  of which {part}: p50 {percentile(ms, .5):.0f} ms, p95 {percentile(ms, .95):.0f} ms")
    print(f"  of which specialising a warm runtime: p50 {percentile(specialise, .5):.1f} ms, "
          f"p95 {percentile(specialise, .95):.1f} ms   (goal: at most 20 ms)")
    return percentile(starts, .95) <= 150 and percentile(specialise, .95) <= 20


def smaps(pid):
    private = resident = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.startswith("Private_"):
            private += int(line.split()[1])
        elif line.startswith("Rss:"):
            resident += int(line.split()[1])
    return private / 1024, resident / 1024


def bench_memory():
    with Platform() as platform:
        wait_warm(platform)
        rows = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if any(platform.home.encode() in w for w in words):
                rows.append((pathlib.Path(words[0].decode().split()[0]).name, *smaps(entry.parent.name)))
    goals = {"kubeml-controller": 8, "kubeml-function": 12}
    print("idle memory, MiB           private   resident")
    for name, private, resident in sorted(rows):
        goal = f"   (goal: private at most {goals[name]})" if name in goals else ""
        print(f"  {name:24s} {private:7.1f}   {resident:8.1f}{goal}")
    return goals.keys() <= {row[0] for row in rows} and all(row[1] <= goals.get(row[0], row[1]) for row in rows)


LENET = (ROOT / "function-runtime/examples/lenet.c").read_text().partition("KUBEML_FUNCTION")[0]
MOVED = "KUBEML_FUNCTION(.model = %s, .transform = kml_transform(.standardise = true, .flip = true, .crop = 4));\n"
R34 = """#include <kubeml.h>

static kml_tensor r34(kml_graph *g, kml_tensor x)
{
    return kml_zoo(g, x, "resnet34", kml_classes(g));
}

"""
# Function, its code (None: the example), data set, batch, epochs, and what it may take, percent.
LOADS = [("lenet", None, "mnist", 32, 4, 5), ("lenet-moved", LENET + MOVED % "lenet", "mnist", 32, 4, 5),
         ("resnet34-moved", R34 + MOVED % "r34", "images", 128, 2, 1)]


def upload_images(platform, count):
    """Of CIFAR-10's shape; what they show is of no account here."""
    rows = [bytes([i % 10]) + random.Random(i).randbytes(3072) for i in range(count)]
    platform.call("POST", "/dataset/images", files={"x-train": ("train.bin", b"".join(rows)),
                                                    "x-test": ("test.bin", b"".join(rows[:128]))})


def stages_of(platform, name, dataset, batch, epochs):
    functions = os.cpu_count()
    job = platform.call("POST", "/train", json={
        "function_name": name, "dataset": dataset, "epochs": epochs, "batch_size": batch, "lr": 0.01,
        "options": {"default_parallelism": functions, "static_parallelism": True, "k": -1}})["id"]
    platform.kubeml("task", "wait", job, "--timeout", "900")
    seconds = platform.call("GET", f"/history/{job}")["seconds"]
    # The first epoch also meets the data set's pages for the first time, and is left out.
    return {stage: sum(seconds[stage][1:]) for stage in ("load", "convert", "train")}


def bench_load():
    good = True
    print("share of a function's time (load + convert + train), from the job's history")
    print(f"  {'function':16}{'batch':>6}{'load':>9}{'convert':>9}{'both':>8}{'goal':>8}")
    with Platform() as platform:
        platform.upload(mnist())
        upload_images(platform, 512 * os.cpu_count())
        for name, code, dataset, batch, epochs, goal in LOADS:
            if code:
                platform.call("POST", f"/function/{name}", files={"code": (f"{name}.c", code.encode())})
            s = stages_of(platform, name, dataset, batch, epochs)
            load, convert = (100 * s[stage] / sum(s.values()) for stage in ("load", "convert"))
            print(f"  {name:16}{batch:6}{load:8.2f}%{convert:8.2f}%{load + convert:7.2f}%{goal:7}%", flush=True)
            good = good and load + convert <= goal
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["job", "start", "memory", "load"])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    for number in ENDS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    good = {"load": bench_load, "job": lambda: bench_job(args.pairs), "start": lambda: bench_start(args.jobs),
            "memory": bench_memory}[args.what]()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
