"""make bench-gpu: our engine beside PyTorch, eager and compiled, on one GPU; a CSV named by the GPU.

Both sides run in turns within one session of this script, in the same precision, each in a process of
its own; a number is the median over 9 rounds of 10 steps or 0.25 s, whichever is more. Batches are the same fixed random
samples, with SGD and momentum; PyTorch's own models stand beside ours layer by layer, in whichever of its memory layouts
is the faster, with its fused optimizer and cudnn.benchmark. Ours is measured with every batch given from the host, and with
the samples on the device, where PyTorch's lie too. Without PyTorch only our side is measured. Utilisation, watts and memory are
NVML's, over the run. Every row is written when it is known; what fails has a row that says why, and what misses its goal says so
in its row: the exit status is then 1, and so it is where PyTorch is there and could not be imported. Batch norm beside cuDNN's has
no goal, nor has torch.compile, which takes the longest and comes last. Exit status 75: --seconds are over, the same command goes
on; 77: there is no GPU.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import results
from results import Clock, Failed, OutOfTime

STEPS, ROUNDS, ROUND_S, WARM = 10, 9, 0.25, 20
# model, batches, precisions, how many times as fast as eager it is to be, by batch
WORK = [
    ("lenet5", [16, 32, 64], ["fp32"], {16: 10, 32: 10, 64: 10}),
    ("resnet34", [32, 128, 512], ["tf32", "bf16"], {32: 3, 128: 1.5, 512: 1.2}),
]
BY_WORK = ("steps", "start", "compiled")
FUNCTIONS, SHARED = 8, ("lenet5", 16, "fp32")
FLOATS = 21_300_000
STARTS = 5  # processes
# ResNet-34's activations as CIFAR makes them: channels, side
NORMS, NORM_BATCH, NORM_PRECISIONS = [(64, 32), (128, 16), (256, 8), (512, 4)], 128, ["fp32", "bf16"]
NORM_WAYS = ("spatial", "persistent")  # cuDNN's, in bench_gpu's order
NORM_DIFFERENCE = 0.01  # what cuDNN's results may differ from ours, as a share of them
# FUNCTIONS together, in times one alone and in times as many processes of PyTorch; averaging, in times copying
TOGETHER_GOAL, PROCESSES_GOAL, START_GOAL_MS, MERGE_GOAL = 3, 8, 50, 0.8
OURS_S, PEER_S = 180, 300  # what one measurement may take
NOT_BUILT = 3  # bench_gpu's exit status
KEY = "gpu libraries part work batch precision engine".split()
COLUMNS = KEY + "us_per_step samples_per_s gpu_percent watts mib goal".split()


class NotThere(Exception):
    """This bench_gpu was built without it."""


def combinations(work):
    """Of `work`, or all: (model, batch, precision, how many times as fast as eager it is to be)"""
    every = [(name, batch, precision, goals[batch]) for name, batches, precisions, goals in WORK
             for batch in batches for precision in precisions]
    asked = [one.split(":") for one in work]
    return [one for one in every if not asked or any(list(map(str, one[:len(parts)])) == parts for parts in asked)]


def numbers(text):
    return [float(word) for word in text.split()]


# ---- PyTorch -------------------------------------------------------------------------------------


def lenet5(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10)), (1, 28, 28)


def resnet34(torch):
    """He et al. 2015 with a 3x3 stem and no first pooling, as for CIFAR."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(after)
            self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(after)
            self.down = None
            if stride != 1 or before != after:
                self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, x):
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + (x if self.down is None else self.down(x)))

    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(count):
            layers.append(Block(before, width, 2 if i == 0 and width > 64 else 1))
            before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), (3, 32, 32)


def torch_steps(torch, name, batch, precision, layout, mode):
    """A function that trains one step; mode: eager, or torch.compile's."""
    torch.manual_seed(1)
    model, shape = {"lenet5": lenet5, "resnet34": resnet34}[name](torch)
    model = model.cuda().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    x = torch.rand(batch, *shape, device="cuda").to(memory_format=layout)
    labels = torch.randint(0, 10, (batch,), device="cuda")

    def loss_of(samples, wanted):
        return torch.nn.functional.cross_entropy(model(samples), wanted)
    run = loss_of if mode == "eager" else torch.compile(loss_of, mode=mode)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = run(x, labels)
        loss.backward()
        optimizer.step()
    return step


def torch_peer(name, batch, precision, mode):
    """Run in a process of its own (main's "peer"): says "ready", waits for a line, says the microseconds of a step, and stays
    until its input ends, so that those who share the GPU share it to the end."""
    import torch
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True

    def time_steps(step, count):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count

    def warm_time(layout):
        step = torch_steps(torch, name, batch, precision, layout, "eager")
        time_steps(step, WARM)
        return min(time_steps(step, WARM) for _ in range(3))
    layout = min((torch.contiguous_format, torch.channels_last), key=warm_time)
    step = torch_steps(torch, name, batch, precision, layout, mode)
    time_steps(step, WARM)
    steps = max(STEPS, round(ROUND_S / time_steps(step, WARM)))
    print("ready", flush=True)
    sys.stdin.readline()
    print("us", statistics.median(time_steps(step, steps) for _ in range(ROUNDS)) * 1e6, flush=True)
    sys.stdin.read()


def read_until(process, word):
    """What follows `word` in its line; what a library prints before is passed over."""
    for line in process.stdout:
        if line.split()[:1] == [word]:
            return line.split()[1:]
    raise Failed


def converse(program, running):
    """(microseconds a step of each, what `watch` says of their time)"""
    for process in running:
        read_until(process, "ready")
    watch = subprocess.Popen([program, "watch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        us = [float(read_until(process, "us")[0]) for process in running]
        return us, numbers(watch.communicate(timeout=30)[0])
    finally:
        watch.kill()
        watch.wait()


def peer(clock, program, work, mode, processes=1):
    """As `converse`, of processes of PyTorch; Failed, with the last words of one of them."""
    limit = clock.left(PEER_S)
    command = [sys.executable, __file__, "peer", *map(str, work), mode]
    errors = [tempfile.TemporaryFile("w+") for _ in range(processes)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error, text=True,
                                **results.GROUP) for error in errors]
    is_late = threading.Event()

    def end():
        is_late.set()
        for process in running:
            results.end_group(process)
    late = threading.Timer(limit, end)
    late.start()
    try:
        return converse(program, running)
    except (Failed, OSError, ValueError) as why:
        if clock.is_over():
            raise OutOfTime from None
        words = [file.read().strip().splitlines() for file in errors if file.seek(0) == 0]
        last = next((lines[-1] for lines in words if lines), str(why))
        raise Failed(f"PyTorch: no end within {limit:.0f} s" if is_late.is_set() else f"PyTorch: {last}") from None
    finally:
        late.cancel()
        for process in running:
            results.end_group(process)


# ---- the table -----------------------------------------------------------------------------------


class Bench:
    def __init__(self, o, clock, gpu, libraries, torch):
        self.program, self.clock, self.torch, self.mode = o.program, clock, torch, o.mode
        self.gpu, self.parts, self.asked = [gpu, libraries], o.only, o.asked
        self.path = results.csv_path(o.out, gpu, "bench")
        self.table = results.Results(self.path, COLUMNS, KEY, "libraries")
        self.work, self.all = combinations(o.work), o.only == list(PARTS) and not o.work
        self.names = [[str(word) for word in one[:3]] for one in self.work]
        self.table.know(lambda row: o.seconds and self.is_now(row) and [row["gpu"], row["libraries"]] == self.gpu and
                        not (o.again and row["goal"].startswith("failed")))

    def is_now(self, row):
        """It is of what is asked for."""
        return row["part"] in self.parts and (row["part"] not in BY_WORK or
                                              [row["work"], row["batch"], row["precision"]] in self.names)

    def is_met(self, part, work, engines):
        """Each of them has a row, of whatever kernels, which neither failed nor missed its goal."""
        met = {row["engine"] for row in self.table.rows
               if [row[name] for name in ("part", "work", "batch", "precision")] == [part, *map(str, work[:3])] and
               not row["goal"].startswith(("failed", "missed"))}
        return met >= set(engines)

    def find(self, *what):
        return self.table.find(*self.gpu, *what)

    def rate(self, *what):
        """Samples a second, as a row has it; None: it has none."""
        row = self.find(*what)
        return float(row["samples_per_s"]) if row and row["samples_per_s"] else None

    def ours(self, *args, **environment):
        status, out, error = results.run([self.program, *args], OURS_S, self.clock, **environment)
        if status is None:
            raise Failed(f"{args[0]}: no end within {OURS_S} s")
        if status:
            words = error.strip().splitlines()
            kind = NotThere if status == NOT_BUILT else Failed
            raise kind(words[-1] if words else f"{args[0]}: status {status}")
        return numbers(out)

    def peer(self, work, mode, processes=1):
        """(microseconds a step, samples a second of all, what NVML saw)"""
        us, seen = peer(self.clock, self.program, work, mode, processes)
        return statistics.median(us), sum(work[1] / one * 1e6 for one in us), seen

    def row(self, what, measure, verdict=lambda us, rate: ""):
        """Measures what has no row yet: (microseconds, samples a second, NVML's three or (), words about the goal). What
        fails is a row, and the next follows. `verdict`: the words, where another row is needed for them, which may be
        there in a later run only."""
        row = known = self.find(*what)
        if not row:
            try:
                us, rate, seen, goal = measure()
            except Failed as why:
                us, rate, seen, goal = 0, 0, (), f"failed: {why}"
            told = [f"{value:g}" if value >= 0 else "" for value in seen] or [""] * 3
            row = self.table.add(*self.gpu, *what, f"{us:.2f}" if us else "", f"{rate:.1f}" if rate else "", *told, goal)
        words = row["goal"] or verdict(float(row["us_per_step"]), float(row["samples_per_s"] or 0))
        if not known or words != row["goal"]:
            self.table.change(row, goal=words)
            print(*list(row.values())[2:], sep="\t", flush=True)

    def count(self, word):
        return sum(row["goal"].startswith(word) for row in self.table.now)


def judge(met, text):
    """What a row says of its goal; one that is missed counts."""
    return text if met else f"missed: {text}"


def bench_steps(bench):
    def eager():
        return *bench.peer(work, "eager"), ""

    def given():
        us, rate, *seen = bench.ours("step", *work)
        return us, rate, seen, ""

    def on_device():
        us, rate = bench.ours("share", *work)
        return us, rate, (), ""

    def beside_eager(us, _rate):
        theirs = bench.rate(*what, "torch-eager")
        times = work[1] / us * 1e6 / theirs if theirs else 0
        return judge(times >= wanted, f"{times:.2f} of {wanted} times eager") if theirs else ""
    engines = ["kubeml", "kubeml, samples on the device", *(["torch-eager"] if bench.torch else [])]
    # What has no number yet, or missed its goal, comes first: the time may not do for all.
    for *work, wanted in sorted(bench.work, key=lambda one: bench.is_met("steps", one, engines)):
        what = ("steps", *work)
        if bench.torch:
            bench.row((*what, "torch-eager"), eager)
        bench.row((*what, "kubeml"), given, beside_eager)
        bench.row((*what, "kubeml, samples on the device"), on_device, beside_eager)


def bench_compiled(bench):
    for *work, _ in bench.work if bench.torch else []:
        bench.row(("compiled", *work, f"torch-compile {bench.mode}"),
                  lambda work=work: (*bench.peer(work, bench.mode), ""))


def bench_functions(bench):
    name, batch, precision = SHARED
    what = ("functions", f"{name} x{FUNCTIONS}", batch, precision)
    one = "kubeml, one alone"

    def alone():
        us, rate, *seen = bench.ours("step", *SHARED)
        return us, rate, seen, ""

    def together():
        us, rate, *seen = bench.ours("step", *SHARED, FUNCTIONS)
        return us, rate, seen, ""

    def beside_one(_us, rate):
        least = bench.rate(*what, one)
        return judge(rate >= TOGETHER_GOAL * least, f"{rate / least:.2f} of {TOGETHER_GOAL} times one alone") if least else ""

    def processes():
        return *bench.peer(SHARED, "eager", FUNCTIONS), ""

    def beside_ours(_us, rate):
        ours = bench.rate(*what, "kubeml")
        return judge(ours >= PROCESSES_GOAL * rate, f"ours {ours / rate:.2f} of {PROCESSES_GOAL} times") if ours else ""
    bench.row((*what, one), alone)
    bench.row((*what, "kubeml"), together, beside_one)
    if bench.torch:
        bench.row((*what, "torch-eager processes"), processes, beside_ours)


def first_of_each(work):
    """The first batch and precision of each model."""
    return list({one[0]: one for one in reversed(work)}.values())[::-1]


def bench_start(bench):
    """A warm process from its model to its first batch's end; the algorithms are known, as to a function of a platform where
    the job, or one like it, has run before. The first process of all measures them, and is told apart."""
    for *work, _ in first_of_each(bench.work):
        args = ("start", *work)
        with tempfile.TemporaryDirectory() as folder:
            cache = {"KUBEML_CUDA_CACHE": f"{folder}/algorithms"}

            def first():
                return bench.ours(*args, **cache)[-1] * 1e3, 0, (), ""

            def known():
                bench.ours(*args, **cache)
                parts = zip(*(bench.ours(*args, **cache) for _ in range(STARTS)))
                warm, compile_, weights, batch, all_ = map(statistics.median, parts)
                return all_ * 1e3, 0, (), judge(
                    all_ <= START_GOAL_MS, f"{all_:.1f} of {START_GOAL_MS} ms: compiling {compile_:.1f}, the weights "
                    f"{weights:.1f}, the first batch {batch:.1f}; making it warm, before, {warm:.0f}")
            bench.row((*args, "kubeml, never measured"), first)
            bench.row((*args, "kubeml"), known)


def bench_merge(bench):
    def measure():
        merged, copied = bench.ours("merge", 8, FLOATS)
        return 0, 0, (), judge(merged >= MERGE_GOAL * copied, f"{merged / copied:.2f} of {MERGE_GOAL} of copying: "
                               f"{merged / 1e9:.0f} GB/s of {copied / 1e9:.0f}")
    bench.row(("merge", "8 x 21.3M floats", "", "fp32", "kubeml"), measure)


def norm_words(name, us, theirs, rate):
    """One pass of ours beside cuDNN's ways; of those, less than 0 is why it is not there."""
    told = [f"{way} {one:.1f}" if one > 0 else f"{way} refused ({-one:.0f})" for way, one in zip(NORM_WAYS, theirs)]
    best = min((one for one in theirs if one > 0), default=None)
    faster = "" if best is None else f": ours is {best / us:.2f} times as fast" if best >= us else \
        f": cuDNN's is {us / best:.2f} times as fast"
    return f"{name} {us:.1f} us, {rate:.0f} GB/s, cuDNN's {', '.join(told)}{faster}"


def bench_norm(bench):
    """Batch norm with its ReLU beside cuDNN's two calls for them; a row's microseconds are both passes' of ours."""
    def measure():
        *measured, apart = bench.ours("norm", channels, side, NORM_BATCH, precision)
        passes = [(name, measured[i], measured[i + 1:i + 3], measured[i + 3]) for name, i in (("forward", 0), ("backward", 4))]
        wrong = "" if apart <= NORM_DIFFERENCE else f"failed: cuDNN's results are {apart:g} of ours away; "
        return sum(us for _, us, *_ in passes), 0, (), wrong + "; ".join(norm_words(*one) for one in passes)
    for channels, side in NORMS:
        for precision in NORM_PRECISIONS:
            try:
                bench.row(("norm", f"{channels}x{side}x{side}", NORM_BATCH, precision, "kubeml"), measure)
            except NotThere as why:
                words = f"left out: {why}"
                if bench.asked:
                    bench.row(("norm", "", "", "", "kubeml"), lambda words=words: (0, 0, (), words))
                return


PARTS = {"steps": bench_steps, "functions": bench_functions, "start": bench_start, "merge": bench_merge, "norm": bench_norm,
         "compiled": bench_compiled}


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "peer":
        return torch_peer(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="bench_gpu")
    parser.add_argument("out", type=pathlib.Path, help="the CSV's folder")
    parser.add_argument("--only", type=lambda text: text.split(","),
                        help=f"of {','.join(PARTS)}: what else the GPU's file has stays")
    parser.add_argument("--work", type=lambda text: text.split(","), default=[],
                        help=f"MODEL[:BATCH[:PRECISION]],... of {', '.join(BY_WORK)}: what the file has of others stays")
    parser.add_argument("--mode", default="max-autotune", help="torch.compile's; max-autotune, whose compiling takes minutes")
    results.add_options(parser)
    o = parser.parse_args()
    o.asked, o.only = o.only is not None, o.only or list(PARTS)
    if not set(o.only) <= set(PARTS):
        parser.error(f"--only takes {','.join(PARTS)}")
    if not combinations(o.work):
        parser.error(f"--work names none of {[one[:3] for one in combinations([])]}")
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML counts so
    clock = Clock(o.seconds)
    gpu, libraries = results.find_gpu(o.program, "bench-gpu", clock)
    torch = results.has_torch(sys.executable, "bench-gpu", clock)
    bench = Bench(o, clock, gpu, libraries, torch)
    unfinished = None
    with results.new_cache(bench.path, o.seconds):
        for part in o.only:
            try:
                PARTS[part](bench)
            except OutOfTime:
                unfinished = part
                break
    if bench.all and not unfinished:
        bench.table.keep(bench.is_now)
    bench.table.end(libraries)
    failed, missed = bench.count("failed"), bench.count("missed")
    if failed or missed or unfinished:
        print(f"bench-gpu: {failed} failed, {missed} missed their goal" +
              (f"; the time was over in {unfinished}: the same command goes on" if unfinished else ""), file=sys.stderr)
    sys.exit(results.UNFINISHED if unfinished else 1 if failed or missed or torch is None else 0)


if __name__ == "__main__":
    main()
