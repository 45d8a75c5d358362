#!/usr/bin/env python3
"""The API: cases as data (test/rest/*.json), and what each of its resources takes, gives and refuses."""
import gzip
import io
import json
import pathlib
import pickle
import re
import shutil
import socket
import subprocess
import sys
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
    return yaml.safe_load((harness.ROOT / "docs/reference/openapi.yaml").read_text())["components"]["schemas"]


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


@case(limit=90)
def the_first_kubemls_client_finds_what_it_reads(p):
    """Its structs of ml/pkg/api/types.go, and its calls of ml/pkg/controller/client/v1."""
    p.dataset()
    p.function()
    ended = [p.succeed(p.train(epochs=1))["id"] for _ in range(2)]
    job = p.train(p.paced(), epochs=50000, static_parallelism=True)
    until(lambda: p.task(job)["epoch"] >= 1)
    task, = p.get("/tasks")
    assert task["job"]["id"] == job and task["job"]["state"]["parallelism"] == task["parallelism"] > 0, task
    assert task["job"]["state"]["elapsed_time"] > 0, task
    for key in ("batch_size", "epochs", "dataset", "lr", "function_name", "options"):
        assert key in task["request"], task
    for key in ("default_parallelism", "static_parallelism", "validate_every", "k", "goal_accuracy"):
        assert key in task["request"]["options"], task
    said = p.delete("/history")["result"]
    assert said == f"2 histories deleted, 1 kept: job {job} has not ended", said
    for id in ended:
        for path in (f"/history/{id}", f"/tasks/{id}", f"/model/{id}"):
            p.get(path, 404)
    p.delete(f"/tasks/{job}")
    p.wait(job)
    assert p.delete("/history")["result"] == "1 history deleted" and p.get("/history") == []
    assert p.delete("/history")["result"] == "0 histories deleted"


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
            ("new", {"x-train": pickle.dumps({"data": images})}, 422, ["x-train", "np.load(\"f\""]),
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
    assert p.metric('kubeml_jobs_total{state="cancelled"}') == cancelled + 1


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
    document = yaml.safe_load((harness.ROOT / "docs/reference/openapi.yaml").read_text())
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
                           str(harness.ROOT / "docs/reference/openapi.yaml"), "--url", p.url, "--checks", "all",
                           "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "20"],
                          capture_output=True, text=True, timeout=390 * harness.STRETCH, cwd=p.folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert p.get("/health") == {"status": "ok"}


if __name__ == "__main__":
    harness.main(globals())
