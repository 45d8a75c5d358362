"""A program of the build folder that does steps on request and says how long they took, as bench_engine does."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BENCHES = ROOT / os.environ.get("BUILD", "build/release") / "bench"


def split_case(text):
    """Model, batch, threads and what it does, of "resnet18:32:1" or "lenet:32:1:infer"; None where it is not that."""
    words = text.split(":")
    what = words.pop() if words[-1] in ("infer", "train") else "train"
    numbers = words[-2:]
    if len(words) < 3 or not all(n.isdigit() for n in numbers):
        return None
    return ":".join(words[:-2]), int(numbers[0]), int(numbers[1]), what


class Program:
    def __init__(self, arguments, what="train", cpu_time=False, environment=None):
        self.what = what
        self.column = 1 if cpu_time else 0
        self.child = subprocess.Popen([BENCHES / arguments[0], *map(str, arguments[1:])], text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, env={**os.environ, **(environment or {})})

    def ask(self, line):
        self.begin(line)
        return self.answer()

    def begin(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def answer(self):
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.child.args[0].name} ended with status {self.child.wait()}")
        return line.strip()

    def run(self, steps):
        """Does that many; their seconds."""
        return self.seconds(self.ask(f"{self.what} {steps}"))

    def seconds(self, answer):
        return float(answer.split()[self.column])

    def close(self):
        self.child.stdin.close()
        self.child.wait()
