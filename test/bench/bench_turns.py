#!/usr/bin/python3
"""What a change of the engine is worth: two builds of bench_engine in turns, the time of the second by that of the first.

  make build/release/bench/bench_engine && cp build/release/bench/bench_engine /tmp/before
  ... the change, make again ...
  python3 test/bench/bench_turns.py /tmp/before resnet18:32:1,lenet:16:1:infer

A line a case, model:batch:threads[:infer]: the median and the quartiles of the pairs' ratios, by CPU time (--clock: by the
clock), under 1 where the change is faster. Which of the two begins a pair alternates, so that what else the machine does
meets both alike. One pinned core (taskset -c 1) moves less.
"""
import argparse
import statistics

from program import Program, split_case


def case(text):
    found = split_case(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not model:batch:threads[:infer]")
    return found


def ratios(programs, turns, seconds):
    for p in programs:
        p.run(2)  # what is compiled and allocated once
    steps = max(1, round(seconds / programs[0].run(1)))
    for turn in range(turns):
        times = {}
        for p in programs if turn % 2 == 0 else programs[::-1]:
            times[p] = p.run(steps)
        yield times[programs[1]] / times[programs[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", help="a copy of bench_engine")
    parser.add_argument("cases", type=lambda s: [case(c) for c in s.split(",")])
    parser.add_argument("--after", default="bench_engine", help="the other one (the build folder's)")
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.25, help="of one turn")
    parser.add_argument("--clock", action="store_true")
    options = parser.parse_args()
    for model, batch, threads, what in options.cases:
        programs = [Program([path, model, batch, threads, "cpu"], what, not options.clock)
                    for path in (options.before, options.after)]
        found = list(ratios(programs, options.turns, options.seconds))
        low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
        print(f"{model:24}{batch:>5}{threads:>3} {what:6}{middle:7.3f}  ({low:.3f} to {high:.3f}, {len(found)} turns)",
              flush=True)
        for p in programs:
            p.close()


if __name__ == "__main__":
    main()
