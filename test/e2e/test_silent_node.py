"""Pods of the pool that start on a node that is lost: it answers nothing, not even that nobody listens there."""
import contextlib
import os
import pathlib
import socket
import tempfile

import harness
from fake_kube import fake_kube
from harness import Platform, case, until

SILENT, REFUSING = "127.0.0.2", "127.0.0.3"


@contextlib.contextmanager
def silent_address():
    """Who connects gets no answer: the backlog is full."""
    with contextlib.ExitStack() as open_ones:
        listener = open_ones.enter_context(socket.socket())
        listener.bind((SILENT, 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(2):
            one = open_ones.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(address)
        with socket.socket() as probe:
            probe.settimeout(0.3)
            try:
                probe.connect(address)
                raise AssertionError("there is an answer")
            except socket.timeout:
                pass
        yield address[1]


@case(limit=60, platform=False)
def a_pod_that_starts_on_a_lost_node_is_replaced_elsewhere():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="n", dir=os.environ.get("TEST_TMP")))
    with silent_address() as port, fake_kube(folder, port=port) as kube:
        kube.places = {"function": [("lost", SILENT), ("lost-too", SILENT)], "ps": [("living", REFUSING)]}
        platform = Platform("--cluster", "kubernetes", "--pods", str(kube.pods), "--context", "test",
                            "--pool-functions", "1", "--pool-ps", "1", home=folder,
                            env={"KUBECONFIG": str(kube.config)})
        platform.start()
        try:
            # The second one is waited for twice as long: a network may be slow.
            until(lambda: len(kube.made) == 4 and len(kube.deleted) == 2, 40,
                  message="the pods on lost nodes are dialled on and on")
            with kube.lock:
                pods = list(kube.made.values())
                given_up = [pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["name"] in kube.deleted]
                last = pods[-1]["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            # One whose node says that nobody listens yet is only slow.
            assert sorted(given_up) == ["lost", "lost-too"], given_up
            assert set(kube.deleted.values()) == {"gracePeriodSeconds=0"}, kube.deleted
            assert "lost" in str(last) and "lost-too" in str(last), last
        finally:
            platform.kill()


harness.main(globals())
