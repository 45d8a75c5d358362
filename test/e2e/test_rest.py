#!/usr/bin/env python3
"""The API: cases as data (test/rest/*.json), and what needs more than one request."""
import concurrent.futures
import contextlib
import fcntl
import gzip
import io
import json
import os
import pathlib
import pickle
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import urllib.parse

import numpy as np
import requests
import yaml

import harness
from harness import case, until

REST = pathlib.Path(__file__).resolve().parents[1] / "rest"


def send(p, c):
    method, path = c["request"].split(" ", 1)
    arguments = {"headers": dict(c.get("send", {}))}
    if "json" in c:
        arguments["json"] = c["json"]
    if "text" in c:
        arguments["data"] = c["text"].encode()
        arguments["headers"].setdefault("Content-Type", "application/json")
    if "multipart" in c:
        arguments["files"] = {k: (k, v.encode()) for k, v in c["multipart"].items()}
    # Prepared by hand: requests would tidy up the path.
    request = requests.Request(method, p.url, **arguments).prepare()
    request.url = p.url + path
    with requests.Session() as session:
        return session.send(request, timeout=60)


def check(p, c):
    reply = send(p, c)
    assert reply.status_code == c["status"], f"{reply.status_code} {reply.text[:500]}"
    for name, value in c.get("headers", {}).items():
        assert reply.headers.get(name) == value, f"{name}: {reply.headers.get(name)}"
    if c.get("empty"):
        assert reply.content == b"", reply.content
        return
    body = reply.json()
    if "body" in c:
        assert body == c["body"], body
    for key in c.get("has", []):
        assert key in body, body
    if "problem" in c:
        assert reply.headers["Content-Type"] == "application/problem+json", reply.headers
        assert body["status"] == body["code"] == c["status"] and body["error"] == body["detail"], body
        assert c["problem"] in body["detail"], body["detail"]


def schemas():
    return yaml.safe_load((harness.ROOT / "docs/openapi.yaml").read_text())["components"]["schemas"]


# Epochs of a job that is hit while it runs; a sanitizer makes each of them many times as long.
EPOCHS = 10


@case(limit=120)
def cases_as_data(p):
    p.dataset()
    p.function()
    p.post("/function/vgg", json={"model": "vgg11", "stem": "imagenet"})
    before = p.get("/dataset"), p.get("/function"), p.get("/tasks?state=all")
    failed = []
    for path in sorted(REST.glob("*.json")):
        for c in json.loads(path.read_text()):
            try:
                check(p, c)
            except AssertionError as e:
                failed.append(f"{path.name}: {c['name']}: {e}")
    assert not failed, "\n" + "\n".join(failed)
    assert before == (p.get("/dataset"), p.get("/function"), p.get("/tasks?state=all")), "a refusal changed something"


@case()
def a_job_from_upload_to_inference(p):
    p.dataset()
    made = p.function()
    assert made["version"] == 1 and made["kind"] == "code", made
    listed = p.get("/dataset")
    assert [(d["name"], d["train_set_size"], d["test_set_size"]) for d in listed] == [("tiny", 512, 128)], listed
    job = p.train(epochs=3)
    events = p.events(job)
    assert [d["epoch"] for n, d in events if n == "epoch"] == [1, 2, 3], events
    assert events[-1][0] == "state" and events[-1][1]["state"] == "succeeded", events[-1]
    task = p.succeed(job)
    assert len(task["sha256"]) == 64 and task["epoch"] == 3 and task["start_ms"]["total"] is not None, task
    history = p.get(f"/history/{job}")
    assert history["task"]["function_name"] == "lenet", history
    assert set(history) == set(schemas()["History"]["required"]), history
    for key in ("train_loss", "validation_loss", "accuracy", "parallelism", "epoch_duration"):
        assert len(history["data"][key]) == 3, (key, history)
    model = p.get(f"/model/{job}")
    header = json.loads(model[8:8 + int.from_bytes(model[:8], "little")])
    assert header["conv1.weight"]["shape"] == [6, 1, 5, 5], header
    assert p.get(f"/model/{job}?format=npz")[:2] == b"PK"
    names = [p.ask("HEAD", f"/model/{job}{form}", 200, timeout=60).headers["Content-Disposition"].split("=")[1].strip('"')
             for form in ("", "?format=safetensors", "?format=npz", "?format=checkpoint")]
    assert names == [f"{job}.safetensors", f"{job}.safetensors", f"{job}.npz", f"{job}.checkpoint.safetensors"], names
    files = harness.tiny_mnist()
    images = np.frombuffer(files["x-test"], np.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = np.frombuffer(files["y-test"], np.uint8, offset=8)
    said = p.post("/infer", json={"model_id": job, "data": images.tolist()})  # numbers as in the file
    logits, data = np.array(said["logits"]), history["data"]
    loss = np.log(np.exp(logits - logits[range(len(labels)), labels][:, None]).sum(1)).mean()
    assert abs(loss - data["validation_loss"][-1]) < 1e-6 + 1e-3 * loss, (loss, data)
    assert abs(100 * np.mean(said["predictions"] == labels) - data["accuracy"][-1]) < 1e-9, data
    log = p.get(f"/tasks/{job}/logs").decode()
    assert "ps          | " in log and "function-1  | " in log, log
    assert p.events(job)[-1][1]["state"] == "succeeded", "the events of an ended job"
    assert p.get("/tasks") == [] and [t["id"] for t in p.get("/tasks?state=all")] == [job]
    # A second job from the first one's model, and from an upload of it.
    p.succeed(p.post("/train", json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32,
                                     "lr": 0.01, "init": job})["id"])
    uploaded = p.post("/model", files={"model": model})["id"]
    p.succeed(p.post("/train", json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32,
                                     "lr": 0.01, "init": uploaded})["id"])
    p.delete(f"/history/{job}")
    for path in (f"/history/{job}", f"/tasks/{job}", f"/model/{job}"):
        p.get(path, 404)


@case()
def a_start_ends_with_the_first_trained_batch(p):
    p.dataset()
    start = p.succeed(p.train(p.paced(0.5), epochs=1, batch_size=512, default_parallelism=1))["start_ms"]
    assert start["training"] >= 500, start
    assert start["total"] == sum(start[part] for part in ("queued", "ps", "functions", "training")), start


@case()
def the_id_alone_for_clients_without_accept(p):
    p.dataset()
    p.function()
    body = {"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01,
            "model_type": "x", "options": {"K": -1}}
    for headers in ({"Accept": None}, {"Accept": "text/plain, application/json;q=0.5"}):
        reply = requests.post(p.url + "/train", json=body, headers=headers, timeout=30)
        assert reply.headers["Content-Type"].startswith("text/plain") and len(reply.text) == 12, reply.text
        p.succeed(reply.text)
    reply = requests.post(p.url + "/train", json=body, timeout=30)  # Accept: */*
    p.succeed(reply.json()["id"])


@case()
def functions_have_versions(p):
    first = p.function()
    again = p.call("PUT", "/function/lenet", files={"code": ("lenet.c", harness.LENET.read_bytes())})
    assert again == first, "the same code is the same version"
    second = p.call("PUT", "/function/lenet", json={"model": "lenet5"})
    assert second["version"] == 2 and second["kind"] == "zoo" and second["object"] == "zoo:lenet5", second
    assert [v["version"] for v in second["versions"]] == [1, 2]
    third = p.call("PUT", "/function/lenet", json={"model": "resnet34", "stem": "cifar"})
    assert third["object"] == "zoo:resnet34,stem=cifar" and third["model"] == "resnet34,stem=cifar", third
    assert p.call("PUT", "/function/lenet", json={"model": "resnet34,stem=cifar", "stem": "auto"}) == third
    p.delete("/function/lenet")
    p.get("/function/lenet", 404)


@case()
def suspended_and_resumed_it_ends_as_if_nothing_had_been(p):
    p.dataset()
    p.function()
    options = dict(epochs=12, default_parallelism=2, static_parallelism=True, k=2, seed=5)
    calm = p.succeed(p.train(**options))
    job = p.train(p.paced(), **options)
    until(lambda: p.task(job)["epoch"] >= 2)
    p.post(f"/tasks/{job}/suspend")
    task = p.wait(job)
    assert task["state"] == "suspended" and task["reason"] == "Suspended" and task["finished"] is None, task
    assert 2 <= task["epoch"] < 12, task
    for path in (f"/history/{job}", f"/model/{job}"):
        said = p.delete(path, 409)["error"]
        assert "suspended" in said and "stop it first" in said, said
    p.post(f"/tasks/{job}/suspend")  # it is: nothing changes
    until(lambda: not p.pods(job=job))
    p.post(f"/tasks/{job}/resume")
    assert p.succeed(job)["sha256"] == calm["sha256"]
    p.post(f"/tasks/{job}/suspend", 409)


@case(limit=120)
def a_resumed_jobs_model_is_what_it_has_trained_since(p):
    """And not what it was suspended with, while it runs and where it fails."""
    p.dataset()
    job = p.train(p.paced(), epochs=50000)
    infer = {"model_id": job, "data": [[[[0] * 28] * 28]]}
    begin = {"function_name": "paced", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01, "init": job}

    def epochs():
        model = p.get(f"/model/{job}?format=checkpoint")
        return int(json.loads(model[8:8 + int.from_bytes(model[:8], "little")])["__metadata__"]["epochs"])

    def fails():
        for pod in p.pods(job=job, role="function"):
            with contextlib.suppress(ProcessLookupError):
                if pod["pid"]:
                    os.kill(pod["pid"], signal.SIGKILL)
        return p.task(job)["state"] == "failed"
    until(lambda: p.task(job)["epoch"] >= 1)
    p.post(f"/tasks/{job}/suspend")
    suspended = p.wait(job)["epoch"]
    assert epochs() == suspended
    p.post("/infer", json=infer)
    p.post(f"/tasks/{job}/resume")
    for path, body in (("/infer", infer), ("/train", begin)):
        assert f"job {job} still runs" in p.post(path, 409, json=body)["error"]
    until(lambda: p.task(job)["epoch"] > suspended)
    assert epochs() > suspended
    for path, body in (("/infer", infer), ("/train", begin)):
        assert f"job {job} still runs" in p.post(path, 409, json=body)["error"]
    until(fails, 60, message="it does not fail, whoever is killed")
    assert epochs() >= p.task(job)["epoch"] > suspended
    for path, body in (("/infer", infer), ("/train", begin)):  # as of any job that failed, once its pods are gone
        until(lambda path=path, body=body: p.ask("POST", path, None, json=body).status_code == 404)


@case()
def what_still_stops_is_not_resumed_and_why_is_said(p):
    p.dataset()
    job = p.train(p.paced(), epochs=12, default_parallelism=2, static_parallelism=True, k=2)
    until(lambda: p.task(job)["epoch"] >= 1)
    ps = p.pod(job=job, role="ps")["pid"]
    os.kill(ps, signal.SIGSTOP)
    try:
        p.post(f"/tasks/{job}/suspend")
        assert "stops at its next merge" in p.post(f"/tasks/{job}/resume", 409)["detail"]
    finally:
        os.kill(ps, signal.SIGCONT)
    assert p.wait(job)["state"] == "suspended"


@case()
def a_precision_that_no_cpu_has_is_refused(p):
    p.dataset()
    p.function()
    said = p.post("/train", 422, json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.1,
                                       "options": {"device": "cpu", "gpu": {"precision": "tf32"}}})
    assert "the cpu backend computes in fp32 or bf16, not in tf32" in said["error"], said
    if not harness.another_platform and not any((pathlib.Path("/dev") / f"nvidia{i}").exists() for i in range(8)):
        said = p.post("/train", 422, json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32,
                                           "lr": 0.1, "options": {"gpu": {"precision": "tf32"}}})
        assert "not in tf32" in said["error"], said


@case()
def the_model_that_a_job_begins_with_stays(p):
    p.dataset()
    p.function()
    paced = p.paced()
    first = p.train(epochs=1)
    p.succeed(first)
    for init in (first, f"models/{first}/final"):
        job = p.post("/train", json={"function_name": paced, "dataset": "tiny", "epochs": 50000, "batch_size": 32,
                                     "lr": 0.01, "init": init})["id"]
        for path in (f"/model/{first}", f"/history/{first}"):
            said = p.delete(path, 409)
            assert job in said["error"] and f'begins with model "{first}"' in said["error"], said
        p.delete(f"/tasks/{job}")
        p.wait(job)
    p.delete(f"/model/{first}")


@case()
def the_model_that_a_suspended_job_begins_with_stays_until_it_has_its_own(p):
    p.dataset()
    p.function()
    paced = p.paced()
    first = p.train(epochs=1)
    p.succeed(first)
    long = p.train(epochs=50000, default_parallelism=4)
    until(lambda: p.task(long)["state"] == "running")
    job = p.post("/train", json={"function_name": paced, "dataset": "tiny", "epochs": 50000, "batch_size": 32, "lr": 0.01,
                                 "init": f"models/{first}/final"})["id"]
    p.post(f"/tasks/{job}/suspend")  # it waits for its slots, and has trained nothing
    task = p.wait(job)
    assert (task["state"], task["epoch"]) == ("suspended", 0), task
    for path in (f"/model/{first}", f"/history/{first}"):
        said = p.delete(path, 409)["error"]
        # where it had slots after all it may not be through with its pods yet
        assert said.replace(", which is suspended,", "") == f"job {job} begins with model \"{first}\"", said
    p.delete(f"/tasks/{long}")
    p.wait(long)
    p.post(f"/tasks/{job}/resume")
    until(lambda: p.task(job)["epoch"] >= 1)
    p.post(f"/tasks/{job}/suspend")
    epoch = p.wait(job)["epoch"]
    until(lambda: p.ask("DELETE", f"/model/{first}", 200).status_code == 200, 20)  # once it is through with its pods
    p.post(f"/tasks/{job}/resume")
    until(lambda: p.task(job)["epoch"] > epoch)
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case()
def a_job_goes_on_with_its_own_dataset_or_not_at_all(p):
    p.dataset()
    p.function()
    job = p.train(p.paced(), epochs=50000)
    until(lambda: p.task(job)["epoch"] >= 1)
    said = p.post("/train", 409, json={"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.1,
                                       "init": job})
    assert "still runs" in said["error"], said
    said = p.post("/infer", 409, json={"model_id": job, "data": [[[[0] * 28] * 28]]})
    assert f"job {job} still runs" in said["error"], said
    p.post(f"/tasks/{job}/suspend")
    p.wait(job)
    said = p.delete("/dataset/tiny", 409)
    assert job in said["error"] and "suspended" in said["error"], said
    p.delete(f"/tasks/{job}")
    p.delete("/dataset/tiny")
    assert "was deleted" in p.post(f"/tasks/{job}/resume", 409)["error"]
    p.dataset()
    said = p.post(f"/tasks/{job}/resume", 409)["error"]
    assert said.endswith("the one of that name is another"), said
    assert p.task(job)["state"] == "cancelled", "what was refused changes nothing"


@case()
def a_suspended_job_is_stopped_for_good(p):
    p.dataset()
    p.function()
    options = dict(epochs=6, default_parallelism=2, static_parallelism=True, k=2, seed=5)
    calm = p.succeed(p.train(**options))["sha256"]
    job = p.train(p.paced(), **options)
    until(lambda: p.task(job)["epoch"] >= 2)
    p.post(f"/tasks/{job}/suspend")
    suspended = p.wait(job)
    model = p.get(f"/model/{job}")
    p.delete(f"/tasks/{job}")  # its pods may still be ending
    task = p.task(job)
    assert (task["state"], task["reason"]) == ("cancelled", "Cancelled") and task["finished"], task
    for key in ("epoch", "started", "start_ms", "train_loss", "sha256", "request"):
        assert task[key] == suspended[key], (key, task, suspended)
    assert p.events(job)[-1][1]["state"] == "cancelled"
    history = p.get(f"/history/{job}")
    assert (history["state"], history["message"]) == ("cancelled", task["message"]), history
    assert len(history["data"]["train_loss"]) == task["epoch"] and p.get(f"/model/{job}") == model, "what was merged stays"
    p.delete(f"/tasks/{job}", 409)
    p.post(f"/tasks/{job}/suspend", 409)
    # As any stopped job it goes on where it stands.
    p.post(f"/tasks/{job}/resume")
    assert p.succeed(job)["sha256"] == calm


@case()
def bounds_of_a_job(p):
    p.dataset()
    p.function()
    job = p.train(epochs=50000, active_deadline_seconds=1, backoff_limit=2)
    task = p.wait(job)
    assert task["state"] == "failed" and task["reason"] == "DeadlineExceeded", task
    assert task["request"]["options"]["backoff_limit"] == 2, task
    # kubeml-ps was told to stop, no more: the controller's word follows once it has ended.
    until(lambda: (history := p.get(f"/history/{job}")) and
          [history[k] for k in ("state", "reason", "message")] == [task[k] for k in ("state", "reason", "message")])


@case()
def a_data_set_tells_its_statistics(p):
    files = harness.tiny_mnist()
    p.dataset(files=files)
    pixels = files["x-train"][16:]
    mean = sum(pixels) / len(pixels) / 255
    std = (sum((x / 255 - mean) ** 2 for x in pixels) / len(pixels)) ** 0.5
    told = p.get("/dataset/tiny")
    for name, want in (("mean", mean), ("std", std), ("min", min(pixels) / 255), ("max", max(pixels) / 255)):
        assert len(told[name]) == 1 and abs(told[name][0] - want) < 1e-5, (name, told[name], want)
    assert "mean" not in p.get("/dataset")[0]


@case(platform=False)
def uploads_take_no_more_of_the_disk_than_they_may():
    with harness.Platform("--scratch-max", "50Ki") as p:
        p.post("/dataset/tiny", 413, files=harness.tiny_mnist())
    with harness.Platform("--scratch-max", "0") as p:
        p.post("/dataset/tiny", files=harness.tiny_mnist())


@case()
def stop_and_what_is_in_use(p):
    p.dataset()
    p.function()
    job = p.train(epochs=50000)
    until(lambda: p.task(job)["state"] == "running")
    assert job in p.delete("/dataset/tiny", 409)["detail"]
    assert job in p.delete("/function/lenet", 409)["detail"]
    p.delete(f"/history/{job}", 409)
    p.post(f"/tasks/{job}/resume", 409)
    until(lambda: p.task(job)["epoch"] >= 1)
    p.delete(f"/tasks/{job}")
    task = p.wait(job)
    assert task["state"] == "cancelled", task
    p.delete(f"/tasks/{job}", 409)
    until(lambda: not p.pods(job=job), message="pods of a stopped job")
    p.delete("/dataset/tiny")
    p.delete("/function/lenet")


@case(platform=False)
def a_job_is_not_resumed_while_its_model_goes():
    """Nor is the model of a job deleted that was resumed."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder, \
            concurrent.futures.ThreadPoolExecutor(1) as beside:
        deleting = pathlib.Path(folder) / "deleting"
        with harness.Platform(env={"KUBEML_FAILPOINT": "controller.delete-model:1:wait",
                                   "KUBEML_FAILPOINT_FILE": str(deleting)}) as p:
            p.dataset()
            p.function()
            job = p.train(epochs=50000)
            until(lambda: p.task(job)["epoch"] >= 1)
            p.delete(f"/tasks/{job}")
            p.wait(job)
            deleted = beside.submit(p.delete, f"/model/{job}")
            until(deleting.exists)
            try:
                for method, path in (("POST", f"/tasks/{job}/resume"), ("DELETE", f"/model/{job}"), ("DELETE", f"/history/{job}")):
                    assert "is being deleted" in p.call(method, path, 409)["detail"]
                body = {"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01, "init": job}
                assert "is being deleted" in p.post("/train", 409, json=body)["detail"]
            finally:
                deleting.unlink()
            deleted.result()
            p.get(f"/model/{job}", 404)
            again = p.train(epochs=50000)
            until(lambda: p.task(again)["epoch"] >= 1)
            p.delete(f"/tasks/{again}")
            p.wait(again)
            p.post(f"/tasks/{again}/resume")
            assert "has not ended" in p.delete(f"/model/{again}", 409)["detail"]
            p.delete(f"/tasks/{again}")
            p.wait(again)
            p.delete(f"/model/{again}")


@case(platform=False)
def what_is_left_of_a_job_goes_when_its_deletion_was_cut_off():
    """The controller dies when some of it is gone."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder:
        dies = pathlib.Path(folder) / "dies"
        with harness.Platform(env={"KUBEML_FAILPOINT": "controller.forget", "KUBEML_FAILPOINT_FILE": str(dies)}) as p:
            p.dataset()
            p.function()
            job = p.train(epochs=1)
            p.succeed(job)
            logs = lambda: list((p.folder / "home/store/blobs").glob(f"logs*{job}*"))
            until(logs, message="its log is not kept")
            with contextlib.suppress(requests.ConnectionError):
                p.delete(f"/history/{job}")
            p.process.wait(20 * harness.STRETCH)
            assert dies.exists()
            p.start()
            p.delete(f"/history/{job}")
            assert not logs() and not p.models()
            p.get(f"/tasks/{job}", 404)


@case(platform=False)
def what_is_being_deleted_is_not_trained_with():
    for kind, name in (("dataset", "tiny"), ("function", "lenet")):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder, \
                concurrent.futures.ThreadPoolExecutor(1) as beside:
            deleting = pathlib.Path(folder) / "deleting"
            with harness.Platform(env={"KUBEML_FAILPOINT": f"controller.delete-{kind}:1:wait",
                                       "KUBEML_FAILPOINT_FILE": str(deleting)}) as p:
                p.dataset()
                p.function()
                job = p.train(epochs=50000)
                until(lambda: p.task(job)["epoch"] >= 1)
                p.delete(f"/tasks/{job}")
                p.wait(job)
                body = {"function_name": "lenet", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01}
                deleted = beside.submit(p.delete, f"/{kind}/{name}")
                until(deleting.exists)
                try:
                    for method, path in (("POST", "/train"), ("POST", f"/tasks/{job}/resume"), ("DELETE", f"/{kind}/{name}")):
                        said = p.call(method, path, 409, json=body if path == "/train" else None)["detail"]
                        assert said == f'{kind} "{name}" is being deleted', said
                finally:
                    deleting.unlink()
                deleted.result()
                p.post("/train", 404, json=body)
                assert [t["id"] for t in p.get("/tasks?state=all")] == [job], "no job of it was taken"


@case()
def a_queue_with_priorities(p):
    p.dataset()
    p.function()
    long = p.train(epochs=50000, default_parallelism=4)
    until(lambda: p.task(long)["state"] == "running")
    low, high = p.train(epochs=1, priority=0, default_parallelism=4), p.train(epochs=1, priority=5, default_parallelism=4)
    for job in (low, high):
        why = p.get(f"/tasks/{job}/explain")
        assert why["state"] == "queued" and why["reason"] == "NoFreeSlot", why
    p.delete(f"/tasks/{long}")
    high_end, low_end = p.succeed(high), p.succeed(low)
    assert high_end["started"] <= low_end["started"], (high_end, low_end)


@case()
def a_job_that_never_began_is_deleted_too(p):
    p.dataset()
    p.function()
    long = p.train(epochs=50000, default_parallelism=4)
    queued = p.train(epochs=1, default_parallelism=4)
    for job in (queued, long):
        p.delete(f"/tasks/{job}")
        p.wait(job)
    p.get(f"/history/{queued}", 404)  # nothing was trained
    p.delete(f"/history/{queued}")
    assert [t["id"] for t in p.get("/tasks?state=all")] == [long]
    p.delete(f"/history/{queued}", 404)


@case(options=("--pool-functions", "0", "--pool-ps", "0"))
def an_empty_pool_starts_what_is_needed(p):
    assert p.pods() == []
    p.dataset()
    p.function()
    p.succeed(p.train(epochs=1))
    until(lambda: not p.pods(), message="with a floor of 0 nothing stays")


@case(limit=120)
def a_killed_controller_adopts(p):
    p.dataset()
    p.function()
    sha = p.succeed(p.train(epochs=EPOCHS))["sha256"]
    job = p.train(p.paced(), epochs=EPOCHS)
    queued = p.train(epochs=EPOCHS, default_parallelism=4)
    until(lambda: p.task(job)["epoch"] >= 2)
    pods = {pod["pid"] for pod in p.pods(job=job)}
    before = p.task(job)["epoch"]
    p.kill()
    p.start()
    until(lambda: p.task(job)["epoch"] > before, message="it does not go on")
    assert len(pods) > 2 and {pod["pid"] for pod in p.pods(job=job)} == pods, "its processes are others than before"
    task = p.succeed(job)
    assert task["sha256"] == sha, "other weights than without the kill"
    assert not {c["type"] for c in task["conditions"]} & {"FunctionLost", "PSRestarted"}, task["conditions"]
    p.succeed(queued)


def kept_of(p, job):
    """What the platform keeps of datasets, functions and a job that has ended: the bytes of each answer."""
    def body(path):
        reply = requests.get(p.url + path, timeout=60)
        assert reply.status_code == 200, (path, reply.text)
        return reply.content
    return {path: body(path) for path in (
        "/dataset", "/dataset/tiny", "/function", "/function/lenet", f"/history/{job}", f"/tasks/{job}", f"/tasks/{job}/explain",
        f"/tasks/{job}/logs", f"/model/{job}", f"/model/{job}?format=npz", f"/model/{job}?format=checkpoint")}


@case(limit=120)
def a_stopped_platform_goes_on(p):
    p.dataset()
    p.function()
    first = p.succeed(p.train(epochs=EPOCHS))
    p.call("PUT", "/function/lenet", json={"model": "lenet5"})
    p.get(f"/tasks/{first['id']}/logs?follow=true")  # to the end of its last process
    job = p.train(p.paced(), epochs=EPOCHS)
    until(lambda: p.task(job)["epoch"] >= 2)
    before = kept_of(p, first["id"])
    assert p.stop() == 0
    until(lambda: not harness.processes_of(p.folder), message="processes are left")
    p.start()
    for path, answer in kept_of(p, first["id"]).items():
        assert answer == before[path], f"{path} is {answer[:2000]} after the restart, and was {before[path][:2000]}"
    assert p.succeed(job)["sha256"] == first["sha256"], "other weights than without the stop"


@case(limit=120)
def a_running_job_keeps_the_version_it_began_with(p):
    """Also the function that replaces a killed one."""
    p.dataset()
    p.function()
    sha = p.succeed(p.train(epochs=EPOCHS))["sha256"]
    job = p.train(p.paced(), epochs=EPOCHS)
    until(lambda: p.task(job)["epoch"] >= 2)
    began = p.task(job)
    assert p.call("PUT", "/function/paced", json={"model": "mlp"})["version"] == 2
    os.kill(p.pod(job=job, role="function", function=1)["pid"], 9)
    task = p.succeed(job)
    assert "FunctionLost" in {c["type"] for c in task["conditions"]}, task["conditions"]
    assert task["sha256"] == sha, "other weights than without the update"
    assert (task["function_version"], task["function_digest"]) == (1, began["function_digest"]), (began, task)
    later = p.succeed(p.train("paced", epochs=1))
    assert later["function_version"] == 2 and later["function_digest"] != task["function_digest"], later


@case(limit=120)
def a_killed_ps_is_replaced(p):
    p.dataset()
    p.function()
    sha = p.succeed(p.train(epochs=EPOCHS))["sha256"]
    job = p.train(p.paced(), epochs=EPOCHS)
    until(lambda: p.task(job)["epoch"] >= 2)
    os.kill(p.pod(job=job, role="ps")["pid"], 9)
    task = p.succeed(job)
    assert task["sha256"] == sha, "other weights than without the kill"


def sockets_of(pid):
    """The numbers of a process's sockets, as /proc/net has them."""
    return set(re.findall(r"socket:\[(\d+)\]", " ".join(harness.opened_by(pid))))


def net_of(pid, kind):
    return [line.split() for line in pathlib.Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]]


def raw_redis(path, *lines):
    """What a redis-server answers to each line of somebody who just comes along."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(str(path))
        answers = []
        for line in lines:
            s.sendall(line.encode() + b"\r\n")
            answers.append(s.recv(1000).decode())
    return answers


@case()
def a_jobs_redis_from_outside(p):
    """One server a job, on a socket in a folder of its own that nobody else may open, with a password that nobody sees."""
    p.dataset()
    paced, folders = p.paced(), set()
    jobs = [p.train(paced, epochs=50000, default_parallelism=1) for _ in range(2)]
    for job in jobs:
        until(lambda: p.task(job)["epoch"] >= 1)
        pid = p.redis(job)
        mine = sockets_of(pid)
        assert not [row for kind in ("tcp", "tcp6") for row in net_of(pid, kind) if row[9] in mine], "it has a TCP socket"
        path, = {pathlib.Path(row[7]) for row in net_of(pid, "unix") if row[6] in mine and len(row) > 7}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path
        assert path.stat().st_uid == path.parent.stat().st_uid == os.getuid(), path
        folders.add(path.parent)
        ping, wrong, get = raw_redis(path, "PING", "AUTH default sesame", "GET x")
        assert ping.startswith("-NOAUTH") and wrong.startswith("-WRONGPASS") and get.startswith("-NOAUTH"), (ping, wrong, get)
        for shown in ("cmdline", "environ"):
            assert not re.search(rb"[0-9a-f]{64}", pathlib.Path(f"/proc/{pid}/{shown}").read_bytes()), shown
    assert len(folders) == 2, folders
    for job in jobs:
        p.delete(f"/tasks/{job}")
        p.wait(job)
    until(lambda: not [f for f in folders if f.exists()], message="a job's folder stays")


@case(platform=False)
def what_a_killed_controller_was_starting_is_waited_for():
    """It has the home's lock until it becomes another program."""
    with harness.Platform() as p:
        p.stop()
        ended, path = p.process, p.folder / "home/run/controller.lock"
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            starting = threading.Thread(target=p.start)
            starting.start()
            until(lambda: p.process is not ended and str(path) in harness.opened_by(p.process.pid), message="it does not try")
        starting.join()
        p.get("/health")


@case(platform=False)
def a_second_controller_is_refused():
    with harness.Platform() as p:
        second = harness.Platform(home=p.folder)
        second.start(wait=False)
        assert second.process.wait(20) == 1
        assert "another controller runs on" in p.log_text()
        assert (p.folder / "home/run/controller.pid").read_text().strip() == str(p.process.pid)
        port = urllib.parse.urlparse(p.url).port
        done = subprocess.run([str(harness.BIN / "kubeml-controller"), "--home", str(p.folder / "other"), "--listen",
                               f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=20)
        assert done.returncode == 1 and f"port {port} on 127.0.0.1 is taken" in done.stderr, done.stderr


@case(platform=False)
def options_are_taken_whole_or_refused():
    long = "/" + "x" * 5000
    for said, program, *words in [
            ("--home is longer", "kubeml-controller", "--home", long),
            ("--store is longer", "kubeml-controller", "--store", "lmdb:" + long),
            ("--include is longer", "kubeml-builder", "--include", long),
            ("--ready-fd must be", "kubeml-builder", "--ready-fd", "1x"),
            ("--carrier is shm or socket", "kubeml-ps", "--listen", "unix:x", "--run-dir", ".", "--carrier", "sockets")]:
        done = subprocess.run([str(harness.BIN / program), *words], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and said in done.stderr, (words[0], done)


@case(platform=False)
def a_token():
    with harness.Platform(env={"KUBEML_TOKEN": "sesame"}) as p:
        assert p.get("/health") == {"status": "ok"}
        reply = requests.get(p.url + "/tasks", timeout=20)
        assert reply.status_code == 401 and reply.headers["WWW-Authenticate"].startswith("Bearer"), reply.headers
        p.get("/tasks", 401, headers={"Authorization": "Bearer sesam"})
        p.get("/tasks", 401, headers={"Authorization": "Basic sesame"})
        assert p.get("/tasks", headers={"Authorization": "Bearer sesame"}) == []
        assert "sesame" not in p.log_text()


@case()
def bodies_over_the_limit(p):
    for size in (2 << 20, 40 << 20):
        try:
            reply = requests.post(p.url + "/train", data=b"x" * size, timeout=30,
                                  headers={"Content-Type": "application/json"})
            assert reply.status_code == 413, reply.text
        except requests.exceptions.ConnectionError:
            assert size > 16 << 20, "what is not far over the limit is answered"

    def endless():
        for _ in range(40):
            yield b" " * 65536
    reply = requests.post(p.url + "/train", data=endless(), timeout=30, headers={"Content-Type": "application/json"})
    assert reply.status_code == 413, reply.text
    deep = "[" * 100000 + "]" * 100000
    reply = requests.post(p.url + "/train", data=deep, timeout=30, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400 and "nested" in reply.text, reply.text


@case()
def idle_connections_block_nobody(p):
    port = urllib.parse.urlparse(p.url).port
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(1000)]
    idle[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    assert p.get("/health", timeout=5 * harness.STRETCH) == {"status": "ok"}
    for connection in idle:
        connection.close()


@case(platform=False)
def who_asks_whether_it_is_ready_holds_up_nobody():
    """For which nobody needs a token. Where the records cannot be written each of them waits for that."""
    with harness.Platform() as p, harness.stopped_writer(p), contextlib.ExitStack() as at_end:
        port = urllib.parse.urlparse(p.url).port
        asked = [at_end.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)]
        for connection in asked:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert p.get("/health") == {"status": "ok"}
        assert not select.select(asked, [], [], 0)[0], "it was answered behind one of them"


def npy(array):
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


@case()
def uploads_that_are_refused(p):
    """Each with its status, the field and the place in it; nothing of them stays."""
    good = harness.tiny_mnist(64, 16)
    images = np.frombuffer(good["x-train"], np.uint8, offset=16).reshape(64, 28, 28)
    real = images / np.float32(255)
    broken = real.copy()
    broken[3, 4, 5] = np.nan
    zipped = gzip.compress(good["x-train"])
    p.dataset("taken", good)
    before = p.get("/dataset"), p.stored_files()
    for name, part, status, says in (
            ("new", {"y-train": npy(np.arange(60) % 10)}, 400, ["x-train has 64 samples and y-train has 60"]),
            ("new", {"x-train": npy(images)[:5000]}, 400, ["x-train", "cut"]),
            ("new", {"x-train": zipped[:len(zipped) // 2]}, 400, ["x-train", "cut"]),
            ("new", {"x-train": npy(real), "x-test": npy(broken[:16])}, 400, ["x-test", "NaN at sample 3, channel 0, row 4, column 5"]),
            ("new", {"y-test": npy(np.arange(16) - 1)}, 400, ["y-test", "label -1 at sample 0"]),
            ("new", {"x-test": npy(images[:16, :20])}, 400, ["(1, 28, 28)", "(1, 20, 28)"]),
            ("new", {"x-train": pickle.dumps({"data": images})}, 422, ["x-train", "pickle.load(open("]),
            ("new", {"x-train": b"1,2\n3,4\n"}, 422, ["x-train", "neither npy"]),
            ("taken", {}, 409, ['"taken" exists']), ("a%2Fb", {}, 400, ["dataset name"]),
            ("n" * 300, {}, 400, ["dataset name", "300 characters"])):
        problem = p.post(f"/dataset/{name}", status, files={**good, **part})
        for words in says:
            assert words in problem["detail"], (words, problem)
    assert (p.get("/dataset"), p.stored_files()) == before, "a refusal changed something"


@case()
def an_upload_that_breaks_off_leaves_nothing(p):
    port = urllib.parse.urlparse(p.url).port
    connection = socket.create_connection(("127.0.0.1", port))
    head = (b"POST /dataset/half HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
            b"Content-Length: 100000\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"x-train\"\r\n\r\n")
    before = p.stored_files()
    connection.sendall(head + harness.tiny_mnist()["x-train"][:1000])
    connection.close()
    p.dataset("half")  # the name is free
    p.delete("/dataset/half")
    until(lambda: p.stored_files() == before, message=lambda: f"it left {p.stored_files()}")


@case(platform=False)
def orphans_are_swept_at_start():
    with harness.Platform() as p:
        p.dataset()
        before = p.stored_files()
    kept, = (p.folder / "home/store/datasets").iterdir()
    shutil.copytree(kept, kept.parent / "0123456789abcdef")  # what an upload leaves whose controller was killed
    with harness.Platform(home=p.folder) as p:
        until(lambda: p.stored_files() == before, message=lambda: f"an orphan stays: {p.stored_files()}")
        p.function()
        p.succeed(p.train(epochs=1))


@case(platform=False)
def what_is_still_locked_at_the_start_is_swept_later():
    """The locks of a process that is killed are released one by one while it ends: the next one may be up by then."""
    with harness.Platform() as p:
        p.dataset()
        before = p.stored_files()
    kept, = (p.folder / "home/store/datasets").iterdir()
    left = kept.parent / "0123456789abcdef"
    shutil.copytree(kept, left)
    with open(left / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with harness.Platform(home=p.folder) as p:
            assert left.is_dir(), "a writer that lives lost what it wrote"
            fcntl.flock(lock, fcntl.LOCK_UN)
            until(lambda: p.stored_files() == before, 90, message=lambda: f"an orphan stays: {p.stored_files()}")


def pages(p, path, **query):
    """The ids or names on each page of a list, as its Link headers lead from one to the next."""
    found, at = [], f"{path}?{urllib.parse.urlencode(query)}"
    while at:
        reply = requests.get(p.url + at, timeout=60)
        assert reply.status_code == 200, reply.text
        found.append([row.get("name") or row["id"] for row in reply.json()])
        at = reply.links["next"]["url"] if "Link" in reply.headers else None
    return found


@case()
def lists_come_page_by_page(p):
    for name in ("e", "a", "d", "b", "c"):
        p.post(f"/function/{name}", json={"model": "lenet5"})
    for name in ("y", "x"):
        p.dataset(name)
    assert pages(p, "/function", limit=2) == [["a", "b"], ["c", "d"], ["e"]]
    assert pages(p, "/function", limit=5) == pages(p, "/function") == [["a", "b", "c", "d", "e"]]
    assert pages(p, "/function", limit=1, **{"continue": "bb"}) == [["c"], ["d"], ["e"]]
    assert pages(p, "/function", **{"continue": "e"}) == [[]]
    assert pages(p, "/dataset", limit=1) == [["x"], ["y"]]
    ended = [p.succeed(p.train("a", "x", epochs=1, default_parallelism=1))["id"] for _ in range(3)]
    long = p.train(p.paced(), "x", epochs=50000)
    until(lambda: long in sum(pages(p, "/history"), []), 30)  # a running job stands there from its first epoch on
    assert pages(p, "/history", limit=2) == [sorted([long, *ended])[:2], sorted([long, *ended])[2:]]
    assert pages(p, "/tasks", state="ended", limit=2) == [sorted(ended)[:2], sorted(ended)[2:]]
    assert pages(p, "/tasks", limit=1) == [[long]]
    first, *rest = pages(p, "/tasks", state="all", limit=2)  # what has not ended comes first, all of it
    assert first == [long, *sorted(ended)[:2]] and sum(rest, []) == sorted(ended)[2:], (first, rest)
    for wrong in ("limit=0", "limit=1001", "limit=-1", "limit=x", "limit=", "limit=%201", "continue=", "continue=../x"):
        for path in ("/function", "/dataset", "/history", "/tasks"):
            assert wrong.split("=")[0] in p.get(f"{path}?{wrong}", 400)["detail"]


@case()
def logs_are_followed(p):
    p.dataset()
    p.function()
    job = p.train(epochs=20)
    with requests.get(p.url + f"/tasks/{job}/logs?follow=true", stream=True, timeout=60) as reply:
        lines = list(reply.iter_lines(decode_unicode=True))
    assert any("function-0" in line and "joined" in line for line in lines), lines
    assert any(line.startswith("ps") and "finished" in line for line in lines), lines


@case(platform=False)
def a_log_is_followed_of_a_job_that_ends_meanwhile():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder, \
            concurrent.futures.ThreadPoolExecutor(1) as beside:
        asked = pathlib.Path(folder) / "asked"
        with harness.Platform(env={"KUBEML_FAILPOINT": "controller.follow-logs:1:wait",
                                   "KUBEML_FAILPOINT_FILE": str(asked)}) as p:
            p.dataset()
            p.function()
            job = p.train(epochs=50000)
            followed = beside.submit(p.get, f"/tasks/{job}/logs?follow=true")
            until(asked.exists)
            try:
                p.delete(f"/tasks/{job}")
                p.wait(job)
            finally:
                asked.unlink()
            log = followed.result().decode()
            assert log == p.get(f"/tasks/{job}/logs").decode() and "finished: state=cancelled" in log, log


@case()
def a_long_log_is_followed_from_its_beginning(p):
    """Longer than what is held for a client that has not read it yet; and of a job's runs before, too."""
    p.dataset()
    p.function("talks", harness.talking_code(20000))
    job = p.train(function="talks", epochs=50000, default_parallelism=1)
    until(lambda: p.task(job)["epoch"] >= 1)

    def follow():
        """Its lines up to the last one, which comes again when the job is resumed."""
        lines = []
        with requests.get(p.url + f"/tasks/{job}/logs?follow=true", stream=True, timeout=60) as reply:
            for line in reply.iter_lines(decode_unicode=True):
                found = re.search(r"\| line (\d{5}) ", line)
                if found and (not lines or lines[-1] < 19999):
                    lines.append(int(found[1]))
                    if lines[-1] == 19999:
                        p.post(f"/tasks/{job}/suspend")
        return lines
    assert follow() == list(range(20000))
    p.wait(job)
    p.post(f"/tasks/{job}/resume")
    until(lambda: p.task(job)["state"] == "running")
    again = follow()
    assert again == list(range(20000 - len(again), 20000)), (again[:5], again[-5:])
    assert len(again) == 20000 or harness.another_platform and len(again) > 2000  # a cluster keeps less of a pod that is gone
    p.delete(f"/tasks/{job}")


@case(platform=False)
def requests_for_jobs_leave_room_for_others():
    """Code that says nothing when it is asked for its network is waited for by each who trains with it at the same time."""
    harness.code_is_asked()
    code = harness.LENET.read_text().replace("#include <kubeml.h>", "#include <kubeml.h>\n#include <unistd.h>")
    code = code.replace("    x = kml_relu", "    sleep(60);\n    x = kml_relu", 1)
    with harness.Platform() as p, concurrent.futures.ThreadPoolExecutor(40) as beside:
        p.dataset()
        p.function("silent", code)

        def asked():
            return sum(" fit " in line for _, line in harness.processes_of(harness.BIN / "kubeml-function"))
        trains = [beside.submit(p.train, "silent") for _ in range(40)]
        until(lambda: asked() >= 12, every=0.01)
        assert p.get("/health") == {"status": "ok"}
        assert not any(t.done() for t in trains), "it was waited for"
        for job in {t.result() for t in trains}:
            p.delete(f"/tasks/{job}")


@case(platform=False, limit=90)
def an_elastic_job_gives_back_what_it_grew():
    """Who waits need not wait for the end of a job that took all there was."""
    with harness.Platform("--slots", "4") as p:
        p.dataset()
        grown = p.train(p.paced(), epochs=50000, static_parallelism=False)
        until(lambda: p.task(grown)["parallelism"] == 4)
        p.succeed(p.train("paced", epochs=1))
        assert p.task(grown)["state"] == "running"
        p.delete(f"/tasks/{grown}")
        p.wait(grown)
        parallelism = p.get(f"/history/{grown}")["data"]["parallelism"]
        assert parallelism[0] == 2 and 2 in parallelism[parallelism.index(4):], parallelism


@case()
def a_stream_too_many_is_refused_with_its_cause(p):
    """And not opened, only to be empty: who follows would take that for the job's end."""
    p.dataset()
    job = p.train(p.paced(), epochs=50000)
    until(lambda: p.task(job)["epoch"] >= 1)

    def follow():
        return p.ask("GET", f"/tasks/{job}/events", 200, stream=True, timeout=60)
    with contextlib.ExitStack() as opened:
        for _ in range(512):
            assert opened.enter_context(follow()).status_code == 200
        for what in ("events", "logs?follow=true"):
            assert "512 streams are open" in p.get(f"/tasks/{job}/{what}", 503)["detail"]
        said = subprocess.run([str(harness.BIN / "kubeml"), "logs", "-f", job], env={**os.environ, **p.environment()},
                              capture_output=True, text=True, timeout=60)
        assert said.returncode != 0 and "512 streams are open" in said.stderr, said
        assert p.get(f"/tasks/{job}/logs"), "what is not followed needs no place"
    # A client that is gone is noticed when something is said.
    def again():
        with follow() as reply:
            return reply.status_code == 200
    until(again, 60)
    p.delete(f"/tasks/{job}")


@case(platform=False)
def a_quiet_log_that_nobody_follows_any_more_gives_its_place_back():
    """Nothing is written to it by which it would show that its client left."""
    with harness.Platform("--slots", "1") as p:
        p.dataset()
        first = p.train(p.paced(), epochs=50000, default_parallelism=1)
        waits = p.train("paced", epochs=50000, default_parallelism=1)

        def follow():
            with p.ask("GET", f"/tasks/{waits}/logs?follow=true", None, stream=True, timeout=60) as reply:
                return reply.status_code == 200
        for _ in range(513):
            follow()
        until(follow)
        for job in (waits, first):
            p.delete(f"/tasks/{job}")


@case(platform=False)
def a_log_is_read_beside_all_else():
    """Megabytes, or an API server that is slow to give them: jobs begin and end meanwhile."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder, \
            concurrent.futures.ThreadPoolExecutor(1) as beside:
        asked = pathlib.Path(folder) / "asked"
        with harness.Platform(env={"KUBEML_FAILPOINT": "controller.read-logs:1:wait",
                                   "KUBEML_FAILPOINT_FILE": str(asked)}) as p:
            p.dataset()
            p.function()
            job = p.train(p.paced(), epochs=50000)
            until(lambda: p.task(job)["epoch"] >= 1)
            log = beside.submit(p.get, f"/tasks/{job}/logs")
            until(asked.exists)
            try:
                second = p.train(epochs=1)
                until(lambda: p.task(second)["epoch"] >= 1)
                p.delete(f"/tasks/{job}")
                until(lambda: p.task(job)["state"] == "cancelled")
                assert not log.done()
            finally:
                asked.unlink()
            assert "joined" in log.result().decode()
            assert "finished: state=cancelled" in p.get(f"/tasks/{job}/logs?follow=true").decode()


@case()
def logs_that_nobody_reads_have_a_limit(p):
    """All that is held for those who asked for them: then it is said that there are too many."""
    p.dataset()
    p.function("talks", harness.talking_code(40000))
    job = p.train("talks", epochs=50000, default_parallelism=4)
    until(lambda: p.task(job)["epoch"] >= 1)
    size = len(p.get(f"/tasks/{job}/logs"))
    assert size > 4 * (4 << 20), size

    # Who takes nothing for a minute is let go: each takes a little while the next are served.
    opened = []
    with contextlib.ExitStack() as ends:
        while True:
            reply = ends.enter_context(p.ask("GET", f"/tasks/{job}/logs", 200, stream=True, timeout=60 * harness.STRETCH))
            if reply.status_code != 200:
                break
            opened.append(reply)
            assert len(opened) <= (256 << 20) // size + 2, (len(opened), size)
            for r in opened:
                assert len(r.raw.read(128 << 10)) == 128 << 10, "it was ended"
        assert reply.status_code == 503 and "are held for others" in reply.json()["detail"], reply.text
        assert len(opened) >= 10, len(opened)
    until(lambda: p.ask("GET", f"/tasks/{job}/logs", 200, timeout=60).status_code == 200)
    p.delete(f"/tasks/{job}")


@case()
def a_log_does_not_tell_of_ends_that_were_asked_for(p):
    p.dataset()
    p.function()
    job = p.train(epochs=3)
    p.get(f"/tasks/{job}/logs?follow=true")  # to the end of its last process
    log = p.get(f"/tasks/{job}/logs").decode()
    assert "finished: state=succeeded" in log.splitlines()[-1], log
    for words in ("ended:", "closed by the peer", "by a signal", "asked to"):
        assert words not in log, (words, log)


@case()
def metrics_have_kubemls_names(p):
    p.dataset()
    p.function()
    cancelled = p.metric('kubeml_jobs_total{state="cancelled"}') or 0
    job = p.train(epochs=50000)
    until(lambda: p.task(job)["epoch"] >= 1)
    for name in ("validation_loss", "validation_accuracy", "train_loss", "parallelism", "epoch_duration_seconds"):
        assert p.metric(f'kubeml_job_{name}{{jobid="{job}"}}') is not None, name
    stage = {name: p.metric(f'kubeml_job_stage_seconds{{jobid="{job}",stage="{name}"}}')
             for name in ("fetch", "load", "convert", "train", "publish", "merge", "validate", "checkpoint")}
    assert all(seconds is not None for seconds in stage.values()) and stage["train"] > 0, stage
    assert p.metric('kubeml_job_running_total{type="train"}') == 1
    p.delete(f"/tasks/{job}")
    p.wait(job)
    until(lambda: p.metric('kubeml_jobs_total{state="cancelled"}') == cancelled + 1)


@case()
def unknown_methods_are_counted_together(p):
    """Anybody may send them, without a token too: each as a label of its own would be memory, and no room for others."""
    def count(method):  # by the controller that answers these requests too, and need not be the one that leads
        return harness.metric_in(p.get("/metrics").decode(), "kubeml_http_requests_total"
                                 f'{{method="{method}",path="other",status="404"}}') or 0
    before = count("other")
    for method in ("BREW", "M0", "PURGE"):
        assert requests.request(method, p.url + "/zzz", timeout=60).status_code == 404
    until(lambda: count("other") == before + 3)
    assert count("BREW") == count("M0") == count("PURGE") == 0
    requests.head(p.url + "/zzz", timeout=60)
    until(lambda: count("HEAD") == 1)


def nodes(at, path=""):
    """All mappings of a document, with where each stands."""
    if isinstance(at, dict):
        yield path, at
    for key, value in at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ():
        yield from nodes(value, f"{path}/{key}")


@case(platform=False)
def openapi_is_of_the_version_it_says():
    """3.0.3: what came with 3.1 is refused by the tools that generate clients from it."""
    document = yaml.safe_load((harness.ROOT / "docs/openapi.yaml").read_text())
    assert document["openapi"] == "3.0.3" and set(document["info"]["license"]) <= {"name", "url"}, document["info"]
    types = {"object", "array", "string", "number", "integer", "boolean"}
    for path, node in nodes(document["components"]["schemas"]):
        named = not path.endswith("/properties")  # there `type` and `nullable` are properties' names
        assert not named or "type" not in node or node["type"] in types, (path, node)
        assert not named or "nullable" not in node or "type" in node, (path, node)
        assert "$ref" not in node or len(node) == 1, (path, node)


@case()
def a_gpu_memory_is_taken_where_openapi_takes_it(p):
    said = re.compile(schemas()["GpuShare"]["properties"]["memory"]["pattern"])
    for text in ("2Gi", "1.5Gi", "0.25Ti", "512Mi", "1048576Ki", "1073741824", "2GB", "-1", "0", "0Gi", "1e9", ".5Gi", "1,5Gi", ""):
        p.post("/train", 404 if said.fullmatch(text) else 400, json={
            "function_name": "none", "dataset": "none", "epochs": 1, "batch_size": 1, "lr": 0.1, "options": {"gpu": {"memory": text}}})


@case(limit=400, options=("--slots", "256"))  # a schema knows no slots: more static functions than there are would be refused
def the_server_keeps_openapi(p):
    st = harness.ROOT / "build/schemathesis/bin/st"
    if not st.exists():
        made = subprocess.run(f"{sys.executable} -m venv {st.parents[1]} && {st.parent}/pip -q install "
                              f"'schemathesis==4.32.*'", shell=True, capture_output=True, text=True)
        if made.returncode:
            shutil.rmtree(st.parents[1], ignore_errors=True)
            harness.skip("schemathesis cannot be installed: " + made.stderr.strip().splitlines()[-1])
    p.dataset()
    p.function()
    p.succeed(p.train(epochs=1))
    done = subprocess.run([str(st), "--config-file", str(REST / "schemathesis.toml"), "run",
                           str(harness.ROOT / "docs/openapi.yaml"), "--url", p.url, "--checks", "all",
                           "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "20"],
                          capture_output=True, text=True, timeout=390 * harness.STRETCH, cwd=p.folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert p.get("/health") == {"status": "ok"}


if __name__ == "__main__":
    harness.main(globals())
