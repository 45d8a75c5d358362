"""TrainJobs, Functions and Datasets: what kubectl shows, suspend and delete, deadline and time to live, what is refused;
what stands beside a job, and a model served in a pod."""
import json
import os
import re
import subprocess
import time

import cluster
import release
import test_faults
from cluster import apply, case, harness, kubectl, until

CONDITIONS = {"Accepted", "FunctionsReady", "Training", "Degraded", "Suspended", "Complete", "Failed"}


def trainjob(name, **spec):
    return {"apiVersion": "kubeml.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": {
        "function": "lenet", "dataset": "tiny", "epochs": 2, "batchSize": 32, "lr": 0.01, "parallelism": 2,
        "staticParallelism": True, **spec}}


def found(p, name):
    return next((t for t in cluster.listed("trainjobs", p.ns) if t["metadata"]["name"] == name), None)


def status(p, name):
    return (found(p, name) or {}).get("status", {})


def condition(p, name, kind):
    """(status, reason, message)"""
    return next(((c["status"], c.get("reason"), c.get("message", "")) for c in status(p, name).get("conditions", [])
                 if c["type"] == kind), (None, None, ""))


def holds(p, name, kind, seconds=60, value="True"):
    # What was seen then: it may be gone the next moment.
    return until(lambda: (now := condition(p, name, kind))[0] == value and now, seconds, every=0.1,
                 message=lambda: f"{name} is not {kind}={value}: {json.dumps(status(p, name))}")


def ready(p):
    p.dataset()
    p.function()
    return p


def change_spec(p, name, **fields):
    return kubectl("patch", "trainjob", name, "-n", p.ns, "--type=merge", "-p", json.dumps({"spec": fields}), check=False)


def gone(p, *names):
    for name in names:
        kubectl("delete", "trainjob", name, "-n", p.ns, "--ignore-not-found", "--wait=false", check=False)


@case(limit=300, platform=False)
def made_by_kubectl_and_seen_by_both():
    with release.shared() as p:
        ready(p)
        try:
            apply([trainjob("by-hand", k=8)], p.ns)
            holds(p, "by-hand", "Complete", 90)
            now = found(p, "by-hand")
            assert now["status"]["observedGeneration"] == now["metadata"]["generation"], now
            # Server-side apply: the status has one manager.
            said = [(f["manager"], f["operation"]) for f in now["metadata"]["managedFields"] if f.get("subresource") == "status"]
            assert said == [("kubeml", "Apply")], now["metadata"]["managedFields"]
            assert {c["type"] for c in now["status"]["conditions"]} == CONDITIONS, now["status"]["conditions"]
            assert all(c["reason"] for c in now["status"]["conditions"]), now["status"]["conditions"]
            job = now["status"]["job"]
            assert p.get(f"/tasks/{job}")["state"] == "succeeded"

            # By short name, by category, with its columns, narrow and wide.
            narrow = kubectl("get", "tj", "by-hand", "-n", p.ns).stdout.splitlines()
            assert narrow[0].split() == ["NAME", "STATE", "EPOCH", "ACC", "LOSS", "WORKERS", "AGE"], narrow
            row = narrow[1].split()
            assert row[:3] == ["by-hand", "succeeded", "2"] and float(row[3]) > 0 and float(row[4]) > 0 and row[5] == "2", row
            wide = kubectl("get", "trainjob", "by-hand", "-n", p.ns, "-o", "wide").stdout.splitlines()
            assert wide[0].split()[7:] == ["K", "MODE", "DATASET", "FUNCTION", "GPU", "MERGE", "RETRIES", "USER", "JOB"], wide
            assert wide[1].split()[7:11] == ["8", "ps", "tiny", "lenet"], wide
            assert wide[1][wide[0].index("MERGE"):].split()[0] == "database", wide
            assert "by-hand" in kubectl("get", "kubeml", "-n", p.ns).stdout

            # A job of the API shows as a TrainJob, however short it is.
            for other in [p.train(epochs=1) for _ in range(4)]:
                name = until(lambda: next((t["metadata"]["name"] for t in cluster.listed("trainjobs", p.ns)
                                           if t.get("status", {}).get("job") == other), None), 30,
                             message="a job of the API has no TrainJob")
                holds(p, name, "Complete", 90)
                assert p.task(other)["state"] == "succeeded"
        finally:
            gone(p, "by-hand")


@case(limit=300, platform=False)
def suspend_stops_at_a_merge_and_goes_on_there():
    with release.shared() as p:
        ready(p)
        spec = {"epochs": 30, "k": 2, "seed": 5}
        try:
            want = p.succeed(p.train(**{"epochs": 30, "k": 2, "seed": 5}), 120)["sha256"]
            apply([trainjob("pause", function=p.paced(), **spec)], p.ns)
            until(lambda: (status(p, "pause").get("epoch") or 0) >= 2, 60, every=0.1, message="it does not train")
            kubectl("patch", "trainjob", "pause", "-n", p.ns, "--type=merge", "-p", '{"spec":{"suspend":true}}')
            holds(p, "pause", "Suspended", 60)
            job = status(p, "pause")["job"]
            until(lambda: not p.pods(job=job), 60, message="a suspended job keeps its pods")
            epoch = p.task(job)["epoch"]
            assert epoch < spec["epochs"], "it was over before it was suspended"
            kubectl("patch", "trainjob", "pause", "-n", p.ns, "--type=merge", "-p", '{"spec":{"suspend":false}}')
            holds(p, "pause", "Suspended", 60, "False")
            holds(p, "pause", "Complete", 120)
            # Both edits are seen: by the status as a whole and by each condition.
            now = found(p, "pause")
            seen = {now["status"]["observedGeneration"], *(c["observedGeneration"] for c in now["status"]["conditions"])}
            assert now["metadata"]["generation"] >= 3 and seen == {now["metadata"]["generation"]}, now
            task = p.task(job)
            assert task["sha256"] == want, "other weights than without the pause"
            assert len(p.get(f"/history/{job}")["data"]["accuracy"]) == spec["epochs"]

            # What is made suspended waits, without a job of its own.
            apply([trainjob("later", suspend=True)], p.ns)
            holds(p, "later", "Suspended", 30)
            kubectl("patch", "trainjob", "later", "-n", p.ns, "--type=merge", "-p", '{"spec":{"suspend":false}}')
            holds(p, "later", "Complete", 90)
        finally:
            gone(p, "pause", "later")


def unhurried(p):
    """Its pods take longer to end than we take to look at the TrainJobs again."""
    code = harness.LENET.read_text().replace("#include <kubeml.h>", """#define _POSIX_C_SOURCE 200809L
#include <kubeml.h>
#include <signal.h>
#include <time.h>

static int unhurried(kml_step *s)
{
    signal(SIGTERM, SIG_IGN);
    nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
    return kml_gradients(s) ? -1 : kml_update(s, kml_learning_rate(s));
}
""").replace(".lr = 0.01", ".lr = 0.01, .step = unhurried")
    p.function("unhurried", code)
    return "unhurried"


@case(limit=300, platform=False)
def delete_deadline_and_time_to_live():
    with release.shared() as p:
        ready(p)
        try:
            slow = unhurried(p)
            warm = p.warm(4, 1)
            apply([trainjob("long", function=slow, epochs=50000)], p.ns)
            holds(p, "long", "Training", 60)
            job = status(p, "long")["job"]
            # They come from the pool.
            pods = release.pods_of(p.ns, f"kubeml.dev/job={job}")
            assert len(pods) == 3 and {pod["metadata"]["uid"] for pod in pods} <= warm, (pods, warm)
            # Kubernetes deletes them with it, also where nobody of ours looks.
            owners = [[(o["kind"], o["name"]) for o in pod["metadata"].get("ownerReferences", [])] for pod in pods]
            assert all(o == [("TrainJob", "long")] for o in owners), owners
            kubectl("delete", "trainjob", "long", "-n", p.ns, "--timeout=60s")
            until(lambda: not p.pods(job=job), 60, message="the pods of a deleted TrainJob stay")
            deleted = job
            assert p.wait(deleted)["state"] == "cancelled"

            apply([trainjob("short", epochs=50000, activeDeadlineSeconds=3, ttlSecondsAfterFinished=3)], p.ns)
            job = until(lambda: status(p, "short").get("job"), 30)
            failed = holds(p, "short", "Failed", 60)
            assert failed[1] == "DeadlineExceeded", failed
            until(lambda: found(p, "short") is None, 60, message="it stays after its time")
            assert p.get(f"/history/{job}")["id"] == job, "its history stays"
            again = cluster.listed("trainjobs", p.ns, f"kubeml.dev/job in ({deleted},{job})")
            assert not again, f"deleted, they came back: {again}"
        finally:
            gone(p, "long", "short")


def kubeml(p, *arguments):
    done = subprocess.run([str(harness.BIN / "kubeml"), *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **p.environment()})
    return done.stdout + done.stderr


def waits(p, name, job, retry, of):
    """It waits for that retry for as long as it says, and everybody says which one it is."""
    words = f"retry {retry} of {of}"
    until(lambda: p.task(job)["state"] == "queued" and p.task(job)["retries"] == retry, 60, message=f"no {words}")
    until(lambda: status(p, name).get("retries") == retry and words in status(p, name)["message"], 5, every=0.1,
          message=lambda: f"the TrainJob does not say so: {status(p, name)}")
    now = status(p, name)
    assert (now["state"], now["reason"]) == ("queued", "Retrying") and "NaNLoss" in now["message"], now
    begin = time.monotonic()
    told = kubeml(p, "explain", job)
    left = re.search(words + r" in (\d+) s, after NaNLoss", told)
    # As the table in docs/guides/kubernetes-jobs.md has it; test_job counts the seconds.
    assert "Retrying" in told and left and int(left[1]) <= 10 * 2 ** (retry - 1), told
    head, row = kubectl("get", "tj", name, "-n", p.ns, "-o", "wide").stdout.splitlines()
    assert row[head.index("STATE"):].split()[0] == "queued" and row[head.index("RETRIES"):].split()[0] == str(retry), (head, row)
    assert words in kubectl("describe", "tj", name, "-n", p.ns).stdout
    until(lambda: not p.pods(job=job), 30, message="it waits, and keeps its pods")
    until(lambda: p.task(job)["state"] != "queued", 60)
    assert time.monotonic() - begin > int(left[1]) - 1, f"it went on earlier than it said: {told}"


@case(limit=300, platform=False)
def a_failed_one_is_tried_again_and_then_has_failed():
    with release.shared() as p:
        p.dataset()
        p.function("diverges", test_faults.DIVERGES)
        try:
            apply([trainjob("again", function="diverges", backoffLimit=2)], p.ns)
            job = until(lambda: status(p, "again").get("job"), 30)
            waits(p, "again", job, 1, 2)
            waits(p, "again", job, 2, 2)
            value, reason, message = holds(p, "again", "Failed", 60)
            assert reason == "NaNLoss" and message.endswith("; after 2 of 2 retries"), (reason, message)
            assert status(p, "again")["retries"] == 2 and condition(p, "again", "Complete")[0] == "False"
            told = kubeml(p, "explain", job)
            assert "NaNLoss" in told and "after 2 of 2 retries" in told, told
            said = kubectl("describe", "tj", "again", "-n", p.ns).stdout.split("Events:")[1]
            print(said)
            lines = [" ".join(line.split()) for line in said.splitlines()]
            for words in ("Warning Retrying", "retry 1 of 2 after NaNLoss", "retry 2 of 2 after NaNLoss", "Warning NaNLoss"):
                assert any(words in line for line in lines), (words, said)
            until(lambda: not p.pods(job=job), 60, message="pods of a failed job")
        finally:
            gone(p, "again")


@case(limit=300, platform=False)
def what_is_refused():
    with release.shared() as p:
        ready(p)
        try:
            for name, spec, says in (
                    ("negative", {"epochs": -1}, "spec.epochs"), ("zero", {"epochs": 0}, "spec.epochs"),
                    ("unknown", {"epoks": 3}, "epoks"), ("rate", {"lr": -0.5}, "spec.lr"),
                    ("goal", {"goalAccuracy": 101}, "goalAccuracy"), ("merge", {"merge": "magic"}, "magic"),
                    ("mode", {"mode": "gossip"}, "spec.mode"), ("text", {"epochs": "three"}, "spec.epochs")):
                done = apply([trainjob(name, **spec)], p.ns, check=False)
                assert done.returncode != 0 and says in done.stderr, (name, done.stdout, done.stderr)
            lacking = trainjob("lacking")
            del lacking["spec"]["dataset"]
            done = apply([lacking], p.ns, check=False)
            assert done.returncode != 0 and '"dataset"' in done.stderr, done.stderr
            assert not [t for t in cluster.listed("trainjobs", p.ns) if t["metadata"]["name"] in
                        ("negative", "unknown", "lacking")]

            p.post("/dataset/targets?regression=true", files=harness.tiny_mnist())
            p.post("/function/zoo", json={"model": "lenet5"})
            p.post("/function/unbuilt", 400, files={"code": ("unbuilt.c", "int x = ;")})
            for name, spec, why, says in (("nofunction", {"function": "nono"}, "NotFound", 'no function "nono"'),
                                          ("nocode", {"function": "unbuilt"}, "NotFound",
                                           'no function "unbuilt": its last upload did not compile: unbuilt.c:1:9: error'),
                                          ("nodata", {"dataset": "nono"}, "NotFound", 'no dataset "nono"'),
                                          ("nomode", {"mode": "p2p"}, "Unsupported", '"p2p" is not built yet'),
                                          ("nolabels", {"dataset": "targets"}, "Unsupported", "needs labels of classes"),
                                          ("nogoal", {"function": "zoo", "dataset": "targets", "goalAccuracy": 90},
                                           "Unsupported", "no classes")):
                apply([trainjob(name, **spec)], p.ns)
                value, reason, message = holds(p, name, "Accepted", 20, "False")
                assert reason == why and says in message, (name, reason, message)

            # What is trained is not changed under way.
            apply([trainjob("fixed", epochs=1)], p.ns)
            for change in ({"epochs": 7}, {"function": "other"}, {"parallelism": 3}, {"staticParallelism": False}, {"init": "another"},
                           {"goalAccuracy": 90}, {"merge": "server"}, {"mode": "p2p"}, {"priority": 3}, {"onLoss": "continue"}, {"validateEvery": 0},
                           {"gpu": {"threads": 50}}, {"backoffLimit": 2}, {"activeDeadlineSeconds": 60}, {"process": "shared"}):
                done = change_spec(p, "fixed", **change)
                assert done.returncode != 0 and "cannot be changed" in done.stderr, (change, done.stderr)
            assert change_spec(p, "fixed", ttlSecondsAfterFinished=1000).returncode == 0
            holds(p, "fixed", "Complete", 90)
        finally:
            gone(p, "nofunction", "nocode", "nodata", "nomode", "nolabels", "nogoal", "fixed")


def resource(kind, name, **spec):
    return {"apiVersion": "kubeml.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def ready_of(p, kind, name):
    one = next((o for o in cluster.listed(kind, p.ns) if o["metadata"]["name"] == name), {})
    return next(((c["status"], c["reason"], c.get("message", "")) for c in one.get("status", {}).get("conditions", [])
                 if c["type"] == "Ready"), (None, None, "")), one.get("status", {})


def becomes(p, kind, name, value, reason):
    until(lambda: ready_of(p, kind, name)[0][:2] == (value, reason), 60, every=0.2,
          message=lambda: f"{kind} {name}: {ready_of(p, kind, name)}")
    return ready_of(p, kind, name)


@case(limit=300, platform=False)
def functions_and_datasets_have_their_status():
    with release.shared() as p:
        try:
            apply([resource("Function", "ours", model="lenet5"),
                   resource("Function", "nobodys", model="nothing-of-the-kind"),
                   resource("Function", "broken", source="int main(void) { return x; }"),
                   resource("Dataset", "tiny")], p.ns)
            told = becomes(p, "functions", "ours", "True", "Registered")[1]
            assert told["version"] == 1 and told["digest"] == p.get("/function/ours")["digest"], told
            assert becomes(p, "functions", "nobodys", "False", "NotFound")[0][2]
            assert "x" in becomes(p, "functions", "broken", "False", "BuildFailed")[0][2]
            p.get("/function/broken", 404)
            why = p.get("/function/broken/explain")
            assert why["reason"] == "CompileError" and "broken.c:1:25: error" in why["message"], why
            assert "kubeml dataset create" in becomes(p, "datasets", "tiny", "False", "NotFound")[0][2]
            p.dataset()
            told = becomes(p, "datasets", "tiny", "True", "Uploaded")[1]
            shown = [line.split() for line in kubectl("get", "kfn,kds", "-n", p.ns).stdout.splitlines() if line]
            category = kubectl("get", "kubeml", "-n", p.ns, "-o", "name").stdout.split()
            assert {"function.kubeml.dev/ours", "dataset.kubeml.dev/tiny"} <= set(category), category
            assert ["NAME", "VERSION", "MODEL", "READY", "AGE"] in shown and ["NAME", "TRAIN", "TEST", "READY", "AGE"] in shown, shown
            assert any(row[:4] == ["function.kubeml.dev/ours", "1", "lenet5", "True"] for row in shown), shown
            assert any(row[:4] == ["dataset.kubeml.dev/tiny", "512", "128", "True"] for row in shown), shown
            assert told["trainSamples"] == 512 and told["testSamples"] == 128 and told["digest"], told

            apply([trainjob("with-ours", function="ours", epochs=1)], p.ns)
            holds(p, "with-ours", "Complete", 90)
            start = status(p, "with-ours")["startMilliseconds"]
            print("start:", start)
            assert start["total"] >= start["ps"] + start["functions"], start

            # The model is served by a pod that has nothing of the controller's.
            job = status(p, "with-ours")["job"]
            image = [[[0.0] * 28 for _ in range(28)]]
            answer = p.post("/infer", json={"model_id": job, "data": [image, image]})
            assert len(answer["predictions"]) == 2 and len(answer["logits"][0]) == 10, answer

            kubectl("delete", "function", "ours", "broken", "-n", p.ns)
            until(lambda: p.ask("GET", "/function/broken/explain", 404).status_code == 404, 30,
                  message="what did not compile is told of after its object is deleted")
            until(lambda: p.call("GET", "/function", 200) is not None and
                  "ours" not in str(p.get("/function")), 30, message="a deleted Function stays registered")
        finally:
            gone(p, "with-ours")
            kubectl("delete", "functions,datasets", "--all", "-n", p.ns, check=False)


@case(limit=300, platform=False)
def a_job_has_its_service_and_policy_and_is_suspended_from_both_sides():
    with release.shared() as p:
        p.dataset()
        p.function()
        job = p.train(epochs=50000, k=2)
        until(lambda: p.task(job)["epoch"] >= 1, 60)
        name = until(lambda: next((t["metadata"]["name"] for t in cluster.listed("trainjobs", p.ns)
                                   if t.get("status", {}).get("job") == job), None), 30)
        for kind in ("services", "networkpolicies"):
            assert cluster.listed(kind, p.ns, f"kubeml.dev/job={job}"), f"the job has no {kind}"
        p.post(f"/tasks/{job}/suspend")
        holds(p, name, "Suspended", 60)
        until(lambda: found(p, name)["spec"].get("suspend") is True, 30, message="the spec does not follow the API")
        for kind in ("services", "networkpolicies"):
            until(lambda: not cluster.listed(kind, p.ns, f"kubeml.dev/job={job}"), 60, message=f"its {kind} stay")
        kubectl("patch", "trainjob", name, "-n", p.ns, "--type=merge", "-p", '{"spec":{"suspend":false}}')
        until(lambda: p.task(job)["state"] == "running", 60, message="unset in the spec it does not go on")
        kubectl("delete", "trainjob", name, "-n", p.ns, "--wait=false")
        assert p.wait(job)["state"] == "cancelled"


if __name__ == "__main__":
    harness.main(globals())
