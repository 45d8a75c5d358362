"""End-to-end tests: a real platform on a port of its own in a temporary folder.

A test file defines cases and ends with `harness.main(globals())`:

    @harness.case(limit=60)              # seconds; takes="X Y": none that takes one of them is beside it
    def trains(p):                       # p: a running Platform, stopped afterwards
        ...

    @harness.case(platform=False)        # starts its own, or none
    def refuses():

`--list` prints "name seconds [taken ...]", or "name - reason" of what is left out; a name runs that case. Exit status 77:
left out, with a reason (harness.skip). Nothing sleeps to wait: `until` looks for an event with a deadline.
"""
import contextlib
import ctypes
import gzip
import json
import mmap
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD", "build/release"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD
BIN = BUILD / "bin"
LENET = ROOT / "function-runtime/examples/lenet.c"
PACE = 0.04  # seconds that a batch of a paced function takes at least
# Sanitized code is slower, and so is a busy machine: deadlines stretch, as test/run.py's do.
SANITIZER = os.environ.get("SANITIZER", "")
# Seconds between two looks at what is waited for. At 0.02 they took a fifth of all processor time.
EVERY = 0.1 if SANITIZER else 0.05
EVERY_AT_LAST = EVERY  # of what has been waited for long, which is looked at after each tenth of that time
STRETCH = float(os.environ.get("TEST_STRETCH", 6 if "thread" in SANITIZER else 4 if SANITIZER else 1))


def times(n):
    """How often a case does the same again: less under a sanitizer, whose report comes of the way that is gone and not of how
    often. How often a fault must be survived is counted without one."""
    return 1 if "thread" in SANITIZER else min(n, 2) if SANITIZER else n


class Skip(Exception):
    pass


def skip(reason):
    raise Skip(reason)


def until(what, seconds=20, every=None, message=None):
    """Calls `what` until it gives something true; that is returned. A `message` that is a function is called at the deadline,
    and says what there is then."""
    began = time.monotonic()
    while True:
        value = what()
        if value:
            return value
        waited = time.monotonic() - began
        if waited >= seconds * STRETCH:
            raise AssertionError((message() if callable(message) else message) or f"not within {seconds} s: {what}")
        time.sleep(every or max(EVERY, min(waited / 10, EVERY_AT_LAST)))


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def opened_by(pid):
    """What a process's descriptors are, as /proc names it."""
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            yield os.readlink(link)


def is_connected(process):
    """It has a socket, as a client has for as long as it is answered."""
    return any(name.startswith("socket:") for name in opened_by(process.pid))


def held_port():
    """A socket, the caller's to close: its port is for servers that come and go, and nobody else is given it in between."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # who asks for this very port, as well, listens at it
    holder.bind(("127.0.0.1", 0))
    return holder


def processes_of(folder):
    """Every process whose command line names the folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if str(folder).encode() in line and alive(entry.name):
                    found.append((int(entry.name), line.replace(b"\0", b" ").decode(errors="replace")))
    return found


def shown_on(terminal):
    """All that was written to the other end of a pseudoterminal, which is closed by now; closes this one."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as ours, contextlib.suppress(OSError):  # EIO: the end
        while block := ours.read(1 << 16):
            shown += block
    return shown.decode()


# ---- data ---------------------------------------------------------------------------------------

def idx(values, *shape):
    """An IDX file of unsigned bytes."""
    head = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape)
    return head + bytes(values)


def tiny_mnist(train=512, test=128):
    """28x28 images of ten classes that a network can tell apart: a bright bar at the class's place."""
    def images(n):
        out = bytearray()
        for i in range(n):
            image = bytearray((i * 7 + k * 13) % 32 for k in range(784))
            for row in range(2 * (i % 10) + 3, 2 * (i % 10) + 7):
                image[28 * row:28 * row + 28] = bytes([220]) * 28
            out += image
        return idx(out, n, 28, 28)

    def labels(n):
        return idx((i % 10 for i in range(n)), n)
    return {"x-train": images(train), "y-train": labels(train), "x-test": images(test), "y-test": labels(test)}


def tensors_of(model):
    """Of a safetensors file's bytes: each tensor's description and bytes, by name."""
    size = struct.unpack("<Q", model[:8])[0]
    return {name: (t, model[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in sorted(json.loads(model[8:8 + size]).items()) if name != "__metadata__"}


def floats_as(dtype, model):
    """The bytes of a safetensors file with its F32 tensors as F16, BF16 (cut, not rounded) or F64."""
    head, out = {}, b""
    for name, (t, some) in tensors_of(model).items():
        if t["dtype"] == "F32":
            floats = struct.unpack(f"<{len(some) // 4}f", some)
            some = (b"".join(struct.pack("<f", x)[2:] for x in floats) if dtype == "BF16"
                    else struct.pack(f"<{len(floats)}{'e' if dtype == 'F16' else 'd'}", *floats))
            t["dtype"] = dtype
        head[name] = {**t, "data_offsets": [len(out), len(out) + len(some)]}
        out += some
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + out


def code_is_asked():
    """Skips where the kernel has no Landlock: there uploaded code is not asked what samples it takes."""
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:  # landlock_create_ruleset: its version
        skip("this kernel has no Landlock")


def mnist():
    """The folder of the real data set, as test/run.py found it, or a skip."""
    if "MNIST" not in os.environ:
        skip("MNIST is not at hand: scripts/mnist-data demo-out/mnist downloads it, DATA=folder names it")
    return pathlib.Path(os.environ["MNIST"])


@contextlib.contextmanager
def stopped_writer(p):
    """Somebody's turn to write the records that does not come to an end, as a stopped process's."""
    behind_boot = 40  # of struct shared_turn, common/store/store_lmdb_writer.c
    libc = ctypes.CDLL(None)
    with open(p.folder / "home/store/records.writer", "r+b") as f, mmap.mmap(f.fileno(), 0) as turn:
        lock = ctypes.c_char.from_buffer(turn, behind_boot)
        assert libc.pthread_mutex_lock(ctypes.byref(lock)) == 0
        try:
            yield
        finally:
            assert libc.pthread_mutex_unlock(ctypes.byref(lock)) == 0
            del lock


def paced_code(seconds):
    return LENET.read_text().replace("#include <kubeml.h>", f"""#define _POSIX_C_SOURCE 200809L
#include <kubeml.h>
#include <time.h>

static int paced(kml_step *s)
{{
    nanosleep(&(struct timespec){{.tv_sec = {int(seconds)}, .tv_nsec = {round(seconds % 1 * 1e9)}}}, NULL);
    return kml_gradients(s) ? -1 : kml_update(s, kml_learning_rate(s));
}}
""").replace(".lr = 0.01", ".lr = 0.01, .step = paced")


def talking_code(lines):
    """LeNet that writes so many lines of 112 bytes to its log, "line 00000 ...", when its model is made."""
    says = f'    for (int i = 0; i < {lines}; i++)\n        fprintf(stderr, "line %05d %0100d\\n", i, 0);\n'
    code = LENET.read_text().replace("#include <kubeml.h>", "#include <kubeml.h>\n#include <stdio.h>")
    return code.replace("    x = kml_relu", says + "    x = kml_relu", 1)


def metric_in(text, name):
    """The value of a line of /metrics' text, with labels as written; None: there is none."""
    for line in text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    return None


# ---- the platform -------------------------------------------------------------------------------

class Platform:
    sandbox = True  # uploaded code is compiled where nothing of the machine can be seen

    def __init__(self, *options, home=None, env=None):
        self.folder = pathlib.Path(home or tempfile.mkdtemp(prefix="p", dir=os.environ.get("TEST_TMP")))
        self.options = list(options)
        self.env = env or {}
        self.process = None
        self.url = None

    def start(self, wait=True):
        """Starts the controller; returns when its API answers."""
        read_end, write_end = os.pipe()
        environment = {**os.environ, **self.env}
        environment.pop("KUBEML_TOKEN", None)
        environment.update({k: v for k, v in self.env.items()})
        self.log = open(self.folder / "controller.log", "ab")
        self.process = subprocess.Popen(
            [str(BIN / "kubeml-controller"), "--home", str(self.folder / "home"), "--listen", "127.0.0.1:0",
             "--ready-fd", str(write_end), *self.options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, pass_fds=[write_end], env=environment)
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            self.url = ready.readline().strip()
        if wait:
            assert self.url, "the controller did not start:\n" + self.log_text()
        return self

    def log_text(self):
        return (self.folder / "controller.log").read_text(errors="replace")

    def stop(self, number=signal.SIGTERM, seconds=30):
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(seconds * STRETCH)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the controller did not end by itself:\n" + self.log_text())
        return self.process.returncode if self.process else None

    def kill(self):
        """kill -9 of the controller alone."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        status = self.stop()
        left = until(lambda: not processes_of(self.folder), 10, message=None) if status == 0 else True
        assert left, f"left running: {processes_of(self.folder)}"
        assert status == 0, f"the controller ended with {status}:\n{self.log_text()[-4000:]}"
        assert not self.segments(), f"left in /dev/shm: {self.segments()}"

    def segments(self):
        """What jobs of this platform have in /dev/shm."""
        log = self.log_text()
        return [f for f in os.listdir("/dev/shm") if f.startswith("kubeml-") and f.split("-")[1] in log]

    # What differs where the platform is not of this machine (test/cluster/release.py).

    def environment(self):
        """What a user's shell would have."""
        return {"KUBEML_URL": self.url, "KUBEML_HOME": str(self.folder / "home")}

    def stored_files(self):
        """What the store's folder of datasets holds; half an upload would stay there."""
        return sorted(str(f.relative_to(self.folder)) for f in (self.folder / "home/store/datasets").rglob("*"))

    def models(self):
        """Files of models in the store."""
        return sorted(f.name for f in (self.folder / "home/store/blobs").glob("models*"))

    def redis(self, job):
        """The redis-server of a job's kubeml-ps."""
        ps = self.pod(job=job, role="ps")
        children = pathlib.Path(f"/proc/{ps['pid']}/task/{ps['pid']}/children").read_text().split()
        for child in children:
            if b"redis-server" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise AssertionError(f"kubeml-ps {ps} has no redis-server among {children}")

    # requests

    def call(self, method, path, status=200, **arguments):
        arguments.setdefault("timeout", 60 * STRETCH)
        arguments.setdefault("headers", {}).setdefault("Accept", "application/json, */*;q=0.5")
        reply = self.ask(method, path, status, **arguments)
        assert reply.status_code == status, f"{method} {path}: {reply.status_code} {reply.text[:1000]}"
        return reply.json() if "json" in reply.headers.get("Content-Type", "") else reply.content

    def ask(self, method, path, _status, **arguments):
        """The answer, whatever it is; `_status` is the one that is wanted."""
        return requests.request(method, self.url + path, **arguments)

    def get(self, path, status=200, **arguments):
        return self.call("GET", path, status, **arguments)

    def post(self, path, status=200, **arguments):
        return self.call("POST", path, status, **arguments)

    def delete(self, path, status=200, **arguments):
        return self.call("DELETE", path, status, **arguments)

    def dataset(self, name="tiny", files=None):
        self.post(f"/dataset/{name}", files=files or tiny_mnist())

    def function(self, name="lenet", code=LENET):
        if isinstance(code, pathlib.Path):
            files = {"code": (code.name, code.read_bytes())}
        else:
            files = {"code": (f"{name}.c", code)}
        return self.post(f"/function/{name}", files=files)

    def paced(self, seconds=PACE, name="paced"):
        """LeNet whose batches take a while, as a large model's do: on any machine its job still runs when a test gets
        to what it does in the middle. It trains to the same weights as LeNet."""
        self.function(name, paced_code(seconds))
        return name

    def train(self, function="lenet", dataset="tiny", epochs=2, batch_size=32, lr=0.01, **options):
        options = {"default_parallelism": 2, "static_parallelism": True, **options}
        return self.post("/train", json={"function_name": function, "dataset": dataset, "epochs": epochs,
                                         "batch_size": batch_size, "lr": lr, "options": options})["id"]

    def task(self, job):
        return self.get(f"/tasks/{job}")

    def wait(self, job, seconds=60):
        """The task when the job has ended."""
        def ended():
            task = self.task(job)
            return task if task["state"] in ("succeeded", "failed", "cancelled", "suspended") else None
        return until(ended, seconds, message=lambda: f"job {job} did not end: {self.task(job)}")

    def succeed(self, job, seconds=60):
        task = self.wait(job, seconds)
        assert task["state"] == "succeeded", task
        return task

    def events(self, job, seconds=60):
        """All events until the stream ends: [(name, data)]."""
        out = []
        with requests.get(self.url + f"/tasks/{job}/events", stream=True, timeout=seconds * STRETCH) as reply:
            assert reply.status_code == 200, reply.text
            name = None
            for line in reply.iter_lines(decode_unicode=True):
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    out.append((name, json.loads(line[6:])))
        return out

    # pods

    def pods(self, **wanted):
        """What the files in run/pods say: name, role, pid, job, function, incarnation."""
        out = []
        for path in (self.folder / "home/run/pods").glob("*.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                record = json.loads(path.read_text())
                if alive(record["pid"]) and all(record[k] == v for k, v in wanted.items()):
                    out.append(record)
        return out

    def pod(self, seconds=20, **wanted):
        return until(lambda: self.pods(**wanted), seconds, message=f"no pod {wanted}")[0]

    def warm(self, functions, ps):
        """Waits until the pool holds as many."""
        def filled():
            now = self.get("/ready")
            return now["warm_functions"] >= functions and now["warm_ps"] >= ps
        until(filled, 30, message="the pool is not warm")

    def metric(self, name):
        """The value of a line of /metrics, with labels as written; of several controllers, of the one that leads."""
        return metric_in(self.get("/metrics").decode(), name)


# ---- cases --------------------------------------------------------------------------------------

def case(limit=60, takes="", platform=True, options=(), env=None):
    def mark(function):
        function.case = {"limit": limit, "takes": takes, "platform": platform, "options": options, "env": env}
        return function
    return mark


# Where it gives a context manager, cases with a platform get that one: test/cluster/test_e2e.py.
another_platform = None


def run_case(function):
    about = function.case
    if not about["platform"]:
        function()
        return
    if another_platform:
        with another_platform() as platform:
            function(platform)
        return
    if not (BIN / "kubeml-controller").exists():
        raise AssertionError(f"{BIN}/kubeml-controller is not built")
    platform = Platform(*about["options"], env=about["env"])
    try:
        with platform:
            function(platform)
    except Skip:
        raise
    except BaseException:
        print("controller's log ends:\n" + "\n".join(platform.log_text().splitlines()[-30:]))
        raise
    finally:
        # Pods outlive a controller that crashed; a failed case must not leave them to the next ones.
        for pid, _ in processes_of(platform.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def main(names):
    cases = {n: f for n, f in names.items() if isinstance(getattr(f, "case", None), dict)}
    if sys.argv[1:] == ["--list"]:
        for name, function in cases.items():
            about = function.case
            print(name, *(("-", about["left_out"]) if "left_out" in about else (about["limit"], about["takes"])))
        return
    chosen = sys.argv[1:] or list(cases)
    failed = 0
    for name in chosen:
        try:
            run_case(cases[name])
            print(f"ok   {name}")
        except Skip as reason:
            print(f"left out: {reason}")
            sys.exit(77)
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {name}")
            failed += 1
    sys.exit(1 if failed else 0)
