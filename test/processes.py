"""Processes that run.py runs cases in: of a session of their own, their output in a pipe.

A Python program is forked off a process that has the libraries loaded already: to load them anew takes longer than many a
case, and there are hundreds of cases.
"""
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import threading
import time

forks = multiprocessing.get_context("forkserver")
# What is not there is passed over, and missed by the program that asks for it. None that starts threads (numpy does): a
# process with threads is not forked.
forks.set_forkserver_preload(["__main__", "requests", "yaml"])
# Who starts a process looks for the ends of all others, too, and an exit status comes once: read by two threads it is 255.
looking = threading.Lock()


def be(program, output, environment, folder):
    """In the new process: that program."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output.fileno()), (2, output.fileno())):
        os.dup2(source, target)
    os.close(nothing)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = program[1:]
    sys.path[0] = str(pathlib.Path(program[1]).parent)
    sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX")
    # As a module: what it was compiled to is kept, which is not done for a path.
    runpy.run_module(pathlib.Path(program[1]).stem, run_name="__main__")


class Forked:
    """Of subprocess.Popen what a case needs."""

    def __init__(self, program, environment, folder):
        self.args = program
        self.output, output = forks.Pipe(duplex=False)
        self.process = forks.Process(target=be, args=(program, output, environment, folder))
        with looking:
            self.process.start()
        output.close()
        self.pid = self.process.pid
        self.said = b""

    def communicate(self, timeout):
        deadline = time.monotonic() + timeout
        while not self.output.closed:
            readable, _, _ = select.select([self.output], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.output.fileno(), 1 << 16) if readable else None
            if piece is None:
                raise subprocess.TimeoutExpired(self.args, timeout, output=self.said)
            self.said += piece
            if not piece:
                self.output.close()
        if not multiprocessing.connection.wait([self.process.sentinel], max(0, deadline - time.monotonic())):
            raise subprocess.TimeoutExpired(self.args, timeout, output=self.said)
        with looking:
            self.process.join()
        return self.said, None

    @property
    def returncode(self):
        return self.process.exitcode


def start(program, environment, folder, errors=subprocess.STDOUT):
    """A program with its arguments, in that folder. Gives what has pid, communicate and returncode of a Popen. `errors`: where
    stderr goes, of those that are no Python."""
    if program[0] == sys.executable:
        return Forked(program, environment, folder)
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
                            env=environment, cwd=folder, start_new_session=True)


def signal_all(process, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def ended(process, seconds):
    """What it wrote until its end, and its exit status; "timeout" where it had to be ended. Nothing of its group is left."""
    try:
        output, _ = process.communicate(timeout=seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        # An end-to-end test says where it stood and ends its platform, whose pods are in sessions of their own.
        signal_all(process, signal.SIGINT if isinstance(process, Forked) else signal.SIGABRT)
        try:
            output, _ = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            signal_all(process, signal.SIGKILL)
            try:
                output, _ = process.communicate(timeout=5)
            except subprocess.TimeoutExpired as e:  # something of another session holds its output
                output = e.output or b""
        output += f"\nno end within {seconds} s".encode()
        status = "timeout"
    signal_all(process, signal.SIGKILL)  # whatever it left behind
    return output, status
