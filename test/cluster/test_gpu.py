"""Four functions share one GPU, which the suite's device plugin pretends to have; a fifth waits and says what for."""
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


@contextlib.contextmanager
def with_gpus():
    """The settings of a release whose functions want one, while one node alone takes pods and has four shares of one GPU."""
    if not cluster.OURS:
        skip("somebody's GPUs are not handed out")
    nodes = get("nodes")["items"]
    if allocatable(nodes[0]) != 4:
        skip("run.sh's KUBEML_TC_GPUS and KUBEML_TC_GPU_REPLICAS were changed")
    release.load_images()
    with cluster.one_at_a_time("gpu"):
        if not any(FUNCTION in n for i in nodes[0]["status"]["images"] for n in i.get("names") or []):
            for node in nodes:
                name_image(node["metadata"]["name"][4:])
        kubectl("cordon", "node1", check=False)
        try:
            yield {"gpu.enabled": "true", "function.image": FUNCTION, "pool.functions": 0}
        finally:
            kubectl("uncordon", "node1", check=False)


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


def explained(p, job, *words):
    done = subprocess.run([str(harness.BIN / "kubeml"), "explain", job], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **p.environment()})
    assert all(word in done.stdout for word in words), (words, done.stdout, done.stderr)


@case(limit=300, platform=False)
def four_share_one_and_the_fifth_waits():
    with with_gpus() as settings, release.installed(**settings, **{"controller.slots": 8}) as p:
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        four = p.train(epochs=5000, default_parallelism=4)
        until(lambda: p.task(four)["epoch"] >= 1, 90, message="four do not train on one GPU")
        devices = [device_of(pod["pid"]) for pod in p.pods(job=four, role="function")]
        assert len(devices) == 4 and len(set(devices)) == 1 and devices[0].startswith("GPU-node0-0"), devices

        fifth = p.train(epochs=1, default_parallelism=1)
        until(lambda: RESOURCE in str(p.get(f"/tasks/{fifth}/explain")), 30, every=0.1,
              message="it does not say what the fifth waits for: " + str(p.get(f"/tasks/{fifth}/explain")))
        explained(p, fifth, RESOURCE)
        assert p.task(fifth)["state"] != "succeeded"
        p.delete(f"/tasks/{four}")
        p.succeed(fifth, 90)


@case(limit=300, platform=False)
def slots_are_counted_on_the_nodes():
    with with_gpus() as settings, release.installed(**settings, **{"controller.slots": 0, "gpu.countNodes": "true"}) as p:
        slots = p.ask_leader("/ready").json()["slots"]
        assert slots == 4, slots
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        four = p.train(epochs=5000, default_parallelism=4)
        until(lambda: p.task(four)["state"] == "running", 90)
        fifth = p.train(epochs=1, default_parallelism=1)
        until(lambda: p.get(f"/tasks/{fifth}/explain")["reason"] == "NoFreeSlot", 30)
        explained(p, fifth, "NoFreeSlot", "0 of 4", four)
        p.delete(f"/tasks/{four}")
        p.succeed(fifth, 90)


harness.main(globals())
