"""A user's shell with kubeml in it: for the tests of the command line."""
import contextlib
import gzip
import http.server
import json
import os
import pathlib
import pickle
import signal
import subprocess
import tempfile
import threading

import numpy as np

import harness
from harness import until

KUBEML = harness.BIN / "kubeml"
MODEL = ("#include <kubeml.h>\n\nstatic kml_tensor model(kml_graph *g, kml_tensor x)\n{\n"
         "    return kml_linear(g, kml_flatten(g, x), %s);\n}\n\nKUBEML_FUNCTION(.model = model);\n")


class Shell:
    """A user's shell: a folder, and the environment of one platform."""

    def __init__(self, **environment):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="s", dir=os.environ.get("TEST_TMP")))
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBEML_")}
        self.environment.update({k: str(v) for k, v in environment.items()})

    def run(self, *words, status=0, seconds=60, stdin=subprocess.DEVNULL):
        """(stdout, stderr) of `kubeml WORDS`."""
        done = subprocess.run([str(KUBEML), *map(str, words)], capture_output=True, text=True, cwd=self.folder,
                              stdin=stdin, timeout=seconds * harness.STRETCH, env=self.environment)
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout, done.stderr

    def out(self, *words, **more):
        return self.run(*words, **more)[0]

    def json(self, *words):
        return json.loads(self.out(*words, "-o", "json"))

    @contextlib.contextmanager
    def follow(self, *words, stderr=subprocess.DEVNULL):
        """`kubeml WORDS` while it runs; killed at the end, or what failed meanwhile would wait for it unsaid."""
        with subprocess.Popen([str(KUBEML), *map(str, words)], stdout=subprocess.PIPE, stderr=stderr, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                              cwd=self.folder, env=self.environment) as process:
            try:
                yield process
            finally:
                process.kill()

    def without_room(self, *words):
        """What it says where its standard output is a full disk."""
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(KUBEML), *map(str, words)], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                                  text=True, cwd=self.folder, timeout=60 * harness.STRETCH, env=self.environment)
        assert done.returncode == 1, (words, done.returncode, done.stderr)
        return done.stderr

    def refused(self, *words, says, status=1):
        """It fails with that status, says these words, and prints nothing that a script would take."""
        out, problem = self.run(*words, status=status)
        assert out == "", (words, out)
        for part in [says] if isinstance(says, str) else says:
            assert part in problem, (words, part, problem)

    def write(self, name, data):
        (self.folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return name


def shell(p, **environment):
    return Shell(**p.environment(), **environment)


def upload(s, name="tiny"):
    """tiny_mnist, from gzipped files."""
    files = {k: s.write(f"{k}.gz", gzip.compress(v)) for k, v in harness.tiny_mnist().items()}
    s.out("dataset", "create", "--name", name, "--traindata", files["x-train"], "--trainlabels", files["y-train"],
          "--testdata", files["x-test"], "--testlabels", files["y-test"])


def ready(p):
    s = shell(p)
    upload(s)
    s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
    return s


def train(s, *more, epochs=2):
    return s.out("train", "-f", "lenet", "-d", "tiny", "-e", epochs, "-b", 32, "--lr", 0.01, "-p", 2, "--static",
                 *more).strip()


def endless(s):
    """A job that runs until it is stopped."""
    job = train(s, epochs=50000)
    until(lambda: s.json("task", "get", job)["epoch"] >= 1)
    return job


def table(text):
    """Rows of a table as dictionaries; columns are two blanks apart."""
    head, *rows = text.splitlines()
    return [dict(zip(head.split(), row.split())) for row in rows]


def arrays(s):
    """Good arrays, and each of the ways in which one can be wrong."""
    random = np.random.default_rng(1)
    x, y = random.integers(0, 255, (64, 28, 28), dtype=np.uint8), np.arange(64) % 10
    real = (x / 255).astype(np.float32)
    broken = real.copy()
    broken[3, 4, 5] = np.nan
    for name, value in {"x": x, "y": y, "y60": y[:60], "negative": y - 1, "half": y + 0.5, "real": real,
                        "nan": broken, "none": x[:0], "small": x[:, :3, :3]}.items():
        np.save(s.folder / f"{name}.npy", value)
    np.save(s.folder / "objects.npy", np.array([1, "a", None], dtype=object), allow_pickle=True)
    idx = gzip.compress(harness.idx(x.tobytes(), 64, 28, 28))
    s.write("cut.npy", (s.folder / "x.npy").read_bytes()[:5000])
    s.write("cut.gz", idx[:len(idx) // 2])
    s.write("pickle.pkl", pickle.dumps({"data": x}))
    s.write("text.txt", "this is no array\n")
    s.write("empty.npy", b"")
    np.savez(s.folder / "other.npz", samples=x, classes=y)


def make(x, y, tx="x.npy", ty="y.npy", name="new"):
    return ("dataset", "create", "--name", name, "--traindata", x, "--trainlabels", y, "--testdata", tx, "--testlabels", ty)


@contextlib.contextmanager
def answering(pages, lost=None, refused=None):
    """The shell of somebody whose platform has these answers: {path: (rows or text, path of the next page or None)}. `lost`
    says of how many requests ("GET /path": 2) the connection ends without an answer, `refused` how many get a 503."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def is_one_of(self, those):
            asked = f"{self.command} {self.path}"
            if not (those or {}).get(asked):
                return False
            those[asked] -= 1
            return True

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.is_one_of(lost):
                self.close_connection = True
                return
            status = 503 if self.is_one_of(refused) else 200 if self.path in pages else 404
            rows, more = pages[self.path] if status == 200 else ({"detail": "there is no room" if status == 503 else "none"}, None)
            body = (rows if isinstance(rows, str) else json.dumps(rows)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/problem+json" if status == 503 else
                             "text/plain" if isinstance(rows, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            if more:
                self.send_header("Link", f'<{more}>; rel="next"')
            self.end_headers()
            self.wfile.write(body)

        do_DELETE = do_POST = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Shell(KUBEML_URL=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
