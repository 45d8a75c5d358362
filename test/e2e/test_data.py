#!/usr/bin/python3
"""scripts/mnist-data: where MNIST is looked for, and that a download is what it should be or nothing."""
import contextlib
import hashlib
import http.server
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import pty
import sys
import tempfile
import threading
from unittest import mock

import harness
from harness import case

SCRIPT = harness.ROOT / "scripts/mnist-data"
FILES = {"images.gz": b"images " * 50000, "labels.gz": b"labels"}


def folder():
    return pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))


def put(at):
    at.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (at / name).write_bytes(content)
    return at


@contextlib.contextmanager
def mirror(files, cut=0):
    """A server of these files that ends so many bytes early; its URL."""
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = files.get(self.path.strip("/"))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write((body or b"")[:-cut or None])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def run(cache, *mirrors, data=None, root=None, stderr=None, options=()):
    """What it printed and what it said. All but which files there are, who has them and where the checkout is, is as a
    user runs it."""
    loader = importlib.machinery.SourceFileLoader("mnist_data", str(SCRIPT))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader("mnist_data", loader))
    loader.exec_module(script)
    script.SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    script.MIRRORS = mirrors
    script.__file__ = str((root or folder()) / "checkout/scripts/mnist-data")
    environment = {k: v for k, v in os.environ.items() if k != "DATA" and "proxy" not in k.lower()}
    if data:
        environment["DATA"] = str(data)
    out, said = io.StringIO(), stderr or io.StringIO()
    with mock.patch.dict(os.environ, environment, clear=True), mock.patch.object(sys, "argv", [str(SCRIPT), *options, str(cache)]), \
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            script.main()
        except SystemExit as end:
            said.write(str(end.code))
    return out.getvalue().strip(), "" if stderr else said.getvalue()


@case(platform=False)
def it_is_looked_for_before_it_is_downloaded():
    root, cache = folder(), folder()
    given, beside = put(folder() / "mnist"), put(root / "shared/data/mnist")
    assert run(cache, data=given)[0] == str(given) and run(cache, data=given.parent)[0] == str(given)
    out, said = run(cache, data=cache, root=root)
    assert out == "" and f"DATA={cache} does not hold images.gz" in said, (out, said)
    assert run(cache, root=root)[0] == str(beside)
    with mirror(FILES) as good:
        out, said = run(cache, good, options=["--at-hand"])
    assert out == "" and "not at hand" in said and list(cache.iterdir()) == [], (out, said, "it downloads nothing")
    out, said = run("--at-hand")  # and no folder
    assert out == "" and said.startswith("usage: mnist-data [-h] [--at-hand] DOWNLOAD_FOLDER"), said
    put(cache)
    assert run(cache)[0] == run(cache, options=["--at-hand"])[0] == str(cache), "what was downloaded before"


@case(platform=False)
def a_download_is_checked():
    wrong = {**FILES, "images.gz": b"other images"}
    with mirror(wrong) as bad, mirror({}) as empty, mirror(FILES, cut=1) as broken, mirror(FILES) as good:
        cache = folder() / "mnist"
        out, said = run(cache, bad, empty, broken)
        digest = hashlib.sha256(wrong["images.gz"]).hexdigest()
        for part in (f"{bad}images.gz: SHA-256 is {digest}", f"{empty}images.gz: HTTP Error 404", f"{broken}images.gz: ",
                     "DATA=folder"):
            assert part in said, (part, said)
        assert out == "" and list(cache.iterdir()) == [], "what is wrong is not kept"
        out, said = run(cache, bad, good)
        assert out == str(cache) and {f.name: f.read_bytes() for f in cache.iterdir()} == FILES, said
        assert run(cache)[0] == str(cache), "it is downloaded once"


@case(platform=False)
def a_terminal_sees_a_bar():
    ours, theirs = pty.openpty()
    with mirror(FILES) as good, os.fdopen(theirs, "w") as terminal:
        run(folder() / "mnist", good, stderr=terminal)
    shown = harness.shown_on(ours)
    assert "images.gz ██" in shown and "░" in shown and "100 %" in shown and shown.endswith("\r\033[K"), shown


if __name__ == "__main__":
    harness.main(globals())
