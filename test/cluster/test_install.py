"""From helm install to helm uninstall, with the images of manifests/images and the stand-in for MongoDB."""
import cluster
import release
from cluster import case, get, harness, kubectl, namespace, until


@case(limit=300, platform=False)
def install_warms_the_pool_and_uninstall_leaves_nothing():
    with namespace() as ns:
        # Its MongoDB has users, and TLS by a certificate that the pods are told of.
        behind_tls = release.mongodb_behind_tls(ns)
        before = release.made_in(ns)
        # One that the chart brought is told to go too.
        with release.installed(ns, **(behind_tls or {"mongodb.bundled.keep": "false"})) as p:
            p.warm(4, 1)
            assert p.get("/health") == {"status": "ok"}
            assert p.metric('kubeml_pool_warm{role="function"}') == 4
            p.dataset()
            p.function()
            job = p.train()
            p.succeed(job)
            assert not behind_tls or "its pods have users of their own in the store" in p.log_text(), p.log_text()
            assert kubectl("get", "trainjobs", "-n", ns, "-o", "name").stdout.strip(), "no TrainJob of the job"
        until(lambda: not get("pods,persistentvolumeclaims", "-n", ns)["items"], 60, message="pods or claims are left")
        # TrainJobs stay: they are the user's own, as models and histories are.
        left = release.made_in(ns)
        assert left == before, f"left behind: {set(left) - set(before)}"


@case(limit=300, platform=False)
def an_empty_pool_starts_what_is_needed():
    with release.installed(**{"pool.functions": 0, "pool.ps": 0}) as p:
        assert p.pods() == []
        p.dataset()
        p.post("/function/lenet", json={"model": "lenet5"})
        p.succeed(p.train(epochs=1), 90)
        until(lambda: not p.pods(), 60, message="with a floor of 0 nothing stays")


harness.main(globals())
