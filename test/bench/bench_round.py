#!/usr/bin/env python3
"""Rounds of the model store beside PyTorch's gloo all-reduce and raw SET and GET.

All of one block's competitors stay started and take turns; each figure is the median of its turns. Exit status 1 where
a bar is missed. LeNet's, 1 ms, is that of functions on one host, which share memory; over sockets a round carries the
same bytes to the same Redis as raw SET and GET do, whose time stands beside it and is the bound there.
usage: bench_round.py BENCH_ROUND_PROGRAM [TURNS] [lenet]; TORCH_PYTHON names a Python that has PyTorch.
`lenet` leaves the large model out: a minute instead of several.
"""
import os
import statistics
import subprocess
import sys
import tempfile

LENET, RESNET34 = 61_706, 21_282_000
FUNCTIONS = 4


class Peer:
    """A child that answers lines."""

    def __init__(self, argv, environment):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, **environment})
        line = self.process.stdout.readline().strip()
        if line != "ready":
            raise SystemExit(f"{argv}: {line} {self.process.stdout.read()}")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise SystemExit(f"{self.process.args} ended")
        return [float(x) for x in answer]

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


GLOO = """
import os, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def run(rank, n, size, go, done, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    x = torch.rand(n)
    dist.barrier()
    done.put(0)
    while go[rank].get():
        dist.all_reduce(x)
        x.mul_(1.0 / size)
        done.put(0)
if __name__ == "__main__":
    n, size, port = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    context = mp.get_context("fork")
    go, done = [context.SimpleQueue() for _ in range(size)], context.SimpleQueue()
    children = [context.Process(target=run, args=(r, n, size, go, done, port)) for r in range(size)]
    [c.start() for c in children]
    [done.get() for _ in range(size)]
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line.split()[1])):
            t = time.perf_counter()
            [g.put(True) for g in go]
            [done.get() for _ in range(size)]
            times.append(time.perf_counter() - t)
        times.sort()
        print(times[len(times) // 2], flush=True)
    [g.put(False) for g in go]
"""


def store(program, kind, carrier, floats, folder):
    folder = tempfile.mkdtemp(dir=folder)
    environment = {"BENCH_KIND": kind, "BENCH_CARRIER": carrier, "BENCH_FLOATS": str(floats),
                   "TEST_TMP": folder}
    return Peer([program, "serve"], environment)


def gloo(floats, port):
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        return None
    return Peer([python, "-c", GLOO, str(floats), str(FUNCTIONS),
                 str(port)], {})


missed = []


def bar(name, value, limit, unit=""):
    """What the row says of its bar."""
    if value > limit:
        missed.append(name)
    return f"  ({'ok' if value <= limit else 'OVER'}: at most {limit}{unit})"


def row(name, seconds, base=None, base_name="", limit=None):
    text = f"  {name:<34}{seconds * 1e3:>10.2f} ms"
    if base:
        ratio = seconds / base
        text += f"   {ratio:5.2f} x {base_name}"
        if limit:
            text += bar(name, ratio, limit)
    print(text, flush=True)


def big(program, floats, title, turns, folder, port):
    print(f"{title}: {floats:,} floats ({floats * 4 / 1e6:.1f} MB), {FUNCTIONS} functions")
    peers = {
        "database, shared memory": store(program, "database", "shm", floats, folder),
        "server, shared memory": store(program, "server", "shm", floats, folder),
        "database, sockets": store(program, "database", "socket", floats, folder),
        "server, sockets": store(program, "server", "socket", floats, folder),
    }
    reduce = gloo(floats, port)
    times = {name: [] for name in [*peers, "raw", "gloo"]}
    for turn in range(turns + 1):
        for name, peer in peers.items():
            times[name] += peer.ask("round 1")
        times["raw"] += peers["database, sockets"].ask("raw 1")
        if reduce:
            times["gloo"] += reduce.ask("round 1")
        if turn == 0:  # the first touches every page
            times = {name: [] for name in times}
    parts = {name: peer.ask("parts 3") for name, peer in peers.items()}
    median = {name: statistics.median(t) for name, t in times.items() if t}
    if reduce:
        row("PyTorch gloo all-reduce", median["gloo"])
    else:
        print("  PyTorch gloo all-reduce: left out, TORCH_PYTHON is not set")
    row("raw SET and GET", median["raw"])
    for name in peers:
        shared = "memory" in name
        row(name, median[name], median.get("gloo" if shared else "raw"),
            "gloo" if shared else "raw", (0.7 if shared else 1.3) if "database" in name else None)
        print("      publish {:.1f}, merge {:.1f}, fetch {:.1f} ms".format(
            *(1e3 * x for x in parts[name])))
    for peer in [*peers.values(), *([reduce] if reduce else [])]:
        peer.close()


def lenet(program, floats, title, turns, folder):
    """Turns of 100 rounds each: on a machine with other work the best turn says what a round takes."""
    print(f"{title}: {floats:,} floats ({floats * 4 / 1e3:.0f} kB), {FUNCTIONS} functions, p50 of {100 * turns} rounds")
    kinds = [("database", "shm"), ("database", "socket"), ("database", "tcp"), ("server", "shm"), ("server", "socket")]
    peers = {kind: store(program, *kind, floats, folder) for kind in kinds}
    times, raw, parts = ({kind: [] for kind in kinds} for _ in range(3))
    for peer in peers.values():
        peer.ask("round 50")
    for _ in range(turns):
        for kind, peer in peers.items():
            times[kind] += peer.ask("round 100")
            parts[kind].append(peer.ask("parts 50"))
            if kind[0] == "database" and kind[1] != "shm":
                raw[kind] += peer.ask("raw 100")
    for kind, peer in peers.items():
        seconds = statistics.median(times[kind])
        text = f"  {kind[0] + ', ' + kind[1]:<20}{seconds * 1e3:>8.3f} ms"
        if kind == ("database", "shm"):
            text += bar(f"{title}, {', '.join(kind)}", seconds * 1e3, 1, " ms")
        text += "; best turn {:.3f}".format(min(times[kind]) * 1e3)
        text += "; publish {:.3f}, merge {:.3f}, fetch {:.3f}".format(
            *(statistics.median(p[i] for p in parts[kind]) * 1e3 for i in range(3)))
        if raw[kind]:
            base = statistics.median(raw[kind])
            text += f"; raw SET and GET of the same bytes {base * 1e3:.3f}: {seconds / base:.2f} times (no bar: not on one host)"
        print(text, flush=True)
        peer.close()


def main():
    program, words = sys.argv[1], sys.argv[2:]
    turns = next((int(w) for w in words if w.isdigit()), 7)
    with tempfile.TemporaryDirectory(prefix="kubeml-bench-", dir="/dev/shm") as folder:
        lenet(program, LENET, "LeNet, weights", turns, folder)
        lenet(program, 2 * LENET, "LeNet, weights and momentum", turns, folder)
        if "lenet" not in words:
            big(program, RESNET34, "ResNet-34, weights", turns, folder, 29511)
            big(program, 2 * RESNET34, "ResNet-34, weights and momentum", turns, folder, 29512)
    if missed:
        raise SystemExit("over the bar: " + "; ".join(missed))


if __name__ == "__main__":
    main()
