#!/usr/bin/env python3
"""Whether the engine's steps lean one way, beside PyTorch's: both make each step from the same weights.

    BUILD=build/release python3 test/parity/drift.py --data FOLDER [--after N] [--steps N] [--threads N] [MODEL]

Runs that differ by rounding part within ten steps where the learning rate is large (spread.py), and how far they part
hides what each step might add. Here they cannot part: PyTorch trains MODEL (resnet20, or another with its stem for CIFAR)
on CIFAR-10 (FOLDER/data_batch_1.bin and on, an epoch ends in a smaller batch), SGD with momentum 0.9 and weight decay
1e-4, and before each step the engine takes its weights and statistics over; so does a second PyTorch, in channels_last.
Each keeps a momentum of its own. With --after N it trains N steps alone before, and all begin without momentum there. What a step moves, of each side less of the leading one, is printed for each tenth of
the steps and for all:

  apart    the norm of the difference, as a part of the move's own: the mean over the steps
  along    the same along the move: longer is positive. The mean, and its standard error: of rounding it is about 0
  added    the norm of the differences' sum, as a part of what as many in directions that know nothing of each other would
           sum to: 4.36 is momentum's own, the root of (1 + 0.9) / (1 - 0.9), if gradients differ at random; if all lean one
           way it grows to the root of their number
  loss     of each batch, the mean difference
  stats    as apart, of what the running statistics move
"""
import argparse
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import parity

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from bench_accuracy import IMAGE, images  # noqa: E402

SIDE, CLASSES = 32, 10


def batches(folder, batch, steps):
    """In the files' order, over and over; what is left at the end of an epoch is a batch too."""
    raw = b"".join((folder / f"data_batch_{i}.bin").read_bytes() for i in range(1, 6))
    x, y = images(raw[:steps * batch * IMAGE])
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    for step in range(steps):
        at = step % math.ceil(len(x) / batch) * batch
        yield x[at:at + batch], y[at:at + batch]


def flat(state, names):
    return torch.cat([state[k].double().flatten() for k in names])


class Pytorch:
    def __init__(self, text, options, form):
        self.form = form
        self.model = parity.torch_model(text, 3, SIDE, CLASSES).to(memory_format=form)
        self.model.train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4)

    def state(self):
        return {k: t.clone(memory_format=torch.contiguous_format) for k, t in self.model.state_dict().items()}

    def step(self, before, x, y):
        self.model.load_state_dict(before)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x.contiguous(memory_format=self.form)), y)
        loss.backward()
        self.optimizer.step()
        return loss.item(), self.state()


class Engine:
    def __init__(self, text, options, folder):
        self.folder = folder
        numbers = map(str, (3, SIDE, CLASSES, options.batch, options.threads, options.lr))
        self.program = subprocess.Popen([parity.PROGRAM, "follow", folder, text, *numbers], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def step(self, before, x, y):
        save_file(before, self.folder / "init.safetensors")
        x.numpy().tofile(self.folder / "x.f32")
        y.int().numpy().tofile(self.folder / "y.i32")
        self.program.stdin.write(f"{len(x)}\n")
        self.program.stdin.flush()
        said = self.program.stdout.readline()
        if not said:
            sys.exit(f"parity ended with status {self.program.wait()}")
        return float(said), load_file(self.folder / "trained.safetensors")


class Differences:
    """Of one side from the leading one."""

    def __init__(self):
        self.apart, self.along, self.loss, self.stats = [], [], [], []
        self.sum, self.squares = 0, []

    def add(self, move, other, loss, stats):
        difference = other - move
        self.apart.append((difference.norm() / move.norm()).item())
        self.along.append((difference @ move / (move @ move)).item())
        self.loss.append(loss)
        self.stats.append(stats)
        self.sum += difference
        self.squares.append((difference @ difference).item())

    def words(self, last):
        """Of the last so many steps; what they add up to is of all."""
        along = self.along[-last:]
        return (f"apart {statistics.mean(self.apart[-last:]):.1e}, along {statistics.mean(along):+.1e} "
                f"± {statistics.stdev(along) / math.sqrt(len(along)):.1e}, added "
                f"{self.sum.norm().item() / math.sqrt(sum(self.squares)):.2f}, loss "
                f"{statistics.mean(self.loss[-last:]):+.1e}, stats {statistics.mean(self.stats[-last:]):.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="resnet20")
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("CIFAR10"))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()
    if not options.data:
        sys.exit("--data FOLDER (or CIFAR10): with data_batch_1..5.bin of CIFAR-10's binary version")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    text = options.model if options.model in ("resnet20", "resnet32", "resnet56") else f"{options.model},stem=cifar"
    leader, follower = (Pytorch(text, options, form) for form in (torch.contiguous_format, torch.channels_last))
    weights = [k for k, _ in leader.model.named_parameters()]
    averages = [k for k, t in leader.model.named_buffers() if t.is_floating_point()]
    found = {"engine": Differences(), "channels_last": Differences()}
    part = max(2, options.steps // 10)
    with tempfile.TemporaryDirectory() as folder:
        sides = {"engine": Engine(text, options, pathlib.Path(folder)), "channels_last": follower}
        state, since = leader.state(), []
        for step, (x, y) in enumerate(batches(options.data, options.batch, options.after + options.steps), 1 - options.after):
            before = state
            if step < 1:
                _, state = leader.step(before, x, y)
                continue
            if step == 1:
                leader.optimizer.state.clear()
            loss, state = leader.step(before, x, y)
            since.append(loss)
            moves = [flat(state, names) - flat(before, names) for names in (weights, averages)]
            for name, side in sides.items():
                its_loss, its = side.step(before, x, y)
                move, average = (flat(its, names) - flat(before, names) for names in (weights, averages))
                found[name].add(moves[0], move, its_loss - loss,
                                ((average - moves[1]).norm() / moves[1].norm()).item())
            if step % part == 0:
                print(f"steps to {step}, mean loss {statistics.mean(since):.3f}")
                since = []
                for name, of in found.items():
                    print(f"  {name:14} {of.words(part)}", flush=True)
    print(f"all {options.steps} steps")
    for name, of in found.items():
        print(f"  {name:14} {of.words(options.steps)}")


if __name__ == "__main__":
    main()
