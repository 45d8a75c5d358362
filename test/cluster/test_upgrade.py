"""helm upgrade while a job runs, the controllers away for a while, and a release that is taken away and made again:
what was uploaded, trained and recorded is there afterwards."""
import release
from cluster import case, harness, helm, kubectl, namespace, until

OPTIONS = {"epochs": 40, "k": 2, "seed": 7}


def kept(p):
    """What a user would miss."""
    jobs = {t["id"]: t.get("sha256") for t in p.get("/tasks?state=all") if t["state"] == "succeeded"}
    return {"datasets": [(d["name"], d["train_set_size"]) for d in p.get("/dataset")],
            "functions": [(f["name"], f["version"]) for f in p.get("/function")],
            "jobs": jobs, "histories": {j: p.get(f"/history/{j}")["data"]["accuracy"] for j in jobs}}


def holds(before, after):
    for kind in ("datasets", "functions"):
        assert before[kind] == after[kind], (kind, before[kind], after[kind])
    for kind in ("jobs", "histories"):
        assert before[kind].items() <= after[kind].items(), (kind, before[kind], after[kind])


@case(limit=600, platform=False)
def a_release_through_its_life():
    with namespace() as ns:
        with release.installed(ns) as p:
            p.dataset()
            p.function()
            slow = p.paced()
            first = p.train(**OPTIONS)
            want = p.succeed(first, 120)["sha256"]
            before, model, token = kept(p), p.get(f"/model/{first}"), p.token

            job = p.train(slow, **OPTIONS)
            until(lambda: p.task(job)["epoch"] >= 1, 60)
            old = {c["metadata"]["name"] for c in p.controllers()}
            p.settings["controller.resources.requests.memory"] = "96Mi"
            p.install(verb="upgrade")
            kubectl("rollout", "status", f"deployment/{p.name}-controller", "-n", ns, "--timeout=90s", seconds=120)
            assert not old & {c["metadata"]["name"] for c in p.controllers()}, "the upgrade changed nothing"
            assert p.succeed(job, 180)["sha256"] == want, "other weights than without the upgrade"
            p.disconnect()
            p.connect()
            assert p.token == token, "an upgrade made another token"
            holds(before, kept(p))

            job = p.train(slow, **OPTIONS)
            until(lambda: p.task(job)["epoch"] >= 1, 60)
            replicas = len(p.controllers())
            kubectl("scale", "deployment", f"{p.name}-controller", "-n", ns, "--replicas=0")
            until(lambda: not p.controllers(), 60, message="the controllers do not end")
            kubectl("scale", "deployment", f"{p.name}-controller", "-n", ns, f"--replicas={replicas}")
            p.start()
            assert p.succeed(job, 180)["sha256"] == want, "other weights than with a controller all the while"
            helm("rollback", p.name, "1", "-n", ns, "--wait", "--timeout", "90s", seconds=120)
            p.start()
            before = kept(p)

        # Uninstalled, and installed again: the database has outlived it.
        with release.installed(ns) as p:
            holds(before, kept(p))
            assert p.get(f"/model/{first}") == model, "another model than before"
            p.succeed(p.train(epochs=1))


harness.main(globals())
