#!/usr/bin/python3
"""Two functions of one thread each beside one: how much more LeNet they train together.

usage: bench_functions.py [--rounds N] [--seconds S] [--batch N]

Two processes with an engine each. In turn, one trains alone and both train at once, each for about S seconds
with the same number of steps; a round's gain is the steps a second of both together over those of one alone
(the mean of the two when each was alone). The bar is 1.8, on two cores with nothing else running; under it the exit status is 1.
"""
import argparse
import statistics
import sys

from program import Program

GOAL = 1.8


def speeds(functions, steps):
    """Steps a second of each, all running at once."""
    for f in functions:
        f.begin(f"train {steps}")
    return [steps / f.seconds(f.answer()) for f in functions]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    pair = [Program(["bench_engine", "lenet", options.batch, 1]) for _ in range(2)]
    steps = max(1, int(min(speeds(pair[:1], 500)) * options.seconds))
    gains, alone = [], []
    for _ in range(options.rounds):
        one = [speeds([f], steps)[0] for f in pair]
        gains.append(sum(speeds(pair, steps)) / statistics.mean(one))
        alone += one
    for f in pair:
        f.close()
    gain = statistics.median(gains)
    print(f"LeNet, batch {options.batch}, one thread: {statistics.median(alone) * options.batch:,.0f} samples a second alone")
    print(f"two functions: {gain:.2f} times as fast (median of {options.rounds}: {min(gains):.2f} to {max(gains):.2f}; "
          f"goal: at least {GOAL})")
    return 1 if gain < GOAL else 0


if __name__ == "__main__":
    sys.exit(main())
