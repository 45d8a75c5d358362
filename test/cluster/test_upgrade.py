"""helm upgrade while a job runs, the controllers away for a while, and a release that is taken away and made again:
what was uploaded, trained and recorded is there afterwards."""
import cluster
import release
from cluster import CHART, apply, case, harness, helm, kubectl, namespace, until
from test_trainjob import holds, status, trainjob

OPTIONS = {"epochs": 40, "k": 2, "seed": 7}


def kept(p):
    """What a user would miss."""
    jobs = {t["id"]: t.get("sha256") for t in p.get("/tasks?state=all") if t["state"] == "succeeded"}
    return {"datasets": [(d["name"], d["train_set_size"]) for d in p.get("/dataset")],
            "functions": [(f["name"], f["version"]) for f in p.get("/function")],
            "jobs": jobs, "histories": {j: p.get(f"/history/{j}")["data"]["accuracy"] for j in jobs}}


def warm_sizes(p):
    """Of the scratch folders of the warm function pods: the template that these were made by."""
    return [volume["emptyDir"]["sizeLimit"] for pod in release.pods_of(p.ns, "kubeml.dev/state=warm,kubeml.dev/role=function")
            if not pod["metadata"].get("deletionTimestamp") for volume in pod["spec"]["volumes"] if volume["name"] == "scratch"]


def owners(ns, job):
    """Of each of the job's pods: kind and name."""
    return [[(o["kind"], o["name"]) for o in pod["metadata"].get("ownerReferences", [])]
            for pod in release.pods_of(ns, f"kubeml.dev/job={job}")]


def nodes_counter(ns):
    """The one thing of a release that is in no namespace, with gpu.countNodes."""
    names = [o["metadata"]["name"] for o in cluster.get("clusterroles,clusterrolebindings")["items"]]
    return names.count(f"{ns}-kubeml-nodes")


def same(before, after):
    for kind in ("datasets", "functions"):
        assert before[kind] == after[kind], (kind, before[kind], after[kind])
    for kind in ("jobs", "histories"):
        assert before[kind].items() <= after[kind].items(), (kind, before[kind], after[kind])


@case(limit=600, platform=False)
def a_release_through_its_life():
    with namespace() as ns:
        nothing = release.made_in(ns)
        with release.installed(ns, **{"uninstall.endJobs": "true", "gpu.countNodes": "true"}) as p:
            assert nodes_counter(ns) == 2
            p.dataset()
            p.function()
            slow = p.paced()
            first = p.train(**OPTIONS)
            want = p.succeed(first, 120)["sha256"]
            before, model, token = kept(p), p.get(f"/model/{first}"), p.token

            job = p.train(slow, **OPTIONS)
            until(lambda: p.task(job)["epoch"] >= 1, 60)
            old = {c["metadata"]["name"] for c in p.controllers()}
            kubectl("apply", "--server-side", "--force-conflicts", "-f", CHART / "crds")  # as docs/guides/kubernetes-install.md says
            assert set(warm_sizes(p)) == {"1Gi"}, warm_sizes(p)
            p.settings["function.scratchSize"] = "2Gi"
            p.install(verb="upgrade")
            kubectl("rollout", "status", f"deployment/{p.name}-controller", "-n", ns, "--timeout=90s", seconds=120)
            assert not old & {c["metadata"]["name"] for c in p.controllers()}, "the upgrade changed nothing"
            assert p.succeed(job, 180)["sha256"] == want, "other weights than without the upgrade"
            p.disconnect()
            p.connect()
            assert p.token == token, "an upgrade made another token"
            until(lambda: len(warm_sizes(p)) >= 4 and set(warm_sizes(p)) == {"2Gi"}, 60,
                  message=lambda: f"warm pods of before the upgrade: {warm_sizes(p)}")
            same(before, kept(p))

            job = p.train(slow, **OPTIONS)
            until(lambda: p.task(job)["epoch"] >= 1, 60)
            apply([trainjob("unwatched", epochs=50000, parallelism=1)], ns)
            holds(p, "unwatched", "Training", 60)
            unwatched = status(p, "unwatched")["job"]
            # One of the API has its pods before its TrainJob.
            by_api = p.train(epochs=50000, default_parallelism=1)
            until(lambda: owners(ns, by_api) == [[("TrainJob", f"job-{by_api}")]] * 2, 60,
                  message=lambda: f"the pods of a job of the API are not its TrainJob's: {owners(ns, by_api)}")
            replicas = len(p.controllers())
            kubectl("scale", "deployment", f"{p.name}-controller", "-n", ns, "--replicas=0")
            until(lambda: not p.controllers(), 60, message="the controllers do not end")
            # Their pods are the TrainJobs': they go with them, though nobody of ours looks.
            kubectl("delete", "trainjob", "unwatched", f"job-{by_api}", "-n", ns, "--timeout=30s")
            for deleted in (unwatched, by_api):
                until(lambda: not p.pods(job=deleted), 60, message=f"the pods of a deleted TrainJob stay: {deleted}")
            kubectl("scale", "deployment", f"{p.name}-controller", "-n", ns, f"--replicas={replicas}")
            p.start()
            assert p.succeed(job, 180)["sha256"] == want, "other weights than with a controller all the while"
            for deleted in (unwatched, by_api):
                assert p.wait(deleted, 30)["state"] == "cancelled"
            helm("rollback", p.name, "1", "-n", ns, "--wait", "--timeout", "90s", seconds=120)
            p.start()
            before = kept(p)
            running = p.train(slow, **OPTIONS)
            until(lambda: p.task(running)["epoch"] >= 1, 60)
        assert not cluster.listed("pods", ns, f"kubeml.dev/job={running}"), "a job's pods outlive the platform"
        # Nor anything else of it, its last Job and what that had among it; but what docs/guides/kubernetes-install.md says.
        stays = [] if release.mongodb(ns) else ["PersistentVolumeClaim/data-kubeml-mongodb-0", "Secret/kubeml-store"]
        until(lambda: release.made_in(ns) == sorted(nothing + stays), 60, message=lambda: f"left behind: {release.made_in(ns)}")
        assert nodes_counter(ns) == 0

        # Installed again: the database has outlived it, and the job goes on from its checkpoint.
        with release.installed(ns) as p:
            same(before, kept(p))
            assert p.get(f"/model/{first}") == model, "another model than before"
            assert p.succeed(running, 180)["sha256"] == want, "other weights than without the uninstall"
            p.succeed(p.train(epochs=1))


harness.main(globals())
