"""make check-gpu: every case of the programs given, each in a process of its own with its time limit; a CSV named by the GPU.

usage: check_gpu.py BENCH_GPU OUT PROGRAM...

A row a case: passed, failed or left out, with the last words of what did not pass. Exit status 1: a case failed; 77: there
is no GPU.
"""
import csv
import pathlib
import subprocess
import sys
import time

from bench_gpu import csv_path, find_gpu, new_cache

STRETCH = 4  # the limits are the host's; here a process's CUDA and the choice of algorithms come on top
COLUMNS = "gpu libraries program case result seconds words".split()


def cases(program):
    """(name, seconds it may take)"""
    listing = subprocess.run([program, "--list"], capture_output=True, text=True, timeout=60, check=True)
    return [(name, STRETCH * int(limit)) for name, limit, *_ in map(str.split, listing.stdout.splitlines())]


def run(program, name, limit):
    """(result, seconds, output)"""
    begin = time.monotonic()
    try:
        done = subprocess.run([program, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, output = None, (late.output or b"") + f"\nno end within {limit} s".encode()
    result = {0: "passed", 77: "left out"}.get(status, "failed")
    output = output.decode(errors="replace").strip()
    if status is not None and status < 0:
        output += f"\nended by signal {-status}"
    return result, time.monotonic() - begin, output


def main():
    bench, out, *programs = sys.argv[1:]
    gpu, libraries = find_gpu(bench, "check-gpu")
    path = csv_path(pathlib.Path(out), gpu, "check")
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = {"passed": 0, "failed": 0, "left out": 0}
    with new_cache(), open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for program in programs:
            for name, limit in cases(program):
                result, seconds, output = run(program, name, limit)
                counts[result] += 1
                short = pathlib.Path(program).name
                words = "" if result == "passed" else " / ".join(output.splitlines()[-3:])
                table.writerow([gpu, libraries, short, name, result, f"{seconds:.1f}", words])
                file.flush()
                print(f"{result:8} {short}:{name} ({seconds:.1f} s)", flush=True)
                if result == "failed":
                    print("".join(f"     {line}\n" for line in output.splitlines()[-60:]), end="", flush=True)
    print(f"written: {path}")
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
