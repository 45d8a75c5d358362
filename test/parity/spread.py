#!/usr/bin/env python3
"""How far apart training goes from weights that differ by rounding: the engine and PyTorch, from the same ones.

    BUILD=build/release python3 test/parity/spread.py --data FOLDER [--csv FILE] [--draws N] [--first N] [MODEL]

Where the learning rate is large the first losses rise to several times what they began with, and what differs in the
seventh digit is another number after ten steps. Then two runs from one seed tell nothing of each other, and what can be
compared is how the runs of each side spread. So both sides train MODEL (resnet34, stem for CIFAR) on the first batches
of CIFAR-10 (FOLDER/data_batch_1.bin and on, no augmentation), SGD with momentum 0.9 and weight decay 1e-4, from the same
weights of PyTorch's, each of them moved by at most 1e-6 of itself: by another amount in each of the draws, the same for
both sides. PyTorch takes turns with its memory layouts. A row of the CSV is a run: its mean loss over the first and the
second half of the steps. A call adds its draws to the file's. Below the rows: each side's mean and deviation of the
draws in the file, and the difference of the means in units of its own standard error.

--gradients trains ours alone, and then has each side compute one batch's loss and gradient where that led: how far they
are from PyTorch's in fp64, as a part of the gradient's norm, and how much longer or shorter they are along it. Arithmetic
that leads astray where losses are high would show there.
"""
import argparse
import csv
import math
import os
import pathlib
import statistics
import sys
import tempfile

import torch

import parity

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from bench_accuracy import IMAGE, images  # noqa: E402

COLUMNS = ["model", "batch", "lr", "side", "draw", "first_half", "second_half"]
MOVED = 1e-6


def batches(folder, batch, steps):
    raw = bytearray()
    for i in range(1, 6):
        if len(raw) < steps * batch * IMAGE:
            raw += (folder / f"data_batch_{i}.bin").read_bytes()
    x, y = images(raw[:steps * batch * IMAGE])
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    return x.reshape(steps, batch, 3, 32, 32), y.reshape(steps, batch)


def moved(init, draw):
    random = torch.Generator().manual_seed(draw)
    return {k: t * (1 + MOVED * (2 * torch.rand(t.shape, generator=random) - 1)) if k.endswith(("weight", "bias")) else t
            for k, t in init.items()}


def run_engine(text, state, x, y, steps):
    with tempfile.TemporaryDirectory() as folder:
        return parity.Engine(text, 3, 32, 10, state, x, y, steps, "auto", pathlib.Path(folder))


def losses(side, text, init, x, y, draw):
    if side == "pytorch":
        model = parity.torch_model(text, 3, 32, 10)
        return parity.Torch(model, init, x, y, torch.float32, len(x), channels_last=draw % 2 == 1).losses[1:]
    return run_engine(text, init, x, y, len(x)).losses[1:]


def whole(grads, names):
    return torch.cat([grads[k].double().flatten() for k in names])


def gradients(text, init, x, y, samples):
    """Of the first batch's first `samples`, where ours comes to by a step with each batch."""
    trained = run_engine(text, init, x, y, len(x)).trained
    state = {k: t for k, t in trained.items() if not k.startswith("optimizer.")}
    x, y = x[:1, :samples], y[:1, :samples]

    def pytorch(dtype, channels_last=False, noise=0.0):
        return parity.Torch(parity.torch_model(text, 3, 32, 10), state, x, y, dtype, 0, channels_last, noise)

    double = pytorch(torch.float64)
    want = whole(double.grads, double.grads)
    print(f"loss {double.losses[0]:.6f} in fp64")
    peers = {"kubeml": lambda: run_engine(text, state, x, y, 0)}
    peers |= {f"pytorch{', channels_last' * form[0]}{', weights moved' * bool(form[1])}":
              lambda form=form: pytorch(torch.float32, *form) for form in parity.PYTORCH}
    for name, run in peers.items():
        found = run()
        g = whole(found.grads, double.grads)
        print(f"{name:40} gradient {((g - want).norm() / want.norm()).item():.1e} apart, along it "
              f"{(g @ want / (want @ want) - 1).item():+.1e}, loss {found.losses[0] - double.losses[0]:+.1e}", flush=True)


def summary(rows):
    if not rows:
        sys.exit("no draws")
    for column in ("first_half", "second_half"):
        sides = {side: [float(r[column]) for r in rows if r["side"] == side] for side in ("kubeml", "pytorch")}
        for side, found in sides.items():
            spread = f"{statistics.stdev(found):.3f}" if len(found) > 1 else "-"
            print(f"{column:12} {side:8} mean {statistics.mean(found):.3f}, deviation {spread}, "
                  f"{min(found):.3f} to {max(found):.3f}, {len(found)} draws")
        a, b = sides["kubeml"], sides["pytorch"]
        if len(a) > 1 and len(b) > 1:
            error = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
            print(f"{column:12} apart by {statistics.mean(a) - statistics.mean(b):+.3f}, "
                  f"{abs(statistics.mean(a) - statistics.mean(b)) / error:.1f} standard errors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="resnet34")
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("CIFAR10"))
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--gradients", type=int, metavar="SAMPLES", help="of this many, after the steps")
    options = parser.parse_args()
    if not options.data:
        sys.exit("--data FOLDER (or CIFAR10): with data_batch_1..5.bin of CIFAR-10's binary version")
    torch.set_num_threads(1)
    parity.LR = options.lr
    text = options.model if options.model in ("resnet20", "resnet32", "resnet56") else f"{options.model},stem=cifar"
    x, y = batches(options.data, options.batch, options.steps)
    torch.manual_seed(0)
    init = {k: t.clone() for k, t in parity.torch_model(text, 3, 32, 10).state_dict().items()}
    if options.gradients:
        gradients(text, init, x, y, options.gradients)
        return
    of = {"model": options.model, "batch": str(options.batch), "lr": str(options.lr)}
    rows = []
    out = open(options.csv, "a", newline="") if options.csv else sys.stdout  # noqa: SIM115
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    if not options.csv or os.path.getsize(options.csv) == 0:
        writer.writeheader()
    for draw in range(options.first, options.first + options.draws):
        for side in ("kubeml", "pytorch"):
            found, half = losses(side, text, moved(init, draw), x, y, draw), options.steps // 2
            rows.append({**of, "side": side, "draw": draw, "first_half": f"{statistics.mean(found[:half]):.4f}",
                         "second_half": f"{statistics.mean(found[half:]):.4f}"})
            writer.writerow(rows[-1])
            out.flush()
    if options.csv:
        out.close()
        rows = [r for r in csv.DictReader(open(options.csv, newline="")) if all(r[k] == v for k, v in of.items())]
    summary(rows)


if __name__ == "__main__":
    main()
