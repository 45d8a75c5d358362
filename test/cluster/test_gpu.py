"""Four functions share one GPU, which the suite's device plugin pretends to have; a fifth waits and says what for. The tests'
NVML is in their pods, and says that a GPU has 8 GiB."""
import contextlib
import os
import pathlib
import subprocess

import cluster
import release
from cluster import HERE, case, get, harness, kubectl, skip, until

RESOURCE = "nvidia.com/gpu"
FUNCTION = "kubeml-function-gpu"  # the CPU's image: the device is pretended


def allocatable(node):
    return int(node["status"]["allocatable"].get(RESOURCE, 0))


def in_use():
    """Pods that have or want one; of the release before they may still be ending."""
    return [pod["metadata"]["name"] for pod in cluster.listed("pods") if RESOURCE in str(pod["spec"]["containers"])]


def with_gpus(nodes=1):
    """The settings of a release whose functions want one, on one node that has four shares of one GPU, or on both."""
    if not cluster.OURS:
        skip("somebody's GPUs are not handed out")
    all_nodes = get("nodes")["items"]
    if any(allocatable(node) != 4 for node in all_nodes[:nodes]):
        skip("run.sh's KUBEML_TC_GPUS and KUBEML_TC_GPU_REPLICAS were changed")
    release.load_images()
    if not any(FUNCTION in n for i in all_nodes[0]["status"]["images"] for n in i.get("names") or []):
        for node in all_nodes:
            name_image(node["metadata"]["name"][4:])
    until(lambda: not in_use(), 60, message=lambda: f"GPUs are in use: {in_use()}")
    settings = {"gpu.enabled": "true", "function.image": FUNCTION, "pool.functions": 0, "controller.replicas": nodes}
    return settings | ({r"function.nodeSelector.kubernetes\.io/hostname": "node0"} if nodes == 1 else {})


def name_image(node):
    """The functions' image by another name too, on that node."""
    ctr = [str(HERE / "in.sh"), "-n", node, "ctr", "-n", "k8s.io", "images"]
    for name in subprocess.run([*ctr, "ls", "-q", "name~=kubeml-function-cpu"], check=True, text=True,
                               capture_output=True).stdout.split():
        subprocess.run([*ctr, "tag", "--force", name, name.replace("kubeml-function-cpu", FUNCTION)], check=True,
                       capture_output=True)


def device_of(pid):
    for line in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if line.startswith(b"NVIDIA_VISIBLE_DEVICES="):
            return line.split(b"=")[1].decode()
    return None


def explain(p, job):
    return subprocess.run([str(harness.BIN / "kubeml"), "explain", job], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **p.environment()})


def explained(p, job, *words):
    done = explain(p, job)
    assert all(word in done.stdout for word in words), (words, done.stdout, done.stderr)


@case(limit=300, takes="gpus", platform=False)
def four_share_one_and_the_fifth_waits():
    with release.installed(**with_gpus(), **{"controller.slots": 8}) as p:
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        four = p.train(epochs=50000, default_parallelism=4)
        until(lambda: p.task(four)["epoch"] >= 1, 90, message="four do not train on one GPU")
        devices = [device_of(pod["pid"]) for pod in p.pods(job=four, role="function")]
        assert len(devices) == 4 and len(set(devices)) == 1 and devices[0].startswith("GPU-node0-0"), devices

        fifth = p.train(epochs=1, default_parallelism=1)
        until(lambda: RESOURCE in str(p.get(f"/tasks/{fifth}/explain")), 30, every=0.1,
              message=lambda: "it does not say what the fifth waits for: " + str(p.get(f"/tasks/{fifth}/explain")))
        explained(p, fifth, RESOURCE)
        assert p.task(fifth)["state"] != "succeeded"
        p.delete(f"/tasks/{four}")
        p.succeed(fifth, 90)


@case(limit=300, takes="gpus node1", platform=False)
def slots_are_counted_on_the_nodes():
    settings = with_gpus()
    kubectl("cordon", "node1")
    with contextlib.ExitStack() as stack:
        stack.callback(kubectl, "uncordon", "node1")
        p = stack.enter_context(release.installed(**settings, **{"controller.slots": 0, "gpu.countNodes": "true"}))
        slots = p.ask_leader("/ready").json()["slots"]
        assert slots == 4, slots
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        four = p.train(epochs=50000, default_parallelism=4)
        until(lambda: p.task(four)["state"] == "running", 90)
        fifth = p.train(epochs=1, default_parallelism=1)
        until(lambda: p.get(f"/tasks/{fifth}/explain")["reason"] == "NoFreeSlot", 30)
        explained(p, fifth, "NoFreeSlot", "0 of 4", four)
        p.delete(f"/tasks/{four}")
        p.succeed(fifth, 90)
        kubectl("uncordon", "node1")
        until(lambda: p.ask_leader("/ready").json()["slots"] == 8, 60, every=2, message="a node that comes gives no slots")


def gpu_of(p, job):
    """Where its one function is: as the task says, and its pod's label, and its process."""
    until(lambda: p.task(job)["epoch"] >= 1, 90, message=lambda: "it does not train: " + str(p.get(f"/tasks/{job}/explain")))
    (told,), (pod,) = p.task(job)["gpus"], p.pods(job=job, role="function")
    label = get("pod", pod["name"], "-n", p.ns)["metadata"]["labels"].get("kubeml.dev/gpu")
    assert told == label == device_of(pod["pid"]), (told, label, device_of(pod["pid"]))
    return told


@case(limit=300, takes="gpus node1", platform=False)
def functions_go_by_the_memory_of_the_gpus_that_pods_have():
    """Two whose caps together exceed a GPU are on two; a third waits until one of them ends, also with another controller."""
    if not (harness.BUILD / "testlib/fake-nvml.so").exists():
        skip("the tests' NVML is not built: make tests")
    with release.installed(**with_gpus(nodes=2), **{"controller.slots": 8, "gpu.policy": "best-fit"}) as p:
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        first, second = (p.train(epochs=50000, default_parallelism=1, gpu={"memory": "6Gi"}) for _ in range(2))
        gpus = {gpu_of(p, first), gpu_of(p, second)}
        assert gpus == {"GPU-node0-0", "GPU-node1-0"}, gpus
        third = p.train(epochs=1, default_parallelism=1, gpu={"memory": "3Gi"})

        def waits():
            why = p.get(f"/tasks/{third}/explain")
            return why["reason"] == "NoGpuMemory" and "needs 3.0 GiB" in why["message"] and \
                all(f"2.0 of 8.0 GiB are free on GPU {gpu}, with 1 functions" in why["evidence"] for gpu in gpus)
        until(waits, 30, every=0.1, message=lambda: "it does not wait for memory: " + str(p.get(f"/tasks/{third}/explain")))
        explained(p, third, "NoGpuMemory", "GPU-node1-0")
        kubectl("delete", "pod", "-n", p.ns, p.leader()["metadata"]["name"])
        until(waits, 60, every=0.5, message=lambda: "another controller does not know: " + str(p.get(f"/tasks/{third}/explain")))
        assert p.task(third)["state"] == "queued"
        p.delete(f"/tasks/{first}")
        p.succeed(third, 90)
        assert gpu_of(p, second) in gpus


def free(p):
    """The pods of the job before have ended, which takes longer than they are wanted."""
    until(lambda: not release.pods_of(p.ns, "kubeml.dev/role=function,kubeml.dev/job"), 60, message="pods do not end")


@case(limit=300, takes="gpus", platform=False)
def an_elastic_job_grows_as_far_as_there_are_gpus():
    """It has slots for eight functions and GPUs for four: it trains on with four, and says why there is no fifth. On a busy
    machine an epoch may take so much longer than the one before that the policy gives the next fewer functions: so each
    thing is waited for, at a time when there are four."""
    with release.installed(**with_gpus(), **{"controller.slots": 8}) as p:
        p.dataset()
        # Its epochs take long enough to be equally long most of the time. The GPUs are pretended: who wanted one is Degraded.
        job = p.train(p.paced(0.2), epochs=10000, default_parallelism=4, static_parallelism=False, device="cpu")
        until(lambda: p.task(job)["epoch"] >= 1, 90, message="four do not train")

        def four():
            return len(p.pods(job=job, role="function")) == 4 and len(p.pods(role="function")) == 4

        def says_so():
            why = p.get(f"/tasks/{job}/explain")
            return why["reason"] == "Training" and "4 functions; there is no more of them" in why["message"] and \
                RESOURCE in why["message"]
        until(says_so, 30, every=0.1,
              message=lambda: "it does not say why it does not grow: " + str(p.get(f"/tasks/{job}/explain")))
        until(lambda: all(word in explain(p, job).stdout for word in ("4 functions; there is no more of them", RESOURCE)), 30,
              message=lambda: "the CLI does not say why it does not grow: " + str(explain(p, job)))
        until(four, 20, message="pods wait for GPUs that nobody has")
        name = next(t["metadata"]["name"] for t in cluster.listed("trainjobs", p.ns) if t.get("status", {}).get("job") == job)

        def status():
            return get("trainjob", name, "-n", p.ns)["status"]

        def wide():
            return kubectl("get", "trainjob", name, "-n", p.ns, "-o", "wide").stdout

        def as_it_should_be():
            now = status()
            conditions = {c["type"]: c["status"] for c in now["conditions"]}
            return now.get("gpu") == f"4 {RESOURCE}" and "no more of them" in now["message"] and \
                conditions["Degraded"] == "False" and conditions["FunctionsReady"] == "True"
        until(as_it_should_be, 30, every=0.2, message=lambda: "the TrainJob says otherwise: " + str(status()))
        until(lambda: f"4 {RESOURCE}" in wide(), 30, message=lambda: "its columns say otherwise: " + wide())
        before = p.task(job)["epoch"]
        until(lambda: p.task(job)["epoch"] > before + 5, 25, message="it waits for a fifth each epoch")
        p.delete(f"/tasks/{job}")
        until(lambda: "gpu" not in status(), 30, message="an ended job has GPUs")

        # One that asks for six begins with the four that there are GPUs for, one that must have six waits and says what for.
        free(p)
        job = p.train("paced", epochs=10000, default_parallelism=6, static_parallelism=False)
        until(says_so, 60, every=0.1, message=lambda: "it does not begin and say why: " + str(p.get(f"/tasks/{job}/explain")))
        until(four, 30, message=lambda: "not four of its functions have a pod: " + str(p.pods(job=job)))
        p.delete(f"/tasks/{job}")
        free(p)
        job = p.train("paced", epochs=1, default_parallelism=6)
        until(lambda: RESOURCE in str(p.get(f"/tasks/{job}/explain")), 60, message=lambda: "it does not say what it waits for: "
              + str(p.get(f"/tasks/{job}/explain")))
        assert p.task(job)["state"] == "starting", p.task(job)
        p.delete(f"/tasks/{job}")


def reaches(ns, pod, address, port):
    """Nobody listens there: who is let through is refused by the pod itself, whom a policy stops hears nothing."""
    done = kubectl("exec", "-n", ns, pod, "--", "timeout", "3", "bash", "-c", f": </dev/tcp/{address}/{port}", check=False)
    return "refused" in done.stderr


@case(limit=300, takes="gpus", platform=False)
def functions_that_are_ranks_reach_each_other_alone():
    """What NCCL needs between the pods of a job with `merge: nccl`, and no more: the functions compute on CPUs here, and the
    policy does not ask."""
    with release.installed(**with_gpus(), **{"controller.slots": 8}) as p:
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        ranks = p.train(epochs=50000, default_parallelism=2, static_parallelism=True, merge="nccl")
        others = p.train(epochs=50000, default_parallelism=2, static_parallelism=True)
        for job in (ranks, others):
            until(lambda j=job: p.task(j)["epoch"] >= 1, 90)
        a, b = p.pods(job=ranks, role="function")
        c, d = p.pods(job=others, role="function")
        ports = kubectl("exec", "-n", p.ns, a["name"], "--", "cat", "/proc/sys/net/ipv4/ip_local_port_range").stdout.split()
        assert ports == ["50000", "59999"], ports
        for here, there in ((a, b), (b, a)):
            until(lambda h=here, t=there: reaches(p.ns, h["name"], t["address"], 50000), 30,
                  message="the ranks do not reach each other")
            assert reaches(p.ns, here["name"], there["address"], 59999)
        refused = [(p.ns, here["name"], there["address"], port) for here, there, port in (
            (a, b, 10200), (a, b, 49999), (a, b, 60000), (a, c, 50000), (c, a, 50000), (c, d, 50000))]
        assert not any(reached := cluster.at_once(reaches, refused)), list(zip(refused, reached))
        names = [n["metadata"]["name"] for n in cluster.listed("networkpolicies", p.ns, f"kubeml.dev/job={ranks}")]
        assert sum(n.endswith("-ranks") for n in names) == 1, names
        assert not any(n["metadata"]["name"].endswith("-ranks")
                       for n in cluster.listed("networkpolicies", p.ns, f"kubeml.dev/job={others}"))
        p.delete(f"/tasks/{ranks}")
        until(lambda: not cluster.listed("networkpolicies", p.ns, f"kubeml.dev/job={ranks}"), 90,
              message="the policy outlives its job")


harness.main(globals())
