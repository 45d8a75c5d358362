#!/usr/bin/env python3
"""The engine beside PyTorch: training steps and inference, same model, batch, threads, fp32, one run.

The two take turns in short rounds, so that what else the machine does meets both alike; a cell is the
median over the rounds, in samples a second, a ratio is against PyTorch's fastest mode.

  BUILD=build/release python3 test/bench/bench_engine.py [--rounds 7] [--cases lenet:32:1,...] [--batches 16,64,128,512]

Without --cases: every promised ratio on one thread and on two (and ResNet-20's, of which none is promised);
--batches adds these batches of every model, to training and inference. conv:64:16:5:4 is a model too: four
convolutions of 5x5 with 64 channels in and out on 16x16; lenet:1:28:5:32:64 is LeNet with 32 and 64 filters.
Exits with 1 where a ratio is under what is promised for that model, batch and kind of run; cells without a
promise are for the reader alone.
"peak" is the share of the machine's sgemm (the faster of PyTorch's and numpy's on 1536x1536, on as many
threads) that ours reaches, counting what the direct algorithms would compute; Winograd's may be over 100 %.

By default a speed is by the clock, which means something on a quiet machine alone. --cpu-time divides by
the process' CPU seconds instead: with other work on the machine, ratios of one thread stay comparable;
what two threads gain is not in it.

The one batch is soon learnt by heart, which leaves PyTorch's momentum denormal; x86 is slow at that, and few
batches of real data make any. PyTorch is told to flush them to zero, as ours does by itself.

--precision bf16: ours in bf16 beside PyTorch's autocast to bfloat16.

Runs under a Python that has PyTorch and torchvision (the make target bench-engine sets one up).
"""
import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import torch
from torch import nn

from program import Program, split_case
from torch_models import FORMS, flops_of, model_of, numbers_of

# What is promised for training and for inference, and at which batches: the smallest ratio.
TRAIN = {"lenet": {16: 6.0, 32: 5.0, 128: 4.5}, "lenet-3x3-8-20": {32: 4.0}, "lenet-rgb32": {32: 4.0},
         "lenet-rgb32-3x3-8-20": {32: 4.0}, "resnet20": {32: None}, "resnet18": {32: 2.0}, "resnet34": {32: 2.0},
         "vgg11": {32: 2.0}, "squeezenet1_1": {32: 2.0}, "mobilenet_v3_small": {32: 2.5},
         "densenet121": {32: 1.5}}
INFER = {"lenet": 2.5, "resnet18": 1.6, "resnet34": 1.6, "vgg11": 1.5, "squeezenet1_1": 1.5,
         "mobilenet_v3_small": 2.0, "densenet121": 1.3}
BF16 = {"resnet34": 1.05}  # training beside autocast
MODES = ("eager", "channels_last", "compile")
torch.set_flush_denormal(True)  # before PyTorch starts threads, which take it over


class Torch:
    def __init__(self, name, batch, what, mode, options):
        self.clock = time.process_time if options.cpu_time else time.perf_counter
        self.autocast = options.precision == "bf16"
        torch.manual_seed(1)
        model, shape = model_of(name)
        self.x = torch.rand(batch, *shape) * 2 - 1
        if mode == "channels_last":
            model = model.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 10, (batch,))
        self.train = what == "train"
        model.train(self.train)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.model = torch.compile(model) if mode == "compile" else model

    def step(self):
        half = torch.autocast("cpu", torch.bfloat16, enabled=self.autocast)
        if not self.train:
            with torch.inference_mode(), half:
                self.model(self.x)
            return
        self.optimizer.zero_grad(set_to_none=True)
        with half:
            loss = nn.functional.cross_entropy(self.model(self.x), self.labels)
        loss.backward()
        self.optimizer.step()

    def run(self, steps):
        begin = self.clock()
        for _ in range(steps):
            self.step()
        return self.clock() - begin


def rest():
    """Until PyTorch's threads are at rest: they spin for some milliseconds after its turn, on the core of our second thread."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.0005:
            return
    sys.exit("PyTorch's threads do not come to rest")


def steps_of(contestant, seconds):
    """So many take about that long."""
    steps, took = 1, contestant.run(1)
    while took < seconds / 5:
        steps *= 2
        took = contestant.run(steps)
    return max(1, round(seconds / took * steps))


def measure(contestant, batch, seconds):
    """Samples a second over about that many seconds."""
    rest()
    if not hasattr(contestant, "steps"):
        contestant.run(1)  # a large batch's step takes half a minute: no more than what is compiled and allocated once
        contestant.steps = steps_of(contestant, seconds)
    return contestant.steps * batch / contestant.run(contestant.steps)


def compare(name, batch, threads, what, options):
    torch.set_num_threads(threads)
    torch._dynamo.reset()  # it compiles one piece of code eight times, and then no more: LeNets share theirs
    ours = Program(["bench_engine", name, batch, threads, "cpu", options.precision], what, options.cpu_time)
    rivals = {mode: Torch(name, batch, what, mode, options) for mode in options.modes}
    speeds = {mode: [] for mode in ["ours", *rivals]}
    for _ in range(options.rounds):
        for mode, rival in rivals.items():
            speeds["ours"].append(measure(ours, batch, options.seconds))
            speeds[mode].append(measure(rival, batch, options.seconds))
    ours.close()
    return {mode: statistics.median(v) for mode, v in speeds.items()}


def sgemm_peak(threads, cpu_time):
    """Floating-point operations a second of the better sgemm, best of a few."""
    torch.set_num_threads(threads)
    clock = time.process_time if cpu_time else time.perf_counter
    n, a = 1536, torch.rand(1536, 1536)
    products = [lambda: torch.mm(a, a)]
    if threads == 1:
        products.append(lambda b=a.numpy(): b @ b)  # OpenBLAS: its threads are chosen at import
    times = []
    for _ in range(6):
        for product in products:
            begin = clock()
            product()
            times.append(clock() - begin)
    return 2 * n ** 3 / min(times)


def all_cases(batches, threads):
    for t in threads:
        for model, promised in TRAIN.items():
            for batch in sorted({*promised, *batches}):
                yield model, batch, t, "train"
        for model in INFER:
            for batch in sorted({32, *batches}):
                yield model, batch, t, "infer"


def promise(model, batch, threads, what, precision):
    if precision == "bf16":
        return BF16.get(model) if what == "train" else None
    if what == "infer":
        return INFER.get(model) if batch == 32 else None
    return TRAIN.get(model, {}).get(batch)


def case(text):
    """"lenet:32:1" or "lenet:32:1:infer"."""
    found = split_case(text)
    if not found or (found[0] not in TRAIN and not numbers_of(found[0])):
        raise argparse.ArgumentTypeError(f"{text!r} is not model:batch:threads[:infer]; models: {', '.join(TRAIN)}, "
                                         f"{FORMS}")
    return found


def number(v):
    return f"{v / 1000:.1f}k" if v >= 1000 else f"{v:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.25, help="of one turn")
    parser.add_argument("--cases", type=lambda s: [case(c) for c in s.split(",")],
                        help="model:batch:threads[:infer],...; default: all")
    parser.add_argument("--batches", default=[], type=lambda s: [int(v) for v in s.split(",")],
                        help="besides the promised ones: 16,64,128,512")
    parser.add_argument("--threads", default=[1, 2], type=lambda s: [int(v) for v in s.split(",")])
    parser.add_argument("--modes", default=",".join(MODES), type=lambda s: s.split(","))
    parser.add_argument("--cpu-time", action="store_true",
                        help="CPU seconds instead of the clock's: one thread on a machine with other work")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    cases = options.cases or list(all_cases(options.batches, options.threads))
    unit = "CPU second" if options.cpu_time else "second"
    print(f"PyTorch {torch.__version__}; {options.precision}, samples a {unit}, medians of {options.rounds} rounds")
    head = f"{'model':22}{'batch':>6}{'thr':>4} {'what':6}{'ours':>9}"
    print(head + "".join(f"{m:>15}" for m in options.modes) + f"{'ratio':>8}{'promised':>10}{'peak':>7}")
    missed, peaks = [], {}
    for name, batch, threads, what in cases:
        if threads not in peaks:
            peaks[threads] = sgemm_peak(threads, options.cpu_time)
        r = compare(name, batch, threads, what, options)
        ratio, floor = r["ours"] / max(r[m] for m in options.modes), promise(name, batch, threads, what, options.precision)
        share = r["ours"] * flops_of(name, what == "train") / peaks[threads]
        if floor and ratio < floor:
            missed.append(f"{name}:{batch}:{threads}:{what} {ratio:.2f} of {floor}")
        print(f"{name:22}{batch:6}{threads:4} {what:6}{number(r['ours']):>9}" +
              "".join(f"{number(r[m]):>15}" for m in options.modes) +
              f"{ratio:8.2f}{floor if floor else '-':>10}{share:7.0%}", flush=True)
    if missed:
        print("under what is promised: " + ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
