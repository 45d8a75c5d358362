"""A program of the build folder that does steps on request and says how long they took, as bench_engine does."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BENCHES = ROOT / os.environ.get("BUILD", "build/release") / "bench"


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
