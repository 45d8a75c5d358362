"""make bench-gpu: our engine beside PyTorch, eager and compiled, on one GPU; writes a CSV.

Both sides run in turns within one session of this script, in the same precision, each in a process of
its own; a number is the median over rounds of 50 steps. Batches are the same fixed random floats, with
SGD and momentum; PyTorch's own models stand beside ours layer by layer. Without PyTorch only our side is
measured, and the CSV says so by leaving the others out.

usage: bench_gpu.py BENCH_GPU OUT.csv
"""
import csv
import statistics
import subprocess
import sys
import time

STEPS, ROUNDS, WARM = 50, 9, 20
# model, batches, precisions, goal against eager (issue's table), by batch
WORK = [
    ("lenet5", [16, 32, 64], ["fp32"], {16: 10, 32: 10, 64: 10}),
    ("resnet34", [32, 128, 512], ["tf32", "bf16"], {32: 3, 128: 1.5, 512: 1.2}),
]
FUNCTIONS = 8


def ours(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()


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

    for _ in range(WARM):
        step()
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - begin) / STEPS * 1e6)
    return statistics.median(rounds)


def peer(name, batch, precision, compiled, functions=1):
    """Median microseconds of the slowest of `functions` processes, or None where PyTorch is not here."""
    command = [sys.executable, __file__, "peer", name, str(batch), precision, str(int(compiled))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for _ in range(functions)]
    times = []
    for process in running:
        out, error = process.communicate(timeout=1800)
        if process.returncode:
            print(f"PyTorch {name} {batch} {precision}: {error.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        times.append(float(out.strip().splitlines()[-1]))
    return max(times)


# ---- the table -----------------------------------------------------------------------------------


def utilisation():
    """Per cent, by nvidia-smi at this moment; empty where there is none."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"],
                             capture_output=True, text=True, timeout=10)
        return out.stdout.split()[0] if out.returncode == 0 else ""
    except (OSError, IndexError):
        return ""


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "peer":
        print(torch_step(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "1"))
        return
    program, out = sys.argv[1:3]
    gpu, libraries = ours(program, "gpu").split("|")
    rows = []

    def row(work, batch, precision, engine, us, rate, goal=""):
        rows.append([gpu, libraries, work, batch, precision, engine, f"{us:.2f}" if us else "", f"{rate:.1f}", goal])
        print(*rows[-1], flush=True)

    for name, batches, precisions, goals in WORK:
        for batch in batches:
            for precision in precisions:
                us, rate = map(float, ours(program, "step", name, batch, precision).split())
                eager = peer(name, batch, precision, False)
                compiled = peer(name, batch, precision, True)
                ratio = f"{eager / us:.2f} of {goals[batch]} times eager" if eager else ""
                row(name, batch, precision, "kubeml", us, rate, ratio)
                us, rate = map(float, ours(program, "share", name, batch, precision).split())
                row(name, batch, precision, "kubeml, samples on the device", us, rate)
                for label, time_us in (("torch-eager", eager), ("torch-compile", compiled)):
                    if time_us:
                        row(name, batch, precision, label, time_us, batch / time_us * 1e6)
    _, alone = map(float, ours(program, "step", "lenet5", 16, "fp32").split())
    running = subprocess.Popen([program, "step", "lenet5", "16", "fp32", str(FUNCTIONS)], stdout=subprocess.PIPE, text=True)
    time.sleep(3)  # in the middle of it: a sample for the report, nothing is decided by it
    used = utilisation()
    together_us, together = map(float, running.communicate(timeout=1800)[0].split())
    row(f"lenet5 x{FUNCTIONS}", 16, "fp32", "kubeml", together_us, together,
        f"{together / alone:.2f} of 3 times one alone; utilisation {used} %")
    us = peer("lenet5", 16, "fp32", False, FUNCTIONS)
    if us:
        rate = FUNCTIONS * 16 / us * 1e6
        row(f"lenet5 x{FUNCTIONS}", 16, "fp32", "torch-eager processes", us, rate,
            f"ours {together / rate:.2f} of 8 times")
    merged, copied = map(float, ours(program, "merge", 8, 21_300_000).split())
    row("merge 8 x 21.3M floats", "", "fp32", "kubeml", 0, merged / 1e9, f"{merged / copied:.2f} of 0.8 of copying, GB/s")
    with open(out, "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow("gpu libraries work batch precision engine us_per_step samples_per_s goal".split())
        writer.writerows(rows)
    print(f"written: {out}")


if __name__ == "__main__":
    main()
