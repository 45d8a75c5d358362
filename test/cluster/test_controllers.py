"""Two controllers, the builder, what Helm says to do next, and the command line's way to the platform, as the chart
installs it."""
import base64
import contextlib
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess

import cluster
import release
from cluster import FOLDER, case, harness, helm, kubectl, until

KUBEML = str(harness.BIN / "kubeml")
MNIST = {"x-train": "train-images-idx3-ubyte.gz", "y-train": "train-labels-idx1-ubyte.gz",
         "x-test": "t10k-images-idx3-ubyte.gz", "y-test": "t10k-labels-idx1-ubyte.gz"}


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
    with release.installed(**{"rbac.userRole": True, "pool.functions": 2, "controller.replicas": 1}) as p:
        # The administrator's certificate, and a user's token that may do no more than this.
        kubeml("--namespace", p.ns, "dataset", "list")
        at = ("--kubeconfig", user(p.ns), "--context", "anna")
        kubeml(*at, "dataset", "create", "--name", "tiny", *files())
        kubeml(*at, "function", "create", "--name", "lenet", "--code", harness.LENET)
        train = ("train", "-f", "lenet", "-d", "tiny", "-b", "32", "--lr", "0.01", "--parallelism", "2", "--static")
        job = kubeml(*at, *train, "-e", "3").strip()
        follower = subprocess.Popen([*cluster.INSIDE, "env", "-u", "KUBEML_URL", "-u", "KUBEML_TOKEN", KUBEML,
                                     *map(str, at), "logs", job, "-f"], stdout=subprocess.PIPE, text=True)
        kubeml(*at, "task", "wait", job)
        assert "epoch" in follower.communicate(timeout=60)[0]
        assert kubeml(*at, "history", "get", job)
        model = pathlib.Path(FOLDER) / "model.safetensors"
        kubeml(*at, "model", "export", job, "-o", model)
        assert p.task(job)["state"] == "succeeded"
        assert "Completed" in kubeml(*at, "explain", job)
        # The last line comes with the end of the pod.
        until(lambda: "finished" in kubeml(*at, "function", "logs", "lenet"), 30, message="its log has no end")
        images = pathlib.Path(FOLDER) / "two.json"
        images.write_text(json.dumps([[[[0] * 28] * 28]] * 2))
        assert len(kubeml(*at, "infer", "-n", job, "--datafile", images).split()) == 2
        kubeml(*at, "function", "update", "--name", "lenet", "--code", harness.LENET)
        watched = kubeml(*at, *train, "-e", "2", "--init", model, "--watch")
        assert [line.split()[0] for line in watched.splitlines()] == ["epoch", "1", "2"], watched

        long = kubeml(*at, *train, "-e", "50000").strip()
        until(lambda: len(json.loads(kubeml(*at, "top", "-o", "json"))) == 2, 60, message="top does not show two functions")
        kubeml(*at, "task", "suspend", long)
        said = kubeml(*at, "task", "wait", long, status=1)
        assert "suspended" in said, said
        until(lambda: any(t["spec"].get("suspend") for t in cluster.listed("trainjobs", p.ns)
                          if t.get("status", {}).get("job") == long), 30, message="its TrainJob does not follow")
        before = p.task(long)["epoch"]
        kubeml(*at, "task", "resume", long)
        until(lambda: p.task(long)["epoch"] > before, 60, message="resumed it does not go on")
        kubeml(*at, "task", "stop", long)
        assert "cancelled" in kubeml(*at, "task", "wait", long, "--watch", status=1)
        said = kubeml(*at, "--namespace", "default", "dataset", "list", status=1)
        assert "forbidden" in said or "may not" in said or "Secret" in said, said


@case(limit=240, platform=False)
def what_helm_prints_is_carried_out():
    """NOTES.txt, command by command, in the folder of MNIST's files, which are small ones here. The kubeconfig is Helm's."""
    folder = pathlib.Path(FOLDER)
    for part, data in harness.tiny_mnist().items():
        (folder / MNIST[part]).write_bytes(gzip.compress(data))
    with release.shared() as p:
        said = helm("get", "notes", p.name, "-n", p.ns).stdout
        commands = re.findall(r"^  ((?:.*\\\n)*.*)", said, flags=re.M)
        assert [" ".join(c.split()[:1] + c.split()[3:5]) for c in commands] == [
            "kubectl rollout status", "kubeml dataset list", "kubeml dataset create", "kubeml function create",
            "kubeml train -f"], commands
        done = cluster.run("env", "-u", "KUBEML_URL", "-u", "KUBEML_TOKEN", f"PATH={harness.BIN}:{os.environ['PATH']}",
                           "bash", "-euxc", "\n".join([f"cd {folder}", *commands]), seconds=180)
        assert re.findall("^ *([0-9]+) ", done.stdout, flags=re.M) == ["1", "2", "3", "4", "5"], done.stdout
        job, = p.get("/tasks?state=all")
        assert job["state"] == "succeeded" and job["request"]["dataset"] == "mnist", job


@case(limit=420, platform=False)
def each_replica_answers_and_a_stopped_leader_is_replaced():
    release.needs_processes()
    with release.shared() as p:
        until(lambda: len(p.controllers()) == 2 and all(map(release.ready, p.controllers())), 90,
              message="there are no two controllers that are ready")
        first = until(p.leader, 30)
        second, = [c for c in p.controllers() if c["metadata"]["name"] != first["metadata"]["name"]]

        def ask(pod, path, *options):
            return cluster.run("curl", "-sS", "-m", "20", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {p.token}",
                               *options, f"http://{pod['status']['podIP']}:10100{path}", check=False).stdout.rsplit("\n", 1)
        for part, data in harness.tiny_mnist().items():
            (pathlib.Path(FOLDER) / part).write_bytes(data)
        fields = [x for part in harness.tiny_mnist() for x in ("-F", f"{part}=@{FOLDER}/{part}")]
        assert ask(second, "/dataset/tiny", *fields)[1] == "200"
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
    with release.shared() as p, contextlib.ExitStack() as stack:
        wrong = p.post("/function/refused-here", 400, files={"code": ("wrong.c", '#include "kubeml.h"\n\nint f(void) { return x; }\n')})
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
        stack.callback(kubectl, "delete", "pod", "passer-by", "-n", p.ns, "--wait=false", check=False)
        cluster.apply([cluster.pod("passer-by", ["sleep", "1000"])], p.ns)
        cluster.wait_ready("pod/passer-by", p.ns)
        api = until(p.controllers, 30)[0]["status"]["podIP"]
        # This one is a control: it reaches what the builder does not.
        assert opens("passer-by", api, 10100) and opens("passer-by", release.MONGO_HOST, release.MONGO_PORT)
        p.warm(4, 1)
        refused = [(name, api, 10100), (name, release.MONGO_HOST, release.MONGO_PORT), ("passer-by", address, 10300),
                   (p.pods(role="function")[0]["name"], address, 10300)]
        assert not any(opened := cluster.at_once(opens, refused)), list(zip(refused, opened))


harness.main(globals())
