"""The controller's Role beside what it asked the API server for, by that server's own audit log: nothing that it needs is
missing, nothing that it has is never used."""
import contextlib
import json

import cluster
import release
from cluster import apply, case, get, harness, kubectl, until
from test_trainjob import becomes, holds, resource, status, trainjob


def asked(ns):
    """({(group, resource, verb)}, [what was refused]) of the release's service account. Left out is what was asked before
    the API server, which hears of a new Role a moment after it has stored it, granted the first right of it."""
    used, refused, known = set(), [], "9"  # when the Role was known
    for line in (cluster.STATE / "log/audit.log").read_text().splitlines():
        event = json.loads(line) if line.endswith("}") else {}  # the last one may be on its way
        if event.get("user", {}).get("username") != f"system:serviceaccount:{ns}:kubeml" or "objectRef" not in event:
            continue
        what = event["objectRef"]
        kind = "/".join(filter(None, (what["resource"], what.get("subresource"))))
        one = (what.get("apiGroup", ""), kind, event["verb"])
        if event["annotations"]["authorization.k8s.io/decision"] == "allow":
            used.add(one)
            known = min(known, event["stageTimestamp"])
        elif one != ("coordination.k8s.io", "leases", "create"):  # Helm makes it last; whoever is earlier waits for it
            refused.append((event["requestReceivedTimestamp"], *one))
    return used, [request for request in refused if request[0] > known]


def granted(ns):
    return {(group, kind, verb) for rule in get("role", "kubeml", "-n", ns)["rules"]
            for group in rule["apiGroups"] for kind in rule["resources"] for verb in rule["verbs"]}


@case(limit=300, platform=False)
def the_role_is_what_is_used():
    if not cluster.OURS:
        harness.skip("somebody's API server is not asked for its audit log")
    with release.shared() as p, contextlib.ExitStack() as stack:
        p.warm(4, 1)
        # One that somebody took away from the pool without a word: the controller looks at it, and takes another.
        away = p.pods(role="function")[0]["name"]
        stack.callback(kubectl, "delete", "pod", "-n", p.ns, away, "--ignore-not-found", "--wait=false")
        kubectl("label", "pod", "-n", p.ns, away, "kubeml.dev/state=job", "--overwrite")
        p.dataset()
        stack.callback(kubectl, "delete", "functions,datasets", "--all", "-n", p.ns)
        apply([resource("Function", "lenet", model="lenet5"), resource("Dataset", "tiny")], p.ns)
        becomes(p, "functions", "lenet", "True", "Registered")
        becomes(p, "datasets", "tiny", "True", "Uploaded")
        job = p.train(epochs=2, default_parallelism=4)
        p.succeed(job, 90)
        assert p.get(f"/tasks/{job}/logs")
        apply([trainjob("short", epochs=50000, ttlSecondsAfterFinished=1)], p.ns)
        holds(p, "short", "Training", 60)
        running = status(p, "short")["job"]
        assert p.get(f"/tasks/{running}/logs")  # of pods that live
        p.delete(f"/tasks/{running}")
        until(lambda: not status(p, "short"), 60, message="it stays after its time")
        until(lambda: asked(p.ns)[0] >= granted(p.ns), 30, every=0.5, message=lambda: "never used: "
              + str(granted(p.ns) - asked(p.ns)[0]))
        used, refused = asked(p.ns)
        assert not refused and used <= granted(p.ns), (refused, used - granted(p.ns))


harness.main(globals())
