#!/usr/bin/python3
"""The engine's convolutions beside oneDNN's, layer by layer: which of them trains and infers a layer faster, and by how much.

usage: bench_onednn.py [--rounds N] [--seconds S] [--batch N] [--cases 64:32:3,...] [--cpu-time] [--floor] PROGRAM ...

A case is CHANNELS:SIDE:KERNEL: as many channels in and out, stride 1. The programs (bench_onednn built with one version of
oneDNN each) do a chain of four such layers; the engine a model of five and one of one, whose difference is four layers.
All take turns, one thread each; times are of one layer, medians over the rounds. Training is forward and both gradients;
the engine's has the update of the weights, with momentum, and bringing them into the form its kernels read, too: oneDNN
has its weights where it wants them. --floor: status 1 where oneDNN is faster.
"""
import argparse
import statistics
import sys

from program import Program

CASES = ("64:32:3", "128:16:3", "256:8:3", "512:4:3", "512:2:3", "64:32:1", "256:8:1", "16:32:3", "64:16:5")
LAYERS = 4
ALONE = {"OMP_NUM_THREADS": "1"}


class Chain:
    """Seconds of one layer of it."""

    def __init__(self, programs):
        self.programs = programs
        self.steps = None

    def layer(self, seconds):
        long = self.programs[0]
        if not self.steps:
            long.run(2)
            self.steps = max(1, int(seconds / (long.run(3) / 3)))
        times = [p.run(self.steps) / self.steps for p in self.programs]
        return (times[0] - sum(times[1:])) / LAYERS

    def close(self):
        for p in self.programs:
            p.close()


def compare(case, what, options):
    def engine(layers):
        return Program(["bench_engine", f"conv:{case}:{layers}", options.batch, 1, "cpu"], what, options.cpu_time)

    chains = [Chain([engine(LAYERS + 1), engine(1)])]
    for program in options.programs:
        chains.append(Chain([Program([program, f"{case}:{LAYERS}", options.batch], what, options.cpu_time, ALONE)]))
    times = [[] for _ in chains]
    for _ in range(options.rounds):
        for chain, of in zip(chains, times):
            of.append(chain.layer(options.seconds))
    chosen = [chain.programs[0].ask("choices") for chain in chains]
    for chain in chains:
        chain.close()
    return [statistics.median(t) for t in times], chosen


def algorithms(choices, what):
    """"direct", or one for each direction where they differ."""
    words = choices.split(": ")[1].split()
    taken = dict(zip(words[::2], words[1::2]))
    of = [taken["infer"]] if what == "infer" else [taken[d] for d in ("forward", "data", "weights")]
    return of[0] if len(set(of)) == 1 else "/".join(of)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one turn")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cases", default=CASES, type=lambda s: s.split(","))
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds instead of the clock's")
    parser.add_argument("--floor", action="store_true", help="exit 1 where oneDNN is faster")
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    options = parser.parse_args()
    slower, titled = 0, False
    for case in options.cases:
        for what in ("train", "infer"):
            times, chosen = compare(case, what, options)
            if not titled:
                print(f"batch {options.batch}, one thread, ms a layer{' of CPU time' if options.cpu_time else ''}; "
                      "a ratio is oneDNN's time by the engine's")
                print(f"{'layer':10}{'what':7}{'engine':>9}" +
                      "".join(f"{c.split(':')[0]:>14}{'ratio':>7}  {'algorithm':25}" for c in chosen[1:]))
                titled = True
            slower += min(times[1:]) < times[0]
            print(f"{case:10}{what:7}{1e3 * times[0]:9.3f}" +
                  "".join(f"{1e3 * t:14.3f}{t / times[0]:7.2f}  {algorithms(c, what):25}" for t, c in zip(times[1:], chosen[1:])),
                  flush=True)
    return 1 if options.floor and slower else 0


if __name__ == "__main__":
    sys.exit(main())
