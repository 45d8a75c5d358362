"""The test cluster's NetworkPolicies: that they are enforced at all is what every other case on them rests on."""
from cluster import FOLDER, apply, case, get, harness, kubectl, namespace, pod, tools_image, until, wait_ready

SERVER = ["redis-server", "--save", "", "--protected-mode", "no", "--dir", "/tmp"]


def pings(ns, client, host):
    said = kubectl("exec", "-n", ns, client, "--", "timeout", "3", "redis-cli", "-h", host, "ping", check=False)
    return said.stdout.strip() == "PONG"


def policy(name, chosen, **spec):
    types = [t for t in ("Ingress", "Egress") if t.lower() in spec]
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name},
            "spec": {"podSelector": {"matchLabels": chosen}, "policyTypes": types, **spec}}


def two_pods(ns):
    apply([pod("server", SERVER, {"app": "server"}), pod("friend", ["sleep", "1000"], {"app": "friend"}),
           pod("stranger", ["sleep", "1000"], {"app": "stranger"}),
           {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 6379}]}}], ns)
    for name in ("server", "friend", "stranger"):
        wait_ready(f"pod/{name}", ns)
    return get("pod", "server", "-n", ns)["status"]["podIP"]


@case(limit=180, platform=False)
def ingress_policies_are_enforced():
    tools_image(FOLDER)
    with namespace() as ns:
        address = two_pods(ns)
        # The control: without a policy anybody gets through, by address and by the Service.
        until(lambda: pings(ns, "stranger", address) and pings(ns, "stranger", f"server.{ns}.svc.cluster.local"), 30)
        apply([policy("closed", {"app": "server"}, ingress=[])], ns)
        until(lambda: not pings(ns, "stranger", address), 20)
        assert not pings(ns, "friend", f"server.{ns}.svc.cluster.local")
        apply([policy("friends", {"app": "server"}, ingress=[
            {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": 6379}]}])], ns)
        until(lambda: pings(ns, "friend", address), 20)
        assert pings(ns, "friend", f"server.{ns}.svc.cluster.local")
        assert not pings(ns, "stranger", address)
        kubectl("label", "pod", "stranger", "app=friend", "--overwrite", "-n", ns)
        until(lambda: pings(ns, "stranger", address), 20)
        kubectl("delete", "networkpolicy", "--all", "-n", ns)


@case(limit=180, platform=False)
def egress_policies_are_enforced():
    tools_image(FOLDER)
    with namespace() as ns:
        address = two_pods(ns)
        until(lambda: pings(ns, "stranger", address), 30)
        apply([policy("nowhere", {"app": "stranger"}, egress=[])], ns)
        until(lambda: not pings(ns, "stranger", address), 20)
        assert pings(ns, "friend", address)
        apply([policy("dns", {"app": "stranger"}, egress=[{"ports": [{"port": 53, "protocol": "UDP"}]}])], ns)
        name = f"server.{ns}.svc.cluster.local"
        until(lambda: kubectl("exec", "-n", ns, "stranger", "--", "timeout", "3", "getent", "hosts", name,
                              check=False).returncode == 0, 20)
        assert not pings(ns, "stranger", name)
        apply([policy("server", {"app": "stranger"}, egress=[
            {"to": [{"podSelector": {"matchLabels": {"app": "server"}}}], "ports": [{"port": 6379}]}])], ns)
        until(lambda: pings(ns, "stranger", name), 20)


harness.main(globals())
