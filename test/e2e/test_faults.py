#!/usr/bin/python3
"""Faults on the whole platform: what is killed, when, and that the job ends with the same weights.

Function pods share one environment; KUBEML_FAILPOINT arms a place in their code, and the marker file
lets exactly one of them die there and proves that it did (common/base/failpoint.h).
"""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import tempfile
import threading
import time

import requests

import harness
from harness import case, until

EPOCHS = 3
KILLS = harness.times(5)


def failpoint_platform(point):
    """A platform whose functions are armed, and the marker."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    marker = folder / "fired"
    return harness.Platform(home=str(folder), env={
        "KUBEML_FAILPOINT": point, "KUBEML_FAILPOINT_FILE": str(marker)}), marker


def clean_sha(**options):
    """The weights of the job without any fault."""
    with harness.Platform() as p:
        p.dataset()
        p.function()
        return p.succeed(p.train(epochs=EPOCHS, **options))["sha256"]


def killed_in(phase, *passages, **options):
    """KILLS jobs, each with one function killed in that phase, at one of its passages after the other."""
    options = {"k": 2, "default_parallelism": 2, **options}
    want = clean_sha(**options)
    p, marker = failpoint_platform("")
    for i in range(KILLS):
        at = f"function.{phase}:{passages[i % len(passages)]}"
        marker.unlink(missing_ok=True)
        p.env["KUBEML_FAILPOINT"] = at  # the only place where a process of this platform can fire
        with p:
            if i == 0:
                p.dataset()
                p.function()
            task = p.succeed(p.train(epochs=EPOCHS, **options))
            assert marker.exists(), f"no function was killed at {at}"
            assert marker.read_text().split()[0] == f"function.{phase}", marker.read_text()
            assert task["sha256"] == want, f"killed at {at}: other weights"
            lost = [c for c in task["conditions"] if c["type"] == "FunctionLost"]
            assert lost, task["conditions"]


@case(limit=90, platform=False)
def an_epoch_that_nobody_could_be_told_is_shown():
    """kubeml-ps died when the last epoch stood in the history, and before it told the controller."""
    p, marker = failpoint_platform(f"after-history:{EPOCHS}")
    with p:
        p.dataset()
        p.function()
        job = p.train(epochs=EPOCHS)
        task, told = p.succeed(job), p.get(f"/history/{job}")["data"]
        assert marker.read_text().split()[0] == "after-history", "kubeml-ps was not killed"
        assert task["epoch"] == EPOCHS == len(told["accuracy"]), task
        assert all(task[key] == told[key][-1] for key in ("train_loss", "validation_loss", "accuracy")), (task, told)
        assert [e["epoch"] for name, e in p.events(job) if name == "epoch"] == [1, 2, 3]


@case(limit=90, platform=False)
def an_epoch_that_nobody_could_be_told_is_followed_by_the_next():
    """kubeml-ps died in the middle of a job, behind an epoch's checkpoint: the next one tells only those that it trains."""
    p, marker = failpoint_platform("after-checkpoint:2")
    with p:
        p.dataset()
        p.function()
        job = p.train(epochs=5)
        live = [e["epoch"] for name, e in p.events(job) if name == "epoch"]
        p.succeed(job)
        assert marker.read_text().split()[0] == "after-checkpoint", "kubeml-ps was not killed"
        assert live == [1, 2, 3, 4, 5] == [e["epoch"] for name, e in p.events(job) if name == "epoch"], live


@case(limit=90)
def epochs_that_are_trained_while_no_controller_is_there_are_counted(p):
    """At once, and not with the next one: the job may have none."""
    p.dataset()
    job = p.train(p.paced(2), epochs=6, batch_size=512, default_parallelism=1)
    until(lambda: p.task(job)["epoch"] >= 1)
    function = p.pod(job=job, role="function")["pid"]
    p.kill()
    pods = p.folder / "home/run/pods"
    until(lambda: any(b"epoch 2 of 6" in f.read_bytes() for f in pods.rglob("ps-*.log")))
    os.kill(function, signal.SIGKILL)  # so that there is time until the next one
    p.start()
    assert until(lambda: (n := p.task(job)["epoch"]) > 1 and n) == 2
    p.delete(f"/tasks/{job}")
    p.wait(job)


@case(limit=120, platform=False)
def a_function_killed_while_it_loads():
    killed_in("load", 1)


@case(limit=120, platform=False)
def a_function_killed_while_it_fetches():
    killed_in("fetch", 3, 1, 2, 4, 6)


@case(limit=120, platform=False)
def a_function_killed_while_it_trains():
    killed_in("train", 4, 1, 2, 3, 9)


@case(limit=120, platform=False)
def a_function_killed_half_way_through_a_publish():
    killed_in("publish", 3, 1, 2, 4, 6)


@case(limit=120, platform=False)
def a_function_killed_while_it_waits():
    killed_in("wait", 3, 1, 2, 4, 6)


@case(limit=120, platform=False)
def a_function_killed_while_it_validates():
    killed_in("validate", 2, 1, 3)


@case(limit=120, platform=False)
def a_function_killed_under_a_server_merge():
    killed_in("publish", 2, 1, 3, 4, 6, merge="server")


@case(limit=120)
def every_process_of_a_job_killed_at_random_places(p):
    """kill -9 of functions, kubeml-ps and its Redis, one after the other, at every epoch reached."""
    p.dataset()
    p.function()
    options = {"epochs": 24, "k": 2, "default_parallelism": 3}
    want = p.succeed(p.train(**options))["sha256"]
    job = p.train(p.paced(), **options)
    victims = [dict(role="function", function=0), dict(role="function", function=2), dict(role="ps"),
               dict(role="function", function=1)]
    for i, victim in enumerate(victims):
        until(lambda: p.task(job)["epoch"] >= 2 * i + 1)
        pod = p.pod(job=job, **victim)
        os.kill(pod["pid"], signal.SIGKILL)
        until(lambda: not harness.alive(pod["pid"]))
    task = p.succeed(job)
    assert task["sha256"] == want, "other weights than without the kills"
    kinds = {c["type"] for c in task["conditions"]}
    assert "FunctionLost" in kinds and "PSRestarted" in kinds, task["conditions"]
    until(lambda: not p.pods(job=job), message="pods of an ended job")


@case(limit=120)
def redis_killed(p):
    p.dataset()
    p.function()
    want = p.succeed(p.train(epochs=8, k=2))["sha256"]
    job = p.train(p.paced(), epochs=8, k=2)
    until(lambda: p.task(job)["epoch"] >= 2)
    os.kill(p.redis(job), signal.SIGKILL)
    assert p.succeed(job)["sha256"] == want


@case(limit=120)
def a_function_is_stopped_and_goes_on(p):
    """SIGSTOP: the job names the straggler, replaces it in time, and the late one changes nothing."""
    p.dataset()
    p.function()
    want = p.succeed(p.train(epochs=6, k=2))["sha256"]
    job = p.train(p.paced(), epochs=6, k=2)
    until(lambda: p.task(job)["epoch"] >= 1)
    frozen = p.pod(job=job, role="function", function=1)
    os.kill(frozen["pid"], signal.SIGSTOP)
    until(lambda: p.task(job)["epoch"] >= 3 or p.task(job)["state"] == "succeeded", 60)
    if harness.alive(frozen["pid"]):
        os.kill(frozen["pid"], signal.SIGCONT)
    assert p.succeed(job)["sha256"] == want


@case(limit=400, options=("--slots", "6"))
def what_stands_still_for_good_is_replaced(p):
    """SIGSTOP of kubeml-ps, of another job's Redis, and for half a minute of a third job's both. So long it takes: 120 s."""
    p.dataset()
    p.function()
    options = {"epochs": 40, "k": 2, "default_parallelism": 2}
    want = p.succeed(p.train(**options))["sha256"]
    paced = p.paced()
    hangs, lacks, waits = (p.train(paced, **options) for _ in range(3))
    for job in (hangs, lacks, waits):
        until(lambda: p.task(job)["epoch"] >= 2)
    redis, while_stopped = p.redis(lacks), [p.redis(waits), p.pod(job=waits, role="ps")["pid"]]
    ps = p.pod(job=hangs, role="ps")["pid"]
    for pid in (ps, redis, *while_stopped):
        os.kill(pid, signal.SIGSTOP)
    assert all(p.task(job)["state"] == "running" for job in (hangs, lacks, waits)), "they had ended: this case shows nothing"
    time.sleep(30)  # that long it is to be borne
    for pid in while_stopped:
        os.kill(pid, signal.SIGCONT)
    assert p.succeed(waits)["sha256"] == want
    assert not {c["type"] for c in p.task(waits)["conditions"]} & {"RedisGone", "PSRestarted"}, p.task(waits)
    assert p.succeed(lacks, 90)["sha256"] == want
    assert not harness.alive(redis) and "answered nothing for 45 s: killed" in p.get(f"/tasks/{lacks}/logs").decode()
    why = until(lambda: (w := p.get(f"/tasks/{hangs}/explain"))["reason"] == "PSRestarted" and w, 120)
    assert "it said nothing for 120 s" in why["message"], why
    assert not harness.alive(ps)
    assert p.succeed(hangs)["sha256"] == want, "other weights than undisturbed"


@case(limit=180)
def the_controller_killed_in_every_state(p):
    """Killed five times while one job runs and one waits; nothing is lost, nothing doubled."""
    p.dataset()
    p.function()
    want = p.succeed(p.train(epochs=20, k=2))["sha256"]
    job = p.train(p.paced(), epochs=20, k=2)
    waits = p.train(epochs=1, default_parallelism=4, active_deadline_seconds=3600)
    for i in range(KILLS):
        until(lambda: p.task(job)["epoch"] >= 2 * i)
        p.kill()
        p.start()
    assert p.succeed(job)["sha256"] == want
    assert p.succeed(waits)["started"], "when it began is not known"
    history = p.get(f"/history/{job}")["data"]
    assert len(history["accuracy"]) == 20, history


@case(limit=120, platform=False)
def the_controller_killed_while_a_function_loads():
    """Three times: the next one cannot talk to it, and starts another. That is no fault of the function's."""
    p, marker = failpoint_platform("function.load:1:stop")
    with p:
        p.dataset()
        p.function()
        job = p.train(epochs=1, default_parallelism=1)
        for left in (2, 1, 0):
            until(marker.exists, message="no function loads")
            p.kill()
            if left:
                marker.unlink()  # so that the next one stops there, too
            p.start()
        task = p.succeed(job)
        assert [c["reason"] for c in task["conditions"] if c["type"] == "FunctionLost"] == ["Replaced"], task
        log = p.get(f"/tasks/{job}/logs").decode()
        assert log.count(" ended: ControllerRestarted: ") == 3, log


@case()
def a_job_ends_while_no_controller_is_there(p):
    """The next one finds its end, once: the record says so, to who follows it too, and later starts change nothing."""
    p.dataset()
    p.function()
    job = p.train(p.paced(), epochs=10)
    until(lambda: p.task(job)["epoch"] >= 1)
    p.kill()
    pods = p.folder / "home/run/pods"
    until(lambda: any(b"finished: state=succeeded" in f.read_bytes() for f in pods.rglob("*.log")))
    p.start()
    task = p.wait(job)
    assert task["state"] == "succeeded", task
    assert b'"state":"succeeded"' in p.get(f"/tasks/{job}/events").splitlines()[-2], p.get(f"/tasks/{job}/events")
    p.stop()
    p.start()
    assert p.task(job)["finished"] == task["finished"], (p.task(job), task)


def waits_to_be_tried_again(p, job):
    """Its explanation while it waits for its next try; None."""
    why = p.get(f"/tasks/{job}/explain")
    return why if why["reason"] == "Retrying" else None


def processor_of(p, job):
    """What /metrics has of its first function; None: nothing."""
    return p.metric(f'kubeml_function_cpu_percent{{jobid="{job}",function="0"}}')


@case(limit=150)
def a_failed_job_goes_on_from_its_checkpoint(p):
    """A function is killed whenever it is there, until the job fails by it; at the next try nobody kills."""
    p.dataset()
    p.function()
    options = {"epochs": 3, "k": 2, "seed": 8}
    want = p.succeed(p.train(**options))["sha256"]
    job = p.train(p.paced(0.3), backoff_limit=2, **options)
    until(lambda: p.task(job)["epoch"] >= 1 and p.get("/usage") and processor_of(p, job) is not None)

    def fails():
        for pod in p.pods(job=job, role="function", function=1):
            with contextlib.suppress(ProcessLookupError):
                if pod["pid"]:
                    os.kill(pod["pid"], signal.SIGKILL)
        return waits_to_be_tried_again(p, job)
    why = until(fails, 60, message="it does not fail, whoever is killed")
    assert "retry 1 of 2 in " in why["message"] and "Crashed: function 1" in why["message"], why
    assert p.task(job)["state"] == "queued" and p.task(job)["retries"] == 1, p.task(job)
    assert p.get("/usage") == [] and processor_of(p, job) is None, "of functions that are gone"
    until(lambda: not p.pods(job=job), message="it waits, and keeps its pods")
    until(lambda: not waits_to_be_tried_again(p, job), 30)
    until(lambda: p.task(job)["message"].endswith("; retry 1 of 2"), message="it does not say which try this is")
    task = p.succeed(job)
    assert task["sha256"] == want, "other weights than without the failure"
    assert task["retries"] == 1 and "Resumed" in {c["type"] for c in task["conditions"]}, task
    assert len(p.get(f"/history/{job}")["data"]["accuracy"]) == 3
    until(lambda: not p.pods(job=job), message="pods of an ended job")


# Lr turns it into no number at the second batch; a batch takes a while, so that it is there when it is looked for.
DIVERGES = """#define _POSIX_C_SOURCE 200809L
#include <kubeml.h>
#include <time.h>

static kml_tensor model(kml_graph *g, kml_tensor x)
{
    return kml_linear(g, kml_flatten(g, x), 10);
}

static int step(kml_step *s)
{
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    return kml_gradients(s) ? -1 : kml_update(s, 1e38);
}

KUBEML_FUNCTION(.model = model, .optimizer = kml_sgd(.momentum = 0), .step = step);
"""


@case(limit=150, platform=False)
def a_controller_that_comes_back_takes_no_earlier_end_for_this_one():
    """The history tells of the first try's end until the second try's kubeml-ps has begun, which is held up here."""
    with harness.Platform("--pool-ps", "1") as p:
        p.dataset()
        p.function("diverges", DIVERGES)
        job = p.train("diverges", backoff_limit=1, epochs=3)
        until(lambda: waits_to_be_tried_again(p, job), 60)
        assert p.get(f"/history/{job}")["state"] == "failed"
        p.warm(0, 1)
        held = p.pod(role="ps", job="")["pid"]
        os.kill(held, signal.SIGSTOP)
        until(lambda: p.task(job)["state"] == "starting", 30)
        until(lambda: p.pods(job=job, role="ps"), message="the next try has no kubeml-ps")
        p.kill()
        p.start()
        assert p.task(job)["state"] == "starting", p.task(job)
        os.kill(held, signal.SIGCONT)
        until(lambda: p.get(f"/history/{job}")["state"] == "running", message="the second try has not taken the history")
        task = p.wait(job)
        assert task["reason"] == "NaNLoss" and task["message"].endswith("; after 1 of 1 retries"), task


@case(limit=90)
def a_job_suspended_without_a_kubeml_ps_is_suspended_in_its_history(p):
    """It was killed before it could carry that out: the controller says so in its place."""
    p.dataset()
    p.function()
    options = dict(epochs=6, k=2)
    want = p.succeed(p.train(**options))["sha256"]
    job = p.train(p.paced(), **options)
    until(lambda: p.task(job)["epoch"] >= 1)
    ps = p.pod(job=job, role="ps")["pid"]
    os.kill(ps, signal.SIGSTOP)
    p.post(f"/tasks/{job}/suspend")
    os.kill(ps, signal.SIGKILL)
    assert p.wait(job)["state"] == "suspended"
    history = p.get(f"/history/{job}")
    assert (history["state"], history["reason"]) == ("suspended", "Suspended"), history
    p.post(f"/tasks/{job}/resume")
    assert p.succeed(job)["sha256"] == want


@case(limit=90, platform=False)
def a_controller_that_dies_while_it_stops_a_suspended_job_can_stop_it_again():
    p, marker = failpoint_platform("controller.put-ended:1")
    with p:
        p.dataset()
        job = p.train(p.paced(), epochs=50)
        until(lambda: p.task(job)["epoch"] >= 1)
        p.post(f"/tasks/{job}/suspend")
        p.wait(job)
        until(lambda: not p.pods(job=job), message="pods of a suspended job")
        with contextlib.suppress(requests.ConnectionError):
            p.delete(f"/tasks/{job}")
        p.process.wait(20)
        assert marker.exists(), "no controller was killed"
        p.start()
        assert [p.get(f"/{what}/{job}")["state"] for what in ("tasks", "history")] == ["suspended", "cancelled"]
        p.delete(f"/tasks/{job}")
        assert [p.get(f"/{what}/{job}")["state"] for what in ("tasks", "history")] == ["cancelled", "cancelled"]


@case()
def a_job_given_up_leaves_no_segment(p):
    """kubeml-ps killed, the job stopped before another takes its place: nobody but the controller cleans."""
    p.dataset()
    p.function()
    job = p.train(epochs=50000)
    until(lambda: p.task(job)["epoch"] >= 1)
    segments = [f for f in os.listdir("/dev/shm") if job in f]
    assert segments, "the job has its segment"
    ps = p.pod(job=job, role="ps")
    os.kill(ps["pid"], signal.SIGSTOP)  # so that it cannot clean up when it is told to stop
    p.delete(f"/tasks/{job}")
    os.kill(ps["pid"], signal.SIGKILL)
    p.wait(job)
    until(lambda: not [f for f in os.listdir("/dev/shm") if job in f], message="a segment was left behind")


@case(limit=90, platform=False)
def the_log_of_a_deleted_job_stays_away():
    """The next controller puts away what the one before did not come to, while the job is deleted."""
    p, marker = failpoint_platform("controller.read-logs:1:wait")
    with p:
        p.dataset()
        p.function()
        job = p.train(epochs=50000, default_parallelism=1)
        until(lambda: p.task(job)["epoch"] >= 1)
        p.delete(f"/tasks/{job}")
        until(marker.exists, message="its log is not asked for")
        p.kill()
        marker.unlink()
        p.start()
        until(marker.exists, message="the next controller does not ask for it")
        files = p.folder / "home"
        left = [json.loads(f.read_text())["name"] for f in files.glob("run/pods/*.json") if job in f.read_text()]
        assert left, "it has no pods whose log there is"
        p.delete(f"/history/{job}")
        marker.unlink()
        until(lambda: not [f for name in left for f in files.glob(f"run/pods/{name}.*")], 30, message="its pods are not let go")
        assert not [*files.glob(f"store/blobs/logs*{job}*")], "a log that nobody can read or delete"


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@case(limit=120, platform=False)
def a_ps_stopped_in_the_middle_of_a_write_holds_up_only_writes():
    p, marker = failpoint_platform("store-write:3:stop")
    with p:
        p.dataset()
        p.function()
        job = p.train(epochs=50000)
        until(marker.exists, message="kubeml-ps has not written")
        ps = p.pod(job=job, role="ps")
        until(lambda: state_of(ps["pid"]) == "T", message="kubeml-ps is not stopped")
        # It blocks the store's writers until it is given up as silent: a write waits that long or says so.
        reply = p.ask("POST", "/function/other", None, files={"code": ("lenet.c", harness.LENET.read_bytes())})
        assert reply.status_code == 200 or f"process {ps['pid']} is writing" in reply.json()["detail"], reply.text
        p.delete(f"/tasks/{job}")
        p.wait(job)
        until(lambda: not pathlib.Path(f"/proc/{ps['pid']}").exists(), message="kubeml-ps was left stopped")
        p.function("another")
        until(lambda: "cannot be written" not in p.log_text() or "the store answers again" in p.log_text(),
              message="what was kept is not written")
        p.kill()
        p.start()
        assert p.task(job)["state"] == "cancelled", "its end was not written"


@case(limit=90, platform=False)
def what_a_killed_controller_did_not_come_to_is_removed():
    """kubeml-ps is killed with its job, and the controller before it removes the segment that it left: the next one does."""
    p, marker = failpoint_platform("controller.job-done")
    with p:
        p.dataset()
        p.function()
        job = p.train(epochs=50000)

        def segments():
            return [f for f in os.listdir("/dev/shm") if f.startswith(f"kubeml-{job}-")]
        until(segments, message="the job has no segment")
        os.kill(p.pod(job=job, role="ps")["pid"], signal.SIGSTOP)  # it does not end by being asked
        p.delete(f"/tasks/{job}")
        until(marker.exists, 60, message="the job has not ended")
        p.kill()
        assert segments(), "nothing was left behind: this case shows nothing"
        p.start()
        assert p.task(job)["state"] == "cancelled"
        until(lambda: not segments(), message="the segment stays")


@case(limit=120, platform=False)
def an_end_while_a_runtime_does_not_answer():
    """The handler of an inference outlives the wait for handlers: the controller ends as ever, and with status 0."""
    with harness.Platform("--pool-functions", "1", "--pool-ps", "1") as p:
        p.dataset()
        p.function()
        job = p.train(epochs=1, default_parallelism=1)
        p.succeed(job)
        until(lambda: p.get("/ready")["warm_functions"] == len(p.pods(role="function")) == 1, 30)
        os.kill(p.pod(role="function")["pid"], signal.SIGSTOP)

        def infer():
            with contextlib.suppress(requests.ConnectionError):
                p.ask("POST", "/infer", None, json={"model_id": job, "data": [[[0.0] * 28] * 28]})
        asks = threading.Thread(target=infer)
        asks.start()
        until(lambda: len(p.pods(role="function")) == 2, message="the stopped runtime was not taken")
        assert p.stop() == 0, p.log_text()
        asks.join(20 * harness.STRETCH)
        assert not asks.is_alive()


@case(limit=120, platform=False)
def inferences_that_wait_have_a_limit():
    """Runtimes that hang and bodies that are large: what is beyond the limit is told to come again, others are answered."""
    with harness.Platform() as p, concurrent.futures.ThreadPoolExecutor(40) as beside:
        p.dataset()
        p.function()
        job = p.train(epochs=1, default_parallelism=1)
        p.succeed(job)
        asked = json.dumps({"model_id": job, "data": [[[0.0] * 28] * 28]}).ljust(8 << 20).encode()
        headers = {"Content-Type": "application/json"}
        hung, asks = set(), []

        def pause():
            for pod in p.pods(role="function"):
                if pod["pid"] not in hung:
                    hung.add(pod["pid"])
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pod["pid"], signal.SIGSTOP)

        def refused():
            pause()
            return [a.result() for a in asks if a.done() and a.result().status_code == 503]
        until(lambda: p.pods(role="function"), 30)
        pause()
        asks += [beside.submit(p.ask, "POST", "/infer", None, data=asked, headers=headers, timeout=60) for _ in range(40)]
        until(lambda: len(refused()) >= 20, 30)
        assert all("no room for the body" in r.json()["detail"] and r.headers["Retry-After"] for r in refused())
        assert p.get("/health") == {"status": "ok"}
        assert p.train(epochs=1), "it is small"
        assert p.stop() == 0, p.log_text()


@case(platform=False)
def a_runtime_that_ended_while_it_was_idle_costs_no_inference():
    with harness.Platform("--pool-functions", "0", "--pool-ps", "0") as p:
        p.dataset()
        p.function()
        job = p.train(epochs=1, default_parallelism=1)
        p.succeed(job)
        until(lambda: not p.pods(role="function"), message="the job's function has not ended")
        asked = {"model_id": job, "data": [[[0.0] * 28] * 28]}
        want = p.post("/infer", json=asked)
        os.kill(p.pod(role="function")["pid"], signal.SIGKILL)
        until(lambda: not p.pods(role="function"))
        assert p.post("/infer", json=asked) == want


@case(platform=False)
def a_function_that_a_job_grows_by_computes_as_the_others():
    with harness.Platform("--slots", "2") as p:
        p.dataset()
        p.function()
        job = p.train(epochs=3, default_parallelism=1, static_parallelism=False)
        task = p.succeed(job)
        assert p.get(f"/history/{job}")["data"]["parallelism"][:2] == [1, 2]
        assert not [c for c in task["conditions"] if c["type"] == "Exact" and c["status"] == "False"], task


TALKS = """
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void talk(void)
{
    struct stat st;
    static const char said[] = "\\14\\0\\0\\0{\\"type\\":\\"x\\"}";
    static char frames[4096 * (sizeof said - 1)];
    for (int i = 0; i < 4096; i++)
        memcpy(frames + i * (sizeof said - 1), said, sizeof said - 1);
    for (int fd = 3; fd < 64; fd++)
        while (fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) &&
               (send(fd, frames, sizeof frames, MSG_NOSIGNAL) > 0 || errno == EAGAIN))
            ;
}
"""


@case(limit=120)
def code_that_talks_to_the_controller_without_end_ends_its_own_job(p):
    p.dataset()
    p.function()
    code = harness.LENET.read_text().replace("#include <kubeml.h>", "#include <kubeml.h>\n" + TALKS)
    p.function("talks", code.replace("    x = kml_relu", "    talk();\n    x = kml_relu", 1))
    job = p.train("talks", default_parallelism=1)
    p.succeed(p.train())
    task = p.wait(job)
    assert task["state"] == "failed" and 'it says "x", which nobody asked for' in task["message"], task
    assert len(p.log_text()) < 1 << 20, "the log grows by it"


ANSWERS = """
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Four million bytes of objects in the place of "specialised". */
static void answer(void)
{
    static char frame[4 << 20];
    static const char head[] = "{\\"type\\":\\"specialised\\",\\"averaging\\":[{}";
    struct stat st;
    int to = 3;
    while (to < 64 && (fstat(to, &st) != 0 || !S_ISSOCK(st.st_mode)))
        to++;
    if (to == 64)
        return;
    size_t len = 4 + sizeof head - 1;
    memcpy(frame + 4, head, sizeof head - 1);
    for (; len + 5 < sizeof frame; len += 3)
        memcpy(frame + len, ",{}", 3);
    memcpy(frame + len, "]}", 2);
    for (int i = 0; i < 4; i++)
        frame[i] = (char)((len - 2) >> 8 * i & 255);
    for (size_t at = 0; at < len + 2;) {
        ssize_t n = send(to, frame + at, len + 2 - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return;
        at += n > 0 ? (size_t)n : 0;
    }
}
"""


def peak_bytes(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) << 10


@case(limit=120)
def json_of_too_many_values_takes_no_memory(p):
    """Empty objects take 90 times as much as their text: of a request, and of what code says for a function."""
    p.dataset()
    code = harness.LENET.read_text().replace("#include <kubeml.h>", "#include <kubeml.h>\n" + ANSWERS)
    p.function("answers", code.replace("    x = kml_relu", "    answer();\n    x = kml_relu", 1))
    before = peak_bytes(p.process.pid)
    # It joins kubeml-ps meanwhile, and an epoch may be trained before all of that is heard.
    task = p.wait(p.train("answers", epochs=50000, default_parallelism=1))
    assert task["state"] == "failed" and "too many values" in task["message"], task
    body = '{"model_id": "none", "data": [{}%s]}' % (",{}" * (2600 << 10))
    headers = {"Content-Type": "application/json"}
    why = p.post("/infer", status=413, data=body, headers=headers)["detail"]
    assert "too many values" in why, why
    grown = peak_bytes(p.process.pid) - before
    assert grown < 64 << 20 or harness.SANITIZER, f"{grown >> 20} MiB more"


@case(limit=120)
def two_jobs_at_once_do_not_disturb_each_other(p):
    p.dataset()
    p.function()
    want = p.succeed(p.train(epochs=6))["sha256"]
    jobs = [p.train(epochs=6), p.train(epochs=6)]
    assert [p.succeed(job)["sha256"] for job in jobs] == [want, want]


if __name__ == "__main__":
    harness.main(globals())
