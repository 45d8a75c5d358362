"""MNIST to 99 % with four function pods, by REST; by the command line and by a TrainJob it is the same training, which ends
where they say."""
import json
import os
import subprocess

import cluster
import release
from cluster import apply, case, harness, kubectl, until

EPOCHS, GOAL, EARLIER, SEED = 25, 99, 98, 1
FILES = {"x-train": "train-images-idx3-ubyte.gz", "y-train": "train-labels-idx1-ubyte.gz",
         "x-test": "t10k-images-idx3-ubyte.gz", "y-test": "t10k-labels-idx1-ubyte.gz"}


def cli(p, *words):
    """As a user of the cluster: the kubeconfig says where the platform is."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBEML_")}
    environment["KUBECONFIG"] = cluster.kubeconfig()
    done = subprocess.run([str(harness.BIN / "kubeml"), "--namespace", p.ns, *map(str, words)], capture_output=True,
                          text=True, timeout=300, env=environment)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def by_rest(p, goal):
    return p.train(dataset="mnist", epochs=EPOCHS, default_parallelism=4, goal_accuracy=goal, seed=SEED)


def by_cli(p, goal):
    return cli(p, "train", "-f", "lenet", "-d", "mnist", "-e", EPOCHS, "-b", 32, "--lr", 0.01, "-p", 4, "--static",
               "--goal-accuracy", goal, "--seed", SEED).strip().splitlines()[-1]


def by_trainjob(p, goal):
    apply([{"apiVersion": "kubeml.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "mnist"}, "spec": {
        "function": "lenet", "dataset": "mnist", "epochs": EPOCHS, "batchSize": 32, "lr": 0.01, "parallelism": 4,
        "staticParallelism": True, "goalAccuracy": goal, "seed": SEED}}], p.ns)

    def job():
        one, = [t for t in cluster.listed("trainjobs", p.ns) if t["metadata"]["name"] == "mnist"]
        return one.get("status", {}).get("job")
    return until(job, 30, message="the TrainJob is not taken")


def to_the_goal(p, goal, job, warm):
    """(SHA-256, accuracies) of the job, which had four function pods, of those that were warm before it was asked for."""
    pods = until(lambda: (found := p.pods(job=job, role="function")) and len(found) == 4 and found, 60,
                 message="there are not four function pods")
    assert {pod["function"] for pod in pods} == {0, 1, 2, 3}, pods
    assert {pod["uid"] for pod in p.pods(job=job)} <= warm, "none of the warm pods was taken"
    task = p.succeed(job, 240)
    accuracy = p.get(f"/history/{job}")["data"]["accuracy"]
    assert accuracy[-1] >= goal, accuracy
    print(f"{job}: {len(accuracy)} epochs, {accuracy[-1]} %, start {task['start_ms']}")
    # From the request to the first batch, phase by phase; together they are the total.
    phases = {k: v for k, v in task["start_ms"].items() if k != "total"}
    assert len(phases) >= 3 and all(v is not None and v >= 0 for v in phases.values()), task["start_ms"]
    assert task["start_ms"]["total"] >= max(phases.values()), task["start_ms"]
    return task["sha256"], accuracy


@case(limit=900, platform=False)
def mnist_by_rest_by_cli_and_by_trainjob():
    folder = harness.mnist()
    with release.shared() as p:
        p.dataset("mnist", {field: (folder / file).read_bytes() for field, file in FILES.items()})
        p.function()
        found = []
        for way, goal in ((by_rest, GOAL), (by_cli, EARLIER), (by_trainjob, EARLIER)):
            warm = p.warm(4, 1)
            found.append(to_the_goal(p, goal, way(p, goal), warm))
        (_, longest), *shorter = found
        assert shorter[0] == shorter[1] and longest[:len(shorter[0][1])] == shorter[0][1], f"one seed, other weights: {found}"
        rows = []

        def all_succeeded():  # the TrainJob follows its job
            rows[:] = kubectl("get", "trainjobs", "-n", p.ns).stdout.splitlines()
            return len(rows) == 4 and all(row.split()[1] == "succeeded" for row in rows[1:])
        until(all_succeeded, 20, every=0.2, message=lambda: f"three TrainJobs that succeeded: {rows}")
        assert rows[0].split() == ["NAME", "STATE", "EPOCH", "ACC", "LOSS", "WORKERS", "AGE"], rows
        model = p.get("/model/" + p.get("/tasks?state=all")[0]["id"])
        header = json.loads(model[8:8 + int.from_bytes(model[:8], "little")])
        assert header["conv1.weight"]["shape"] == [6, 1, 5, 5], header


harness.main(globals())
