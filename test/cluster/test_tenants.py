"""Two jobs of two users at once: neither gets to the other's Redis. The network keeps them apart, and where it lets
somebody in, the password does. Who may read Secrets gets in by the job's own."""
import base64
import contextlib
import os
import pathlib
import signal
import socket
import subprocess

import cluster
import release
from cluster import FOLDER, apply, at_once, case, get, harness, kubectl, pod, skip, tools_image, until, wait_ready

SPEC = {"function_name": "lenet", "dataset": "tiny", "epochs": 50000, "batch_size": 32, "lr": 0.01}
OPTIONS = {"default_parallelism": 2, "static_parallelism": True}


def understood(done):
    """What redis-cli was told; None without a connection."""
    text = done.stdout + done.stderr
    lost = done.returncode == 124 or "exit code 124" in text or "Could not connect" in text
    return None if lost else text.strip()


def asks(ns, client, host, *words):
    return understood(kubectl("exec", "-n", ns, client, "--", "timeout", "4", "redis-cli", "-h", host, "-p", "6379",
                              *words, check=False))


def asks_all(ns, client, host, questions):
    """The answers to (user, password, words), each over a connection of its own."""
    script = "; ".join(f"timeout 4 redis-cli -h {host} --no-auth-warning --user '{user}' --pass '{password}' "
                       + " ".join(f"'{word}'" for word in words.split()) + " 2>&1; echo '|'"
                       for user, password, words in questions)
    said = kubectl("exec", "-n", ns, client, "--", "bash", "-c", script).stdout.split("|\n")
    assert len(said) == len(questions) + 1 and not any("Could not connect" in s for s in said), said
    return [s.strip() for s in said[:-1]]


def let_in(job, **whom):
    """Anybody chosen, to that job's kubeml-ps: what a policy that is too wide would do."""
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": f"wide-{job}"},
            "spec": {"podSelector": {"matchLabels": {"kubeml.dev/job": job, "kubeml.dev/role": "ps"}},
                     "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {"matchLabels": whom}}]}]}}


def secret_of(p, job):
    """The job's Secret, decoded, with its name and owner."""
    pod_name = p.pod(job=job, role="ps")["name"]
    found = [s for s in cluster.listed("secrets", p.ns, f"kubeml.dev/job={job}")]
    assert [s["metadata"]["name"] for s in found] == [f"{p.name}-{pod_name}"], found
    data = {key: base64.b64decode(value).decode() for key, value in found[0]["data"].items()}
    assert [o["name"] for o in found[0]["metadata"]["ownerReferences"]] == [pod_name], found
    assert data["job"] == job and data["url"] == f"redis://{data['user']}:{data['password']}@{data['address']}"
    return data


@contextlib.contextmanager
def two_jobs():
    """(release, {user: job}, {job: its Redis's address}): a job of each of two users trains; beside each there is a
    pod try-JOB that is like a function of that job but for our install's label, by which the controller would take it
    for its own."""
    tools_image(FOLDER)
    with release.shared() as p:
        p.dataset()
        p.function()
        jobs = {user: p.post("/train", json={**SPEC, "options": {**OPTIONS, "seed": seed}}, headers=p.as_user(user))["id"]
                for seed, user in enumerate(release.USERS, 1)}
        apply([pod(f"try-{job}", ["sleep", "3600"], {"kubeml.dev/job": job, "kubeml.dev/role": "function",
                                                     "app": f"try-{job}"}) for job in jobs.values()], p.ns)
        try:
            for job in jobs.values():
                until(lambda j=job: p.task(j)["epoch"] >= 1, 90)
                wait_ready(f"pod/try-{job}", p.ns)
            yield p, jobs, {job: p.pod(job=job, role="ps")["address"] for job in jobs.values()}
            for job in jobs.values():
                assert p.task(job)["state"] == "running", p.task(job)
        finally:
            kubectl("delete", "pod", "-n", p.ns, *(f"try-{job}" for job in jobs.values()), "--wait=false", check=False)


@case(limit=400, platform=False)
def two_users_jobs_cannot_reach_each_others_redis():
    with two_jobs() as (p, jobs, address):
        for user, job in jobs.items():
            assert p.task(job)["user"] == user, p.task(job)
            assert get("trainjob", f"job-{job}", "-n", p.ns)["status"]["user"] == user
        p.get("/tasks", 401, headers={"Authorization": "Bearer token-of-anna-alon"})
        anna, ben = jobs.values()
        others = [(p.ns, f"try-{mine}", address[other], "ping") for mine, other in ((anna, ben), (ben, anna))]
        assert at_once(asks, others) == [None, None], "the other job's Redis is reached"
        # The control: it is the policy that kept them apart.
        apply([let_in(ben, app=f"try-{anna}")], p.ns)
        try:
            until(lambda: asks(p.ns, f"try-{anna}", address[ben], "ping") is not None, 30,
                  message="without the policy the connection fails too: the case shows nothing")
            assert asks(p.ns, f"try-{ben}", address[anna], "ping") is None
        finally:
            kubectl("delete", "networkpolicy", f"wide-{ben}", "-n", p.ns, check=False)
        until(lambda: asks(p.ns, f"try-{anna}", address[ben], "ping") is None, 30,
              message="the policy is gone and the connection stays")


def opens(ns, client, host, port):
    return kubectl("exec", "-n", ns, client, "--", "timeout", "3", "bash", "-c", f": </dev/tcp/{host}/{port}",
                   check=False).returncode == 0


@case(limit=300, platform=False)
def a_functions_pod_reaches_its_store_and_its_own_kubeml_ps():
    """The pods that users' code runs in, as the job has them: where they get, where not, and who gets to them."""
    with two_jobs() as (p, jobs, address):
        anna, ben = jobs.values()
        mine, other = (p.pods(job=job, role="function") for job in (anna, ben))
        ps = p.pod(job=anna, role="ps")["address"]
        api = until(p.controllers, 30)[0]["status"]["podIP"]
        store, port = (release.MONGO_HOST, release.MONGO_PORT) if cluster.OURS else (None, None)
        service, = [s["metadata"]["name"] for s in cluster.listed("services", p.ns, f"kubeml.dev/job={anna}")]
        allowed = [(ps, 6379), (ps, 10200), (service, 6379)] + ([(store, port)] if store else [])
        refused = [(address[ben], 6379), (address[ben], 10200), (other[0]["address"], 10200), (mine[1]["address"], 10200),
                   (api, 10100), ("kubernetes.default", 443)]
        apply([pod("stranger", ["sleep", "3600"])], p.ns)
        try:
            wait_ready("pod/stranger", p.ns)
            # The control: what nobody forbids reaches the API server and the platform's.
            assert opens(p.ns, "stranger", "kubernetes.default", 443) and opens(p.ns, "stranger", api, 10100)
            for where in allowed:
                assert opens(p.ns, mine[0]["name"], *where), where
            refused = [(p.ns, mine[0]["name"], *where) for where in refused] + [
                (p.ns, "stranger", *where) for where in [(ps, 6379), (ps, 10200), (mine[0]["address"], 10200)]]
            assert not any(opened := at_once(opens, refused)), list(zip(refused, opened))
        finally:
            kubectl("delete", "pod", "-n", p.ns, "stranger", "--wait=false", check=False)


@case(limit=400, platform=False)
def redis_refuses_by_password():
    """The network lets the pod in, as every cluster does whose CNI enforces no policies."""
    with two_jobs() as (p, jobs, address):
        anna, ben = jobs.values()
        client, host = f"try-{anna}", address[ben]
        mine, right = secret_of(p, anna), secret_of(p, ben)
        assert right["address"] == f"{host}:6379" and right["password"] != mine["password"], (right["address"], host)
        apply([let_in(ben, app=client)], p.ns)
        try:
            said = until(lambda: asks(p.ns, client, host, "ping"), 30, message="the policy does not let it in")
            assert "NOAUTH" in said, said
            wrong = (("default", ""), ("default", "x"), ("default", right["password"]), ("function", "x"),
                     ("function", ""), ("function", mine["password"]), ("job", right["password"]), (anna, "x"),
                     ("function", right["password"][:-1]))
            for who, said in zip(wrong, asks_all(p.ns, client, host, [(*who, "ping") for who in wrong])):
                assert "WRONGPASS" in said or "NOAUTH" in said, (who, said)
            # The control: with the right one the same pod gets in, to what a function of the job may do.
            words = ("ping", f"kubeml.status {model_of(ben)}", "keys *", "flushall", "config get requirepass", "acl list",
                     "info", f"kubeml.status {model_of(anna)}", "get other", "set other 1")
            pong, status, *refused = asks_all(p.ns, client, host, [(right["user"], right["password"], w) for w in words])
            assert pong == "PONG" and len(status.splitlines()) > 9, (pong, status)
            for which, said in zip(words[2:], refused):
                assert "NOPERM" in said, (which, said)
        finally:
            kubectl("delete", "networkpolicy", f"wide-{ben}", "-n", p.ns, check=False)


def model_of(job):
    return "kubeml:{%s}:model" % job


@case(limit=300, platform=False)
def a_jobs_redis_is_looked_into_by_its_secret():
    """As docs/guides/kubernetes-jobs.md says it: the Secret, a port-forward, redis-cli. It goes with the job."""
    if not cluster.OURS and subprocess.run(["which", "redis-cli"], capture_output=True, check=False).returncode:
        skip("no redis-cli")
    with release.shared() as p:
        p.dataset()
        p.function()
        job = p.train(epochs=50000)
        until(lambda: p.task(job)["epoch"] >= 1, 90)
        secret = secret_of(p, job)
        # It travels in the frames: in no pod's object, nor in what its processes were started with.
        assert secret["password"] not in str(release.pods_of(p.ns, f"kubeml.dev/job={job}"))
        for pid in [pid for one in p.pods(job=job) for pids in release.pids_of(one["uid"]).values() for pid in pids] \
                if cluster.OURS else []:
            for what in ("environ", "cmdline"):
                assert secret["password"].encode() not in pathlib.Path(f"/proc/{pid}/{what}").read_bytes(), (pid, what)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        forward = subprocess.Popen([*cluster.INSIDE, "kubectl", "-n", p.ns, "port-forward", "pod/" + p.pod(job=job, role="ps")["name"],
                                    f"{port}:6379"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            def look(*words):
                return understood(subprocess.run([*cluster.INSIDE, "timeout", "5", "redis-cli", "-h", "127.0.0.1", "-p", str(port),
                                                  *words], capture_output=True, text=True, check=False))
            until(lambda: "NOAUTH" in (look("ping") or ""), 30, message="the port-forward leads nowhere")
            who = ("--user", secret["user"], "--pass", secret["password"], "--no-auth-warning")
            before = look(*who, "kubeml.status", model_of(job)).splitlines()
            assert len(before) > 9, before
            until(lambda: int(look(*who, "kubeml.status", model_of(job)).splitlines()[0]) > int(before[0]), 30,
                  message="the version does not go on")
        finally:
            os.killpg(forward.pid, signal.SIGKILL)
            forward.wait()
        assert secret["password"] not in p.log_text()
        p.delete(f"/tasks/{job}")
        until(lambda: not cluster.listed("secrets", p.ns, f"kubeml.dev/job={job}"), 90, message="the Secret stays")


harness.main(globals())
