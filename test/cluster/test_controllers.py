"""Two controllers, the builder, and the command line's way to them, as the chart installs them."""
import base64
import contextlib
import json
import os
import pathlib
import signal
import subprocess

import cluster
import release
from cluster import FOLDER, case, harness, kubectl, until

KUBEML = str(harness.BIN / "kubeml")
CLOSED = "cannot connect"


def files():
    out = []
    names = {"x-train": "traindata", "y-train": "trainlabels", "x-test": "testdata", "y-test": "testlabels"}
    for part, data in harness.tiny_mnist().items():
        path = pathlib.Path(FOLDER) / part
        path.write_bytes(data)
        out += [f"--{names[part]}", path]
    return out


def user(ns):
    """A kubeconfig of somebody who may do what the chart's Role for users says, with a token."""
    kubectl("create", "serviceaccount", "anna", "-n", ns)
    kubectl("create", "rolebinding", "anna", "--role=kubeml-user", f"--serviceaccount={ns}:anna", "-n", ns)
    now = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    now["users"] = [{"name": "anna", "user": {"token": kubectl("create", "token", "anna", "-n", ns).stdout.strip()}}]
    now["contexts"] = [{"name": "anna", "context": {"cluster": now["clusters"][0]["name"], "user": "anna", "namespace": ns}}]
    now["current-context"] = "anna"
    path = pathlib.Path(FOLDER) / "anna.kubeconfig"
    path.write_text(json.dumps(now))
    return path


def kubeml(*arguments, status=0, seconds=180):
    done = cluster.run("env", "-u", "KUBEML_URL", "-u", "KUBEML_TOKEN", KUBEML, *arguments, check=False, seconds=seconds)
    assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


@case(limit=420, platform=False)
def the_command_line_goes_through_the_api_server():
    with release.installed(**{"rbac.userRole": True}) as p:
        # The administrator's certificate, and a user's token that may do no more than this.
        kubeml("--namespace", p.ns, "dataset", "list")
        at = ("--kubeconfig", user(p.ns), "--context", "anna")
        kubeml(*at, "dataset", "create", "--name", "tiny", *files())
        kubeml(*at, "function", "create", "--name", "lenet", "--code", harness.LENET)
        job = kubeml(*at, "train", "-f", "lenet", "-d", "tiny", "-e", "3", "-b", "32", "--lr", "0.01",
                     "--parallelism", "2", "--static").strip()
        follower = subprocess.Popen([*cluster.INSIDE, "env", "-u", "KUBEML_URL", "-u", "KUBEML_TOKEN", KUBEML,
                                     *map(str, at), "logs", job, "-f"], stdout=subprocess.PIPE, text=True)
        kubeml(*at, "task", "wait", job)
        assert "epoch" in follower.communicate(timeout=60)[0]
        assert kubeml(*at, "history", "get", job)
        kubeml(*at, "model", "export", job, "-o", pathlib.Path(FOLDER) / "model.safetensors")
        assert p.task(job)["state"] == "succeeded"
        said = kubeml(*at, "--namespace", "default", "dataset", "list", status=1)
        assert "forbidden" in said or "may not" in said or "Secret" in said, said


@case(limit=420, platform=False)
def each_replica_answers_and_a_stopped_leader_is_replaced():
    release.needs_processes()
    with release.installed() as p:
        until(lambda: len(p.controllers()) == 2 and all(map(release.ready, p.controllers())), 90,
              message="there are no two controllers that are ready")
        first = until(p.leader, 30)
        second, = [c for c in p.controllers() if c["metadata"]["name"] != first["metadata"]["name"]]

        def ask(pod, path, *options):
            return cluster.run("curl", "-sS", "-m", "20", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {p.token}",
                               *options, f"http://{pod['status']['podIP']}:10100{path}", check=False).stdout.rsplit("\n", 1)
        p.dataset()
        assert ask(second, "/function/lenet", "-F", f"code=@{harness.LENET}")[1] == "200"
        job = p.train(p.paced(), epochs=60, k=2)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        for pod in (first, second):
            assert ask(pod, f"/tasks/{job}")[1] == "200"
            assert json.loads(ask(pod, "/ready")[0])["leads"] is (pod is first)
        restarts = sum(c["restartCount"] for c in first["status"]["containerStatuses"])
        pid, = release.pids_of(first["metadata"]["uid"])["controller"]
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: p.leader()["metadata"]["name"] == second["metadata"]["name"], 40, message="nobody takes over")
            until(lambda: ask(second, f"/tasks/{job}")[1] == "200", 30, message="the new leader does not answer")
            before = json.loads(ask(second, f"/tasks/{job}")[0])["epoch"]
            until(lambda: (now := json.loads(ask(second, f"/tasks/{job}")[0]))["epoch"] > before or
                  now["state"] == "succeeded", 60, message="the job does not go on under another leader")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        def restarted():
            pod = cluster.get("pod", first["metadata"]["name"], "-n", p.ns)
            return sum(c["restartCount"] for c in pod["status"]["containerStatuses"]) > restarts and release.ready(pod)
        until(restarted, 90, message="the old leader has not ended itself")
        assert p.leader()["metadata"]["name"] == second["metadata"]["name"]
        p.succeed(job, 180)


@case(limit=300, platform=False)
def the_builder_is_reached_by_the_controller_alone_and_reaches_nothing():
    cluster.tools_image(FOLDER)
    with release.installed(**{"pool.functions": 1, "pool.ps": 0}) as p:
        wrong = p.post("/function/wrong", 400, files={"code": ("wrong.c", '#include "kubeml.h"\n\nint f(void) { return x; }\n')})
        assert wrong["diagnostics"][0]["file"] == "wrong.c" and wrong["diagnostics"][0]["line"] == 3, wrong
        builder, = p.part("builder")
        name, address = builder["metadata"]["name"], builder["status"]["podIP"]
        token = base64.b64decode(cluster.get("secret", "kubeml-builder", "-n", p.ns)["data"]["token"]).decode()
        for path in ("/proc/1/environ", "/proc/self/environ", "/proc/1/mem",
                     "/var/run/secrets/kubernetes.io/serviceaccount/token"):
            code = f'__asm__(".incbin \\"{path}\\"");\n#include "{path}"\n'
            assert token not in str(p.post("/function/steals", 400, files={"code": ("s.c", code)}))

        def opens(pod, host, port):
            done = kubectl("exec", "-n", p.ns, pod, "--", "timeout", "3", "bash", "-c", f": </dev/tcp/{host}/{port}", check=False)
            return done.returncode == 0
        kubectl("apply", "-n", p.ns, "-f", "-", stdin=json.dumps(cluster.pod("stranger", ["sleep", "1000"])))
        cluster.wait_ready("pod/stranger", p.ns)
        api = until(p.controllers, 30)[0]["status"]["podIP"]
        # The stranger is a control: it reaches what the builder does not.
        assert opens("stranger", api, 10100) and opens("stranger", release.MONGO_HOST, release.MONGO_PORT)
        assert not opens(name, api, 10100) and not opens(name, release.MONGO_HOST, release.MONGO_PORT)
        assert not opens("stranger", address, 10300)
        function, = [x for x in release.pods_of(p.ns) if x["metadata"]["labels"]["kubeml.dev/role"] == "function"][:1]
        assert not opens(function["metadata"]["name"], address, 10300)


harness.main(globals())
