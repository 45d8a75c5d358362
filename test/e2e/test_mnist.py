#!/usr/bin/python3
"""Training on the real MNIST: what averaging models must not break.

With one seed a job's weights are the same on every run of one build on one kind of processor: nothing is
drawn anew between runs. Another compiler, a sanitizer or a processor rounds differently and draws another
run, so a bar stands well below what runs of its kind reach."""
import gzip
import json
import os
import subprocess

import numpy as np

import harness
from harness import case

FILES = {"x-train": "train-images-idx3-ubyte.gz", "y-train": "train-labels-idx1-ubyte.gz",
         "x-test": "t10k-images-idx3-ubyte.gz", "y-test": "t10k-labels-idx1-ubyte.gz"}


def upload(p, name="mnist", order=None):
    """MNIST; `order` of the training labels gives another order of the samples."""
    folder = harness.mnist()
    files = {field: (folder / file).read_bytes() for field, file in FILES.items()}
    if order:
        images = np.frombuffer(gzip.decompress(files["x-train"]), np.uint8, offset=16).reshape(-1, 784)
        labels = np.frombuffer(gzip.decompress(files["y-train"]), np.uint8, offset=8)
        by = order(labels)
        files["x-train"] = harness.idx(images[by].tobytes(), len(by), 28, 28)
        files["y-train"] = harness.idx(labels[by].tobytes(), len(by))
    p.dataset(name, files)


def trained(p, dataset="mnist", **options):
    """The history of a job that succeeded, with its SHA-256."""
    options = {"default_parallelism": 4, "epochs": 3, **options}
    job = p.train(dataset=dataset, **options)
    sha = p.succeed(job, 300)["sha256"]
    return {**p.get(f"/history/{job}"), "sha256": sha}


@case(limit=300)
def sorted_by_label(p):
    """Samples are dealt from a stored order drawn at upload: sorted input trains like any other."""
    upload(p)
    upload(p, "sorted", lambda labels: np.argsort(labels, kind="stable"))
    p.function()
    last = {name: np.mean([trained(p, name, epochs=4, seed=seed)["data"]["accuracy"][-1] for seed in (1, 2)])
            for name in ("mnist", "sorted")}
    assert last["mnist"] > 98, last
    assert abs(last["mnist"] - last["sorted"]) <= 0.3, last


@case(limit=300)
def one_function_is_kubeml_run(p):
    """One function on the platform: the losses of the same file in one process, bit for bit."""
    upload(p)
    p.function()
    history = trained(p, default_parallelism=1, epochs=1, seed=5)
    done = subprocess.run(
        [harness.BIN / "kubeml", "run", harness.LENET, "--dataset", "mnist", "-e", "1", "-b", "32", "--lr", "0.01",
         "--seed", "5", "--threads", str(history["plan"]["threads"]), "--json"], capture_output=True, text=True,
        timeout=180 * harness.STRETCH, env={**os.environ, "KUBEML_HOME": str(p.folder / "home")})
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line) for line in done.stdout.splitlines() if '"train_loss"' in line]
    assert len(epochs) == 1, done.stdout
    for key in ("train_loss", "validation_loss", "accuracy"):
        for alone, platform in zip([e[key] for e in epochs], history["data"][key], strict=True):
            # The history keeps 12 digits.
            assert abs(alone - platform) <= 1e-10 * max(1, abs(alone)), (key, alone, platform)


@case(limit=240)
def every_k_trains(p):
    """Merged after each step, after eight, and once an epoch; in the database and in kubeml-ps alike."""
    upload(p)
    p.function()
    # K of 1 takes a quarter of the steps, each of four batches, and is behind after one epoch.
    for k, want in ((1, 94), (8, 95), (-1, 95)):
        history = trained(p, epochs=1 if k == 1 else 2, k=k)
        assert history["data"]["accuracy"][-1] > want, (k, history["data"])
        assert history["samples"] == [60000] * len(history["samples"]), (k, history["samples"])
        assert history["data"]["train_loss"][-1] < 0.6, (k, history["data"])
        if k == 8:
            again = trained(p, epochs=2, k=k, merge="server")
            assert again["sha256"] == history["sha256"], "the two mergers give other bits"


@case(limit=200)
def an_elastic_job_says_how_many_trained(p):
    """Each epoch's number of functions stands in the history, and is the number of its shares."""
    upload(p)
    p.function()
    history = trained(p, epochs=5, static_parallelism=False, default_parallelism=2)
    parallelism = history["data"]["parallelism"]
    assert len(parallelism) == 5 and parallelism[0] == 2, parallelism
    assert all(1 <= n <= 4 for n in parallelism) and len(set(parallelism)) > 1, parallelism
    assert [len({row[0] for row in shares}) for shares in history["shares"]] == parallelism, history["shares"]
    assert history["samples"] == [60000] * 5 and history["data"]["accuracy"][-1] > 97, history["data"]


@case(limit=120)
def one_seed_one_model(p):
    upload(p)
    p.function()
    first, second = trained(p, epochs=1, seed=9), trained(p, epochs=1, seed=9)
    assert first["sha256"] == second["sha256"] and first["ledger"] == second["ledger"]
    assert trained(p, epochs=1, seed=10)["sha256"] != first["sha256"]


if __name__ == "__main__":
    harness.main(globals())
