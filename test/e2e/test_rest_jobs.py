#!/usr/bin/env python3
"""Jobs through the API: suspended, resumed, stopped and deleted, what they hold meanwhile, and how they wait for each other."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import tempfile

import requests

import harness
from harness import case, until


@case()
def a_start_ends_with_the_first_trained_batch(p):
    p.dataset()
    start = p.succeed(p.train(p.paced(0.5), epochs=1, batch_size=512, default_parallelism=1))["start_ms"]
    assert start["training"] >= 500, start
    assert start["total"] == sum(start[part] for part in ("queued", "ps", "functions", "training")), start


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
    before = p.post("/infer", json=infer)["logits"]
    p.post(f"/tasks/{job}/resume")
    for path, body in (("/infer", infer), ("/train", begin)):
        assert f"job {job} still runs" in p.post(path, 409, json=body)["error"]
    until(lambda: p.task(job)["epoch"] > suspended)
    assert epochs() > suspended
    for path, body in (("/infer", infer), ("/train", begin)):
        assert f"job {job} still runs" in p.post(path, 409, json=body)["error"]
    until(fails, 60, message="it does not fail, whoever is killed")
    assert epochs() >= p.task(job)["epoch"] > suspended
    assert p.post("/infer", json=infer)["logits"] != before
    p.succeed(p.post("/train", json=begin)["id"])


@case()
def a_job_that_failed_leaves_its_newest_checkpoint(p):
    """To look at, and to begin another job with; one that failed before its first has no model."""
    p.dataset()
    infer = {"data": [[[[0] * 28] * 28]]}
    begin = {"dataset": "tiny", "function_name": "fails-in-2", "epochs": 1, "batch_size": 32, "lr": 1e-30,
             "options": {"default_parallelism": 1, "static_parallelism": True}}

    def fails_in(epoch):
        p.function(f"fails-in-{epoch}", f"""#include <kubeml.h>

static kml_tensor model(kml_graph *g, kml_tensor x)
{{
    return kml_linear(g, kml_flatten(g, x), 10);
}}

static int step(kml_step *s)
{{
    if (kml_epoch(s) == {epoch})
        return kml_step_fail(s, "as it was asked"), -1;
    return kml_gradients(s) ? -1 : kml_update(s, kml_learning_rate(s));
}}

KUBEML_FUNCTION(.model = model, .step = step);
""")
        job = p.train(f"fails-in-{epoch}", epochs=5, default_parallelism=1)
        task = p.wait(job)
        assert task["state"] == "failed" and task["epoch"] == epoch, task
        return job

    def weights(job):
        model = p.get(f"/model/{job}")
        return model[8 + int.from_bytes(model[:8], "little"):]
    job = fails_in(2)
    logits = p.post("/infer", json={**infer, "model_id": job})["logits"]
    for init in (job, f"models/{job}/final"):
        same = p.post("/train", json={**begin, "init": init})["id"]  # by a learning rate that changes nothing
        p.succeed(same)
        assert weights(same) == weights(job)
        assert p.post("/infer", json={**infer, "model_id": same})["logits"] == logits
    job = fails_in(0)
    assert f'no trained model "{job}"' in p.post("/infer", 404, json={**infer, "model_id": job})["error"]
    assert f'no model "{job}"' in p.post("/train", 404, json={**begin, "init": job})["error"]


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
    p.warm(2, 1)
    job = p.train(epochs=50000, active_deadline_seconds=3, backoff_limit=2)
    until(lambda: p.task(job)["state"] == "running")
    pod = p.pod(job=job, role="function", function=0)["pid"]
    os.kill(pod, signal.SIGSTOP)  # its end, and with it that of the job's pods, takes a while
    task = p.wait(job)
    history, failed = p.get(f"/history/{job}"), p.metric('kubeml_jobs_total{state="failed"}')
    assert harness.alive(pod), "all of this is said at once"
    assert task["state"] == "failed" and task["reason"] == "DeadlineExceeded", task
    assert task["request"]["options"]["backoff_limit"] == 2, task
    # kubeml-ps was told to stop, no more: the controller's word is in the history before it is told.
    assert [history[k] for k in ("state", "reason", "message")] == [task[k] for k in ("state", "reason", "message")], history
    assert failed == 1


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


@case()
def a_stopped_job_goes_on_or_goes_as_soon_as_it_has_ended(p):
    """Though its kubeml-ps has not ended yet, and here ends by being killed."""
    p.dataset()
    paced = p.paced()
    jobs = [p.train(paced, epochs=50000, default_parallelism=1) for _ in range(2)]
    for job in jobs:
        until(lambda job=job: p.task(job)["epoch"] >= 1)
        os.kill(p.pod(job=job, role="ps")["pid"], signal.SIGSTOP)
        p.delete(f"/tasks/{job}")
    resumed, deleted = jobs
    with concurrent.futures.ThreadPoolExecutor(2) as beside:
        list(beside.map(lambda ask: ask(), (lambda: p.post(f"/tasks/{resumed}/resume"), lambda: p.delete(f"/history/{deleted}"))))
    until(lambda: p.task(resumed)["state"] == "running")
    p.get(f"/tasks/{deleted}", 404)


@case(platform=False)
def what_has_ended_is_listed_so_while_its_log_is_put_away():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder:
        reading = pathlib.Path(folder) / "reading"
        with harness.Platform(env={"KUBEML_FAILPOINT": "controller.read-logs:1:wait",
                                   "KUBEML_FAILPOINT_FILE": str(reading)}) as p:
            p.dataset()
            p.function()
            job = p.train(epochs=1)
            until(reading.exists)
            try:
                assert p.task(job)["state"] == "succeeded", "it is said already"
                assert p.get("/tasks") == []
                for state in ("ended", "all"):
                    task, = p.get("/tasks", params={"state": state})
                    assert (task["id"], task["state"]) == (job, "succeeded"), task
            finally:
                reading.unlink()


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


if __name__ == "__main__":
    harness.main(globals())
