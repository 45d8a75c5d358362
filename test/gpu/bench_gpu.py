"""make bench-gpu: our engine beside PyTorch, eager and compiled, on one GPU; a CSV named by the GPU.

Both sides run in turns within one session of this script, in the same precision, each in a process of
its own; a number is the median over 9 rounds of 50 steps or 0.4 s. Batches are the same fixed random
floats, with SGD and momentum; PyTorch's own models stand beside ours layer by layer. Without PyTorch only
our side is measured, and the CSV says so by leaving the others out. Utilisation, watts and memory are
NVML's, over the run. Every row is written when it is known; what fails has a row that says why, and what
misses its goal says so in its row: the exit status is then 1. Exit status 77: there is no GPU.
"""
import argparse
import contextlib
import csv
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

STEPS, ROUNDS, ROUND_S, WARM = 50, 9, 0.4, 20
# model, batches, precisions, how many times as fast as eager it is to be, by batch
WORK = [
    ("lenet5", [16, 32, 64], ["fp32"], {16: 10, 32: 10, 64: 10}),
    ("resnet34", [32, 128, 512], ["tf32", "bf16"], {32: 3, 128: 1.5, 512: 1.2}),
]
FUNCTIONS, SHARED = 8, ("lenet5", 16, "fp32")
FLOATS = 21_300_000
STARTS = 9  # processes
# FUNCTIONS together, in times one alone and in times as many processes of PyTorch; averaging, in times copying
TOGETHER_GOAL, PROCESSES_GOAL, START_GOAL_MS, MERGE_GOAL = 3, 8, 50, 0.8
COLUMNS = ("gpu libraries part work batch precision engine us_per_step samples_per_s gpu_percent watts mib "
           "goal").split()


class Failed(Exception):
    pass


def ours(program, *args, **environment):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, **environment})
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise Failed(words[-1] if words else f"{args[0]}: status {done.returncode}")
    return done.stdout.strip()


def numbers(text):
    return [float(word) for word in text.split()]


def find_gpu(program, what):
    """(name, libraries), or the end, with the reason."""
    done = subprocess.run([program, "gpu"], capture_output=True, text=True, timeout=120)
    if done.returncode:
        print(f"{what}: {done.stderr.strip()}", file=sys.stderr)
        sys.exit(77 if done.returncode == 77 else 1)
    return done.stdout.strip().split("|")


@contextlib.contextmanager
def new_cache():
    """What was measured for another version of our kernels is not taken; the processes of one run tell each other."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KUBEML_CUDA_CACHE"] = f"{folder}/algorithms"
        yield


def csv_path(folder, gpu, what):
    """gpu-nvidia-h200-bench.csv"""
    return folder / f"gpu-{re.sub('[^a-z0-9]+', '-', gpu.lower()).strip('-')}-{what}.csv"


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


def torch_step(name, batch, precision, compiled):
    """Microseconds a step: run in a process of its own (main's "peer")."""
    import torch
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    model, shape = {"lenet5": lenet5, "resnet34": resnet34}[name](torch)
    model = model.cuda().to(memory_format=torch.channels_last)
    run = torch.compile(model, mode="max-autotune") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.rand(batch, *shape, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(run(x), labels)
        loss.backward()
        optimizer.step()

    def time_steps(count):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count

    time_steps(WARM)
    steps = max(STEPS, round(ROUND_S / time_steps(WARM)))
    print("ready", flush=True)
    sys.stdin.readline()  # until all that share the GPU are
    return statistics.median(time_steps(steps) for _ in range(ROUNDS)) * 1e6


def peer(program, name, batch, precision, compiled, functions=1):
    """(median microseconds of the slowest of `functions` processes, what `watch` says of their time); None: it failed."""
    command = [sys.executable, __file__, "peer", name, str(batch), precision, str(int(compiled))]
    errors = [tempfile.TemporaryFile("w+") for _ in range(functions)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error, text=True)
               for error in errors]
    for process in running:  # what a library prints before is passed over; who has ended says nothing more
        while process.stdout.readline() not in ("ready\n", ""):
            pass
    watch = subprocess.Popen([program, "watch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for process in running:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("go\n")
            process.stdin.flush()
    outputs = [process.communicate(timeout=1800)[0] for process in running]
    seen = numbers(watch.communicate()[0])
    for process, error in zip(running, errors):
        if process.returncode:
            error.seek(0)
            print(f"PyTorch {name} {batch} {precision}: {error.read().strip().splitlines()[-1:]}", file=sys.stderr)
            return None
    return max(float(out.strip().splitlines()[-1]) for out in outputs), seen


def has_torch():
    check = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", check], capture_output=True).returncode == 0


# ---- the table -----------------------------------------------------------------------------------


class Table:
    """The CSV, written anew with every row. Rows of parts that are not measured now stay as the file has them."""

    def __init__(self, path, gpu, libraries, parts):
        self.path, self.gpu, self.failed, self.missed = path, [gpu, libraries], 0, 0
        self.rows = []
        if set(parts) != set(PARTS) and path.exists():
            with open(path, newline="") as file:
                self.rows = [row for row in list(csv.reader(file))[1:] if row[COLUMNS.index("part")] not in parts]

    def row(self, part, work, batch, precision, engine, us, rate, seen=(), goal=""):
        told = [f"{value:g}" if value >= 0 else "" for value in seen] or [""] * 3
        self.rows.append([*self.gpu, part, work, str(batch), precision, engine, f"{us:.2f}" if us else "",
                          f"{rate:.1f}" if rate else "", *told, goal])
        print(*self.rows[-1][2:], sep="\t", flush=True)
        with open(self.path, "w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *self.rows])

    def goal(self, met, text):
        """What a row says of its goal; one that is missed counts."""
        self.missed += not met
        return text if met else f"missed: {text}"

    @contextlib.contextmanager
    def part(self, *what):
        """What fails in it is a row, and the next follows."""
        try:
            yield
        except (Failed, subprocess.TimeoutExpired) as why:
            self.failed += 1
            self.row(*what, "kubeml", 0, 0, goal=f"failed: {why}")


def bench_steps(table, program, torch):
    for name, batches, precisions, goals in WORK:
        for batch, precision in ((b, p) for b in batches for p in precisions):
            what = ("steps", name, batch, precision)
            us = 0
            with table.part(*what):
                us, rate, *seen = numbers(ours(program, "step", name, batch, precision))
            eager = peer(program, name, batch, precision, False) if torch else None
            compiled = peer(program, name, batch, precision, True) if torch else None
            if us:
                ratio = eager[0] / us if eager else 0
                goal = table.goal(ratio >= goals[batch], f"{ratio:.2f} of {goals[batch]} times eager") if eager else ""
                table.row(*what, "kubeml", us, rate, seen, goal)
            with table.part(*what):
                us, rate = numbers(ours(program, "share", name, batch, precision))
                table.row(*what, "kubeml, samples on the device", us, rate)
            for label, got in (("torch-eager", eager), ("torch-compile", compiled)):
                if got:
                    table.row(*what, label, got[0], batch / got[0] * 1e6, got[1])


def bench_functions(table, program, torch):
    name, batch, precision = SHARED
    what = ("functions", f"{name} x{FUNCTIONS}", batch, precision)
    together = 0
    with table.part(*what):
        _, alone, *_ = numbers(ours(program, "step", *SHARED))
        us, together, *seen = numbers(ours(program, "step", *SHARED, FUNCTIONS))
        table.row(*what, "kubeml", us, together, seen, table.goal(
            together >= TOGETHER_GOAL * alone, f"{together / alone:.2f} of {TOGETHER_GOAL} times one alone"))
    got = peer(program, *SHARED, False, FUNCTIONS) if torch else None
    if got:
        rate = FUNCTIONS * batch / got[0] * 1e6
        goal = table.goal(together >= PROCESSES_GOAL * rate,
                          f"ours {together / rate:.2f} of {PROCESSES_GOAL} times") if together else ""
        table.row(*what, "torch-eager processes", got[0], rate, got[1], goal)


def bench_start(table, program, _torch):
    """A warm process from its model to its first batch's end; the algorithms are known, as to a function of a platform where
    the job, or one like it, has run before. The first process of all measures them, and is told apart."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {"KUBEML_CUDA_CACHE": f"{folder}/algorithms"}
        for name, batches, precisions, _ in WORK:
            with table.part("start", name, batches[0], precisions[0]):
                args = ("start", name, batches[0], precisions[0])
                first = numbers(ours(program, *args, **cache))
                warm, compile_, batch, both = map(statistics.median, zip(*(numbers(ours(program, *args, **cache))
                                                                           for _ in range(STARTS))))
                table.row(*args, "kubeml, never measured", first[3] * 1e3, 0)
                table.row(*args, "kubeml", both * 1e3, 0, goal=table.goal(
                    both <= START_GOAL_MS, f"{both:.1f} of {START_GOAL_MS} ms: compiling {compile_:.1f}, the first batch "
                    f"{batch:.1f}; making it warm, before, {warm:.0f}"))


def bench_merge(table, program, _torch):
    with table.part("merge", "8 x 21.3M floats", "", "fp32"):
        merged, copied = numbers(ours(program, "merge", 8, FLOATS))
        table.row("merge", "8 x 21.3M floats", "", "fp32", "kubeml", 0, 0,
                  goal=table.goal(merged >= MERGE_GOAL * copied, f"{merged / copied:.2f} of {MERGE_GOAL} of copying: "
                                  f"{merged / 1e9:.0f} GB/s of {copied / 1e9:.0f}"))


PARTS = {"steps": bench_steps, "functions": bench_functions, "start": bench_start, "merge": bench_merge}


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "peer":
        print(torch_step(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "1"))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="bench_gpu")
    parser.add_argument("out", type=pathlib.Path, help="the CSV's folder")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS),
                        help=f"of {','.join(PARTS)}: what else the GPU's file has stays")
    o = parser.parse_args()
    if not set(o.only) <= set(PARTS):
        parser.error(f"--only takes {','.join(PARTS)}")
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML counts so
    gpu, libraries = find_gpu(o.program, "bench-gpu")
    torch = has_torch()
    if not torch:
        print(f"bench-gpu: {sys.executable} has no PyTorch with CUDA (GPU_PYTHON=...): our side alone is measured", flush=True)
    o.out.mkdir(parents=True, exist_ok=True)
    table = Table(csv_path(o.out, gpu, "bench"), gpu, libraries, o.only)
    with new_cache():
        for part in o.only:
            PARTS[part](table, o.program, torch)
    print(f"written: {table.path}")
    if table.failed or table.missed:
        sys.exit(f"bench-gpu: {table.failed} failed, {table.missed} missed their goal")


if __name__ == "__main__":
    main()
