"""make check-gpu: every case of the programs given, each in a process of its own with its time limit; a CSV named by the GPU.
Those that have never passed come first.

A row a case: passed, failed or left out, with the last words of what did not pass. Exit status 1: a case failed; 75: --seconds
are over, the same command goes on; 77: there is no GPU.
"""
import argparse
import concurrent.futures
import pathlib
import subprocess
import sys
import time

import results
from results import Clock, OutOfTime

# The limits are the host's; here a process's CUDA and the choice of algorithms come on top. One that hangs ends the rest of no run.
STRETCH, LIMIT_MAX_S = 4, 300
COLUMNS = "gpu libraries program case result seconds words".split()


def cases(program):
    """(program, case, seconds it may take)"""
    listing = subprocess.run([program, "--list"], capture_output=True, text=True, timeout=60, check=True)
    return [(program, name, min(STRETCH * int(limit), LIMIT_MAX_S)) for name, limit in map(str.split, listing.stdout.splitlines())]


def short(program):
    return pathlib.Path(program).name


def run_case(program, name, limit, clock):
    """(result, seconds, output)"""
    begin = time.monotonic()
    status, out, error = results.run([program, name], limit, clock)
    output = (out + error).strip()
    if status is None:
        output += f"\nno end within {limit} s"
    elif status < 0:
        output += f"\nended by signal {-status}"
    return {0: "passed", 77: "left out"}.get(status, "failed"), time.monotonic() - begin, output


def run_all(todo, jobs, clock, tell):
    """Tells of each that has ended; False: the time was over before."""
    whole = True
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(run_case, *case, clock): case for case in todo}
        for done in concurrent.futures.as_completed(running):
            try:
                tell(*running[done], *done.result())
            except OutOfTime:
                whole = False
    return whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", help="bench_gpu")
    parser.add_argument("out", type=pathlib.Path, help="the CSV's folder")
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""],
                        help="cases whose PROGRAM:CASE has one of these in it; what else the GPU's file has stays")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time; 4")
    results.add_options(parser)
    o = parser.parse_args()
    clock = Clock(o.seconds)
    gpu, libraries = results.find_gpu(o.bench, "check-gpu", clock)
    path = results.csv_path(o.out, gpu, "check")
    table = results.Results(path, COLUMNS, ["gpu", "libraries", "program", "case"], "libraries")
    wanted = [case for program in o.programs for case in cases(program)
              if any(part in f"{short(case[0])}:{case[1]}" for part in o.only)]
    names = {(short(program), name) for program, name, _ in wanted}

    def is_now(row):
        return (row["program"], row["case"]) in names

    table.know(lambda row: o.seconds and is_now(row) and [row["gpu"], row["libraries"]] == [gpu, libraries] and
               not (o.again and row["result"] == "failed"))
    # What has never passed comes first: the time may not do for all.
    passed = {(row["program"], row["case"]) for row in table.rows if row["result"] != "failed"}
    wanted.sort(key=lambda case: (short(case[0]), case[1]) in passed)

    def tell(program, name, _limit, result, seconds, output):
        words = "" if result == "passed" else " / ".join(output.splitlines()[-3:])
        table.add(gpu, libraries, short(program), name, result, f"{seconds:.1f}", words)
        print(f"{result:8} {short(program)}:{name} ({seconds:.1f} s)", flush=True)
        if result == "failed":
            print("".join(f"     {line}\n" for line in output.splitlines()[-60:]), end="", flush=True)

    with results.new_cache(path, o.seconds):
        whole = run_all([case for case in wanted if not table.find(gpu, libraries, short(case[0]), case[1])], o.jobs, clock, tell)
    if whole and o.only == [""]:
        table.keep(is_now)
    table.end(libraries)
    count = {result: sum(row["result"] == result for row in table.now) for result in ("passed", "failed", "left out")}
    print(", ".join(f"{n} {result}" for result, n in count.items()))
    if not whole:
        print(f"check-gpu: {len(wanted) - sum(count.values())} cases are not run yet: the same command goes on", file=sys.stderr)
        sys.exit(results.UNFINISHED)
    sys.exit(1 if count["failed"] else 0)


if __name__ == "__main__":
    main()
