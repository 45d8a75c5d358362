"""Functions compiled by kubeml-builder, where the controller has no compiler."""
import contextlib
import os
import pathlib
import subprocess
import tempfile
import threading

import requests

import harness
from harness import LENET, Platform, case, idx, until

TOKEN = "what-the-builder-wants-to-hear"


@contextlib.contextmanager
def builder(port=0, token=TOKEN):
    """A running one: (process, url)."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen([str(harness.BIN / "kubeml-builder"), "--listen", f"127.0.0.1:{port}", "--ready-fd", str(write_end)],
                               pass_fds=[write_end], env={**os.environ, "KUBEML_BUILDER_TOKEN": token}, stderr=subprocess.PIPE)
    os.close(write_end)
    try:
        with os.fdopen(read_end) as ready:
            url = ready.readline().strip()
        assert url, process.stderr.read()
        yield process, url
    finally:
        process.terminate()
        said = process.communicate(timeout=30 * harness.STRETCH)[1].decode()
        assert process.returncode in (0, -9), said


def platform(url, token=TOKEN, env=None):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="b", dir=os.environ.get("TEST_TMP")))
    (folder / "token").write_text(token)
    return Platform("--builder", url, "--builder-token-file", str(folder / "token"), home=folder,
                    env={"KUBEML_INCLUDE": "/nonexistent", **(env or {})})


def upload(p, code, name="f", status=200):
    return p.post(f"/function/{name}", status, files={"code": ("f.c", code)})


def shape(problem):
    """Without what differs between two runs of a compiler."""
    return {k: v for k, v in problem.items() if k != "compiler_output"}


@case(limit=120, platform=False)
def what_was_compiled_elsewhere_trains():
    with builder() as (process, url), platform(url) as p:
        p.dataset()
        p.function("lenet", LENET)
        # The same sources again are the same version.
        p.call("PUT", "/function/lenet", files={"code": (LENET.name, LENET.read_bytes())})
        assert p.get("/function/lenet")["version"] == 1
        # Nothing is compiled when a job starts, nor for a model that answers: there is nobody left who could.
        process.terminate()
        process.wait(30 * harness.STRETCH)
        job = p.train()
        p.succeed(job)
        assert len(p.post("/infer", json={"model_id": job, "data": [[[[0] * 28] * 28]]})["predictions"]) == 1


@case(limit=60, platform=False)
def a_proxy_of_the_environment_gets_no_sources():
    nobody = "http://127.0.0.1:1"
    env = {"http_proxy": nobody, "all_proxy": nobody, "no_proxy": "", "NO_PROXY": ""}
    with builder() as (_, url), platform(url.replace("127.0.0.1", "0.0.0.0"), env=env) as p:
        p.function("lenet", LENET)


@case(limit=60, platform=False)
def whether_code_takes_its_samples_is_asked_there():
    harness.code_is_asked()
    images, labels = idx(bytes(64 * 9), 64, 3, 3), idx(bytes(i % 10 for i in range(64)), 64)
    with builder() as (process, url), platform(url) as p:
        p.dataset()
        p.dataset("small", {"x-train": images, "y-train": labels, "x-test": images, "y-test": labels})
        p.function("lenet", LENET)
        want = {"function_name": "lenet", "dataset": "small", "epochs": 1, "batch_size": 32, "lr": 0.1}
        assert "kernel 5" in p.post("/train", 422, json=want)["detail"]
        assert p.get("/tasks?state=all") == []
        p.succeed(p.train(epochs=1))
        # One that is away is not waited for: the job tells.
        p.function("five", LENET.read_text().replace("kml_classes(g)", "5"))
        process.terminate()
        process.wait(30 * harness.STRETCH)
        job = p.post("/train", json={**want, "function_name": "five", "dataset": "tiny"})["id"]
        assert p.wait(job)["reason"] == "ShapeMismatch", p.task(job)


@case(limit=120, platform=False)
def errors_come_back_as_on_a_laptop():
    wrong = '#include "kubeml.h"\nint f(void)\n{\n    return undeclared + 1;\n}\n'
    with builder() as (_, url), platform(url) as there, Platform() as here:
        for code in (wrong, "int x;\n", '#include "kubeml.h"\nextern int missing(void);\nint f(void) { return missing(); }\n'):
            far, near = upload(there, code, status=400), upload(here, code, status=400)
            assert shape(far) == shape(near) and near["detail"], (far, near)
            far, near = (p.get("/function/f/explain") for p in (there, here))
            assert far["message"] == near["message"] and far["evidence"][1:] == near["evidence"][1:], (far, near)
        far = upload(there, wrong, status=400)
        assert far["diagnostics"][0]["file"] == "f.c" and far["diagnostics"][0]["line"] == 4, far
        assert "undeclared" in far["compiler_output"]
        warned = LENET.read_text().replace("#include <kubeml.h>", "#include <kubeml.h>\nstatic int spare;")
        far, near = (upload(p, warned, "warned") for p in (there, here))
        assert far["compiler_output"] == near["compiler_output"] and "'spare' defined but not used" in far["compiler_output"], far
        # Too much for it is told as well: a file that includes itself for ever, and too many bytes.
        assert upload(there, '#include "f.c"\n', status=400)["detail"]
        assert upload(there, "/*" + "x" * (1 << 20) + "*/", status=413)
        # What is not to be compiled at all is refused before, and is no fault of the code.
        for code, file in ((wrong, "f.txt"), ("// \udcff\n".encode(errors="surrogateescape"), "f.c")):
            for p in (there, here):
                assert file in p.post("/function/g", 400, files={"code": (file, code)})["detail"]
                p.get("/function/g/explain", 404)


@case(limit=120, platform=False)
def its_secret_is_out_of_reach():
    with builder() as (process, url), platform(url) as p:
        environment = pathlib.Path(f"/proc/{process.pid}/environ").read_bytes()
        assert TOKEN.encode() not in environment
        for path in (f"/proc/{process.pid}/environ", "/proc/self/environ"):
            said = upload(p, f'#include "{path}"\nint x;\n', status=400)
            assert TOKEN not in str(said), said
        for headers in ({}, {"Authorization": "Bearer x"}):
            reply = requests.post(url + "/build", json={"files": [{"name": "f.c", "text": ""}]}, headers=headers)
            assert reply.status_code == 401, reply.text
        reply = requests.post(url + "/build", json={"files": [{"name": "../f.c", "text": ""}]},
                              headers={"Authorization": f"Bearer {TOKEN}"})
        assert reply.status_code == 400 and "f.c" in reply.json()["detail"], reply.text


@case(limit=180, platform=False)
def a_builder_that_is_away_is_waited_for():
    with harness.held_port() as holder:
        port = holder.getsockname()[1]
        with builder(port) as (process, url), platform(url) as p:
            process.kill()
            process.wait()
            p.dataset()
            done = []
            thread = threading.Thread(target=lambda: done.append(p.function("lenet", LENET)))
            thread.start()
            with builder(port):
                thread.join(60 * harness.STRETCH)
            assert done and done[0]["version"] == 1
            # Nobody comes back: it is said, and nothing is left of the upload.
            assert "builder" in upload(p, "int x;\n", "g", status=503)["detail"]
            p.get("/function/g", 404)
            p.get("/function/g/explain", 404)  # no fault of the code
            p.post("/function/zoo", json={"model": "lenet5"})
    with builder() as (_, url), platform(url, "another token of its own") as p:
        assert "token" in upload(p, "int x;\n", status=503)["detail"]


@case(limit=60, platform=False)
def another_server_is_no_builder():
    """As at an address that was mistyped, or is somebody else's now: its 404 is not the answer to the upload."""
    with Platform() as other, platform(other.url) as p:
        detail = upload(p, "int x;\n", status=503)["detail"]
        assert f"{other.url} is no builder" in detail and "there is no such path" in detail, detail
        p.get("/function/f", 404)


@case(limit=30, platform=False)
def it_wants_a_token():
    done = subprocess.run([str(harness.BIN / "kubeml-builder"), "--listen", "127.0.0.1:0"], capture_output=True, text=True,
                          env={k: v for k, v in os.environ.items() if k != "KUBEML_BUILDER_TOKEN"})
    assert done.returncode == 1 and "KUBEML_BUILDER_TOKEN" in done.stderr, done
    assert subprocess.run([str(harness.BIN / "kubeml-builder"), "--nothing"], capture_output=True).returncode == 2


harness.main(globals())
