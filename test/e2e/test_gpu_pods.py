"""Functions of pods go by the memory of the GPU that each pod was given: a stand-in for Kubernetes starts a process for each pod
and hands out the two GPUs of the tests' NVML, which functions then say they have; they compute on the CPU."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading

import harness
from fake_kube import FakeKube
from harness import BIN, BUILD, Platform, case, skip, until

NVML = BUILD / "testlib/fake-nvml.so"
GPUS = ("GPU-0", "GPU-1")


class Cluster(FakeKube):
    """One node whose device plugin gives a pod the GPU on which the fewest are, or the next of `forced`."""

    def __init__(self, folder, tells=True, forced=(), asks=False):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        super().__init__(folder, port=port)
        templates = json.loads(self.pods.read_text()) | {"slots": 8}
        if asks:
            templates["function"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        self.pods.write_text(json.dumps(templates))
        self.folder, self.port, self.tells, self.places = folder, port, tells, True
        self.forced, self.gpu_of, self.processes, self.quota = list(forced), {}, {}, 100
        self.network = f"127.{1 + (os.getpid() >> 8) % 250}.{os.getpid() % 256}"

    def answer(self, method, path, body):
        bare = path.partition("?")[0]
        if bare == "/api/v1/namespaces/ml/pods" and method == "GET" and "watch=" not in path:
            with self.lock:
                return 200, {"kind": "List", "metadata": {"resourceVersion": str(self.version)},
                             "items": [pod for name, pod in self.made.items() if name not in self.deleted]}
        if bare.startswith("/api/v1/namespaces/ml/pods/") and method == "PATCH":
            with self.lock:
                return self.patch_pod(bare.rpartition("/")[2], body)
        return super().answer(method, path, body)

    def patch_pod(self, name, patch):
        pod = self.made.get(name)
        if not pod or name in self.deleted:
            return self.status(404, "NotFound")
        labels = pod["metadata"]["labels"]
        for one in patch:
            key = one["path"].rpartition("/")[2].replace("~1", "/")
            if one["op"] == "test" and one["value"] is not None and labels.get(key) != one["value"]:
                return self.status(422, "Invalid")
            if one["op"] != "test" and "/labels/" in one["path"]:
                labels[key] = one["value"]
        return 200, self.happened("MODIFIED", pod)

    def on(self, gpu):
        with self.lock:
            return [name for name, its in self.gpu_of.items() if its == gpu and self.processes[name].poll() is None]

    def living(self):
        with self.lock:
            return sum(process.poll() is None for process in self.processes.values())

    def make_pod(self, pod):
        name, role = pod["metadata"]["name"], pod["metadata"]["labels"]["kubeml.dev/role"]
        with self.lock:
            if self.living() >= self.quota:
                return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "exceeded quota: few"}
            address = f"{self.network}.{len(self.made) % 250 + 1}"
            env = {**os.environ, "KUBEML_POOL_TOKEN_FILE": str(self.folder / "home/run/pool-token")}
            command = [str(BIN / f"kubeml-{role}"), "--listen", f"tcp:{address}:{self.port}"]
            if role == "ps":
                command += ["--advertise", f"tcp:{address}:{self.port}", "--run-dir", str(self.folder / name)]
                (self.folder / name).mkdir()
            else:
                gpu = self.forced.pop(0) if self.forced else min(GPUS, key=lambda g: len(self.on(g)))
                self.gpu_of[name] = gpu
                env |= {"KUBEML_NVML": str(NVML), "NVIDIA_VISIBLE_DEVICES": gpu, **({"KUBEML_TELL_GPU": "1"} if self.tells else {})}
            with open(self.folder / f"{name}.log", "wb") as log:
                self.processes[name] = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            pod["metadata"]["uid"] = f"uid-of-{name}"
            pod["status"] = {"phase": "Running", "podIP": address}
            pod["spec"]["nodeName"] = "node"
            self.made[name] = pod
            threading.Thread(target=self.watch_end, args=(name,), daemon=True).start()
            return 201, self.happened("ADDED", pod)

    def watch_end(self, name):
        status = self.processes[name].wait()
        with self.lock:
            if name not in self.deleted:
                code = status if status >= 0 else 128 - status
                self.made[name]["status"] |= {"phase": "Failed" if code else "Succeeded", "containerStatuses": [
                    {"name": "program", "state": {"terminated": {"exitCode": code}}}]}
                self.happened("MODIFIED", self.made[name])

    def delete_pod(self, name, query):
        with self.lock:
            if name not in self.made or name in self.deleted:
                return self.status(404, "NotFound")
            self.deleted[name] = query
        threading.Thread(target=self.end, args=(name, 0 if "gracePeriodSeconds=0" in query else 2), daemon=True).start()
        return 200, self.made[name]

    def end(self, name, grace):
        process = self.processes[name]
        process.send_signal(signal.SIGTERM if grace else signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        process.kill()
        process.wait()
        with self.lock:
            self.happened("DELETED", self.made[name])

    def close(self):
        with self.lock:
            self.quota = 0  # a killed controller's last request may be carried out only now
        for process in self.processes.values():
            process.kill()
            process.wait()
        super().close()


@contextlib.contextmanager
def platform(*options, pool=0, **others):
    if not NVML.exists():
        skip("the tests' NVML is not built: make tests")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="g", dir=os.environ.get("TEST_TMP")))
    kube = Cluster(folder, **others)
    p = Platform("--cluster", "kubernetes", "--pods", str(kube.pods), "--context", "test", "--pool-ps", "1",
                 "--pool-functions", str(pool), *options, home=folder,
                 env={"KUBECONFIG": str(kube.config)})
    p.kube = kube
    try:
        p.start()
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        yield p
    finally:
        p.kill()
        kube.close()
        for segment in p.segments():  # a pod's go with its volume
            os.unlink(f"/dev/shm/{segment}")


def train(p, memory, functions=1, epochs=50000, **options):
    gpu = {"gpu": {"memory": memory}} if memory else {}
    return p.train(epochs=epochs, default_parallelism=functions, **gpu, **options)


def placed(p, job):
    """The GPUs of its functions, when it trains: as the task says, and the cluster."""
    until(lambda: p.task(job)["epoch"] >= 1, 60, message=lambda: f"{job} does not train: {p.get(f'/tasks/{job}/explain')}")
    told = p.task(job)["gpus"]
    with p.kube.lock:
        labels = {name: pod["metadata"]["labels"] for name, pod in p.kube.made.items() if name not in p.kube.deleted}
        real = {int(its["kubeml.dev/function"]): (p.kube.gpu_of[name], its.get("kubeml.dev/gpu"))
                for name, its in labels.items() if its.get("kubeml.dev/job") == job and name in p.kube.gpu_of}
    for function, gpu in enumerate(told):
        assert real[function] == (gpu, gpu), (told, real)
    return told


def waits(p, job, *words, reason="NoGpuMemory"):
    why = until(lambda: (w := p.get(f"/tasks/{job}/explain"))["reason"] == reason and w, 30,
                message=lambda: f"it does not wait: {p.get(f'/tasks/{job}/explain')}")
    text = json.dumps(why)
    assert all(word in text for word in words), (words, why)
    assert p.task(job)["state"] == "queued", p.task(job)


@case(limit=180, platform=False)
def jobs_whose_caps_exceed_a_gpu_are_on_two_and_a_third_waits():
    with platform() as p:
        first = train(p, "6Gi")
        there = placed(p, first)
        second = train(p, "6Gi")
        assert sorted(there + placed(p, second)) == list(GPUS)
        assert "function 0 is on GPU " + there[0] in p.get(f"/tasks/{first}/explain")["evidence"]
        third = train(p, "5Gi", epochs=1)
        waits(p, third, "needs 5.0 GiB", "2.0 of 8.0 GiB on GPU", "2.0 of 8.0 GiB are free on GPU GPU-0, with 1 functions",
              "free on GPU GPU-1", first)
        small = train(p, "1Gi", epochs=1)  # nobody overtakes
        assert p.task(small)["state"] == "queued"
        p.delete(f"/tasks/{first}")
        p.succeed(third, 60)
        p.succeed(small, 60)


@case(limit=180, platform=False)
def pods_are_started_until_one_comes_where_there_is_room():
    """Three come on the full GPU, and stay there; then one comes on the other."""
    with platform("--gpu-policy", "pack", forced=["GPU-0"] * 4) as p:
        assert placed(p, train(p, "6Gi")) == ["GPU-0"]
        assert placed(p, train(p, "6Gi")) == ["GPU-1"]
        assert len(p.kube.on("GPU-0")) == 4, p.kube.on("GPU-0")
        # One for whom there is no room anywhere brings no more than a few pods.
        large = train(p, "9Gi")
        waits(p, large, "needs 9.0 GiB", "the largest GPU has 8.0 GiB")
        until(lambda: len(p.kube.made) >= 10, 30)
        living = p.kube.living()
        assert living <= 12, living


@case(limit=180, platform=False)
def jobs_that_begin_before_a_gpu_is_known_share_none():
    """Both pods come on one GPU, where one has room."""
    with platform(forced=["GPU-0", "GPU-0"]) as p:
        jobs = [train(p, "6Gi"), train(p, "6Gi")]
        assert sorted(placed(p, jobs[0]) + placed(p, jobs[1])) == list(GPUS)


@case(limit=180, platform=False)
def warm_pods_are_taken_by_policy():
    """Which of two empty GPUs is the first to fill is nobody's choice: the one whose pod greets first."""
    for policy, first, gpus in (("spread", "GPU-0", 2), ("pack", "GPU-0", 1), ("pack", "GPU-1", 1)):
        with platform("--gpu-policy", policy, pool=6, forced=[first]) as p:
            p.warm(6, 1)
            there = placed(p, train(p, "1Gi", functions=2))
            assert len(there) == 2 and len(set(there)) == gpus, (policy, there)


@case(limit=180, platform=False)
def what_is_booked_outlives_the_controller():
    with platform() as p:
        first, second = train(p, "6Gi"), None
        there = placed(p, first)
        second = train(p, None, functions=2, epochs=50000)  # an eighth each
        placed(p, second)
        p.kill()
        p.start()
        until(lambda: p.task(first)["gpus"] == there, 30, message="it does not know where the function is")
        epoch = p.task(first)["epoch"]
        until(lambda: p.task(first)["epoch"] > epoch, 30)
        waits(p, train(p, "7500Mi"), "NoGpuMemory", f"2.0 of 8.0 GiB are free on GPU {there[0]}" if there[0] not in
              p.task(second)["gpus"] else f"free on GPU {there[0]}")


@case(limit=180, platform=False)
def a_spent_quota_is_not_held_by_pods_that_came_in_vain():
    """A pod on the full GPU is let go, so that another one can be tried."""
    with platform(pool=2, forced=["GPU-0"] * 3) as p:
        assert placed(p, train(p, "6Gi")) == ["GPU-0"]
        until(lambda: len(p.kube.on("GPU-0")) >= 3, 20)
        with p.kube.lock:
            p.kube.quota = p.kube.living() + 1
            p.kube.forced = ["GPU-0"]
        assert placed(p, train(p, "6Gi")) == ["GPU-1"]


@case(limit=120, platform=False)
def no_more_gpus_are_asked_for_than_functions_may_run():
    """A spare pod would ask for one more than there are, which an autoscaler answers with a node."""
    for asks, spare in ((True, 0), (False, 1)):
        with platform(pool=2, tells=False, asks=asks) as p:
            job = train(p, None, functions=8)
            placed(p, job)
            until(lambda: p.get("/ready")["warm_functions"] == spare and p.kube.living() == 8 + spare + 2, 30,
                  message=lambda: f"{p.kube.living()} pods")
            p.delete(f"/tasks/{job}")
            p.wait(job)
            p.warm(2, 1)  # as many as could run


@case(limit=120, platform=False)
def where_pods_say_nothing_nobody_is_placed():
    with platform(tells=False, forced=["GPU-0", "GPU-0"]) as p:
        for job in (train(p, "6Gi"), train(p, "6Gi")):
            assert placed(p, job) == []
        assert len(p.kube.on("GPU-0")) == 2


harness.main(globals())
