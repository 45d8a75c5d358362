#!/usr/bin/env python3
"""Peak memory of a training step beside PyTorch's: each in a process of its own, in one run.

    BUILD=build/release python3 test/bench/bench_memory.py [--model resnet34] [--batch 128] [--threads 1]

Peak resident memory as the kernel counts it, after two steps; PyTorch's also less what the process
held once torch was loaded, since its libraries are not the step's. Ends with status 1 when ours is more
than PyTorch's step alone.
"""
import argparse
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 2


def peak(command, stdin=None):
    """Peak MiB of a child, and what it printed."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if stdin:
        child.stdin.write(stdin)
    child.stdin.close()
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command[0]} ended with status {child.returncode}")
    return usage.ru_maxrss / 1024, out


def torch_steps(options):
    """In the child: prints the MiB held before the model is made."""
    import resource
    sys.path.insert(0, str(HERE.parent / "golden"))
    import make_golden
    import torch
    torch.set_num_threads(options.threads)
    x, y = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
    tiny = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(3600, 10))
    torch.nn.functional.cross_entropy(tiny(x), y).backward()  # what is loaded at first use
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    model = make_golden.torchvision_model(options.model, "cifar")
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))
    if options.channels_last:
        x = x.to(memory_format=torch.channels_last)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet34")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        torch_steps(options)
        return
    program = pathlib.Path(os.environ.get("BUILD", "build/release")) / "bench/bench_engine"
    ours, _ = peak([program, options.model, str(options.batch), str(options.threads)], f"train {STEPS}\n")
    print(f"{options.model}, batch {options.batch}, {options.threads} thread(s), {STEPS} steps; peak MiB")
    print(f"{'engine':24}{ours:8.0f}", flush=True)
    steps = []
    for layout in ("eager", "channels_last"):
        more = ["--channels-last"] if layout == "channels_last" else []
        whole, loaded = peak([sys.executable, __file__, "--torch", *sys.argv[1:], *more])
        steps.append(whole - float(loaded))
        print(f"{'PyTorch ' + layout:24}{whole:8.0f}   of which the step {steps[-1]:6.0f}", flush=True)
    print(f"engine over PyTorch's smaller step: {ours / min(steps):.2f}")
    sys.exit(ours > min(steps))


main()
