"""kubeml --context: the platform of a cluster through the proxy of its API server."""
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading

import harness
from fake_kube import TOKEN as API_SERVERS_TOKEN, fake_kube
from harness import LENET, Platform, case, until

TOKEN = "the-platform's"


@contextlib.contextmanager
def platform(tls=False):
    """A platform that asks for its token, behind an API server that asks for its own."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="c", dir=os.environ.get("TEST_TMP")))
    (folder / "token").write_text(TOKEN)
    with fake_kube(folder, tls) as kube, Platform("--token-file", str(folder / "token"), home=folder) as p:
        kube.backend, kube.secret = p.url, TOKEN
        yield kube, folder


def kubeml(kube, *arguments, status=0, env=None, **options):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBEML_")}
    environment.update({"KUBECONFIG": str(kube.config), **(env or {})})
    done = subprocess.run([str(harness.BIN / "kubeml"), *map(str, arguments)], env=environment, capture_output=True, text=True,
                          timeout=120 * harness.STRETCH, **options)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def files(folder):
    out = []
    names = {"x-train": "traindata", "y-train": "trainlabels", "x-test": "testdata", "y-test": "testlabels"}
    for part, data in harness.tiny_mnist().items():
        (folder / part).write_bytes(data)
        out += [f"--{names[part]}", folder / part]
    return out


def trains(kube, folder):
    at = ("--context", "test")
    kubeml(kube, *at, "dataset", "create", "--name", "tiny", *files(folder))
    assert "tiny" in kubeml(kube, *at, "dataset", "list")
    kubeml(kube, *at, "function", "create", "--name", "lenet", "--code", LENET)
    job = kubeml(kube, *at, "train", "-f", "lenet", "-d", "tiny", "-e", "2", "-b", "32", "--lr", "0.01",
                 "--parallelism", "2", "--static").strip()
    # The log is followed while it is written, and the job to its end.
    followed = []
    thread = threading.Thread(target=lambda: followed.append(kubeml(kube, *at, "logs", job, "-f")))
    thread.start()
    kubeml(kube, *at, "task", "wait", job)
    thread.join(60 * harness.STRETCH)
    assert followed and job in followed[0] or "epoch" in followed[0], followed
    assert kubeml(kube, *at, "history", "get", job)
    kubeml(kube, *at, "model", "export", job, "-o", folder / "model.safetensors")
    assert (folder / "model.safetensors").stat().st_size > 10000


@case(limit=120, platform=False)
def commands_pass_through_with_a_token():
    with platform() as (kube, folder):
        trains(kube, folder)


@case(limit=120, platform=False)
def commands_pass_through_with_a_certificate():
    with platform(tls=True) as (kube, folder):
        trains(kube, folder)


@case(limit=90, platform=False)
def a_job_whose_answer_the_api_server_lost_is_not_asked_for_again():
    with platform() as (kube, folder):
        at = ("--context", "test")
        kubeml(kube, *at, "dataset", "create", "--name", "tiny", *files(folder))
        kubeml(kube, *at, "function", "create", "--name", "lenet", "--code", LENET)
        train = (*at, "train", "-f", "lenet", "-d", "tiny", "-e", "1", "-b", "32", "--parallelism", "1", "--static")
        # As the proxy says it of a pod that dies with the request in its hands.
        kube.lost = [(True, "error trying to reach service: EOF")]
        said = kubeml(kube, *train, status=1)
        assert "look whether it was done" in said and "EOF" in said, said
        assert not kube.lost and len(json.loads(kubeml(kube, *at, "task", "list", "--all", "-o", "json"))) == 1
        # And where no pod was reached, which may pass.
        kube.lost = [(False, 'no endpoints available for service "kubeml"'),
                     (False, "error trying to reach service: dial tcp 10.0.0.1:10100: connect: connection refused")]
        kubeml(kube, *train)
        assert not kube.lost and len(json.loads(kubeml(kube, *at, "task", "list", "--all", "-o", "json"))) == 2


PROGRAM = """#!/bin/sh
echo run >>"$0.runs"
echo '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
       "status": {"token": "%s", "expirationTimestamp": "%s"}}'
"""


def runs_of(program, kube, *arguments):
    """How often that command, of several requests, had the program sign in."""
    runs = program.with_suffix(".runs")
    runs.unlink(missing_ok=True)
    kubeml(kube, "--context", "test", *arguments)
    return runs.read_text().split().count("run")


@case(limit=120, platform=False)
def commands_pass_through_for_who_signs_in_by_a_program():
    with platform() as (kube, folder):
        program = folder / "plugin"
        kube.config.write_text(kube.config.read_text().replace(
            f"token: {API_SERVERS_TOKEN}", "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin}"))
        assert "./plugin" in kubeml(kube, "--context", "test", "dataset", "list", status=1)
        program.write_text(PROGRAM % (API_SERVERS_TOKEN, "2099-01-01T00:00:00Z"))
        program.chmod(0o755)
        trains(kube, folder)
        assert runs_of(program, kube, "status") == 1
        # What has expired is not sent again.
        program.write_text(PROGRAM % (API_SERVERS_TOKEN, "2001-01-01T00:00:00Z"))
        assert runs_of(program, kube, "status") > 1


@case(limit=90, platform=False)
def what_is_missing_is_named():
    with platform() as (kube, folder):
        at = ("--context", "test")
        # The context's namespace, unless another is named; the other context's user is refused.
        assert "elsewhere" not in kubeml(kube, *at, "dataset", "list")
        said = kubeml(kube, "--namespace", "none", *at, "dataset", "list", status=1)
        assert "no Service of KubeML in namespace none" in said and "--namespace" in said, said
        assert "API server" in kubeml(kube, "--namespace", "ml", "dataset", "list", status=1)
        assert 'no context "x"' in kubeml(kube, "--context=x", "dataset", "list", status=1)
        # A cluster that was asked for wins over KUBEML_URL, and says so.
        environment = {"KUBEML_URL": "http://127.0.0.1:1"}
        kubeml(kube, *at, "dataset", "list", env=environment)
        assert "KUBEML_URL is left aside" in kubeml(kube, *at, "task", "get", "none", status=1, env=environment)
        # The token: KUBEML_TOKEN before the Secret's; a wrong one; one that may not be read.
        assert "token is wrong" in kubeml(kube, *at, "dataset", "list", status=1, env={"KUBEML_TOKEN": "x"})
        kube.forbidden = ("/secrets/",)
        said = kubeml(kube, *at, "dataset", "list", status=1)
        assert "Secret kubeml-own" in said and "KUBEML_TOKEN" in said, said
        kubeml(kube, *at, "dataset", "list", env={"KUBEML_TOKEN": TOKEN})
        # Who may not list Services gets the usual name.
        kube.forbidden = ("/secrets/", "/services")
        kubeml(kube, *at, "dataset", "list", env={"KUBEML_TOKEN": TOKEN})
        kube.forbidden, kube.services = (), ["kubeml", "second"]
        assert "kubeml, second" in kubeml(kube, *at, "dataset", "list", status=1)
        kubeml(kube, *at, "--service", "kubeml", "dataset", "list")
        assert "this machine" in kubeml(kube, *at, "up", status=2)
        assert "wants a value" in kubeml(kube, "--context", status=2)


harness.main(globals())
