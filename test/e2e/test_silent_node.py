"""Pods of the pool whose node is lost, and answers nothing, not even that nobody listens there; and one that answers
when nobody wants it any more."""
import contextlib
import json
import os
import pathlib
import socket
import struct
import tempfile
import threading

import harness
from fake_kube import fake_kube
from harness import Platform, case, until

SILENT, REFUSING, SLOW = "127.0.0.2", "127.0.0.3", "127.0.0.4"


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


@case(limit=60, platform=False)
def a_pod_that_is_being_stopped_is_no_other_jobs():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="n", dir=os.environ.get("TEST_TMP")))
    listener, deletion = socket.create_server((SLOW, 0)), threading.Event()
    with listener, fake_kube(folder, port=listener.getsockname()[1]) as kube:
        kube.places = {"function": [], "ps": [("slow", SLOW), ("living", REFUSING)]}
        delete = kube.delete_pod
        kube.delete_pod = lambda name, query: deletion.wait(60) and delete(name, query)
        platform = Platform("--cluster", "kubernetes", "--pods", str(kube.pods), "--context", "test",
                            "--pool-functions", "0", "--pool-ps", "0", home=folder,
                            env={"KUBECONFIG": str(kube.config)})
        try:
            platform.start()
            platform.dataset()
            platform.post("/function/lenet", json={"model": "lenet5"})
            job = platform.train(epochs=1)
            pod = listener.accept()[0]
            assert pod.recv(4096), "no hello"
            name = "/api/v1/namespaces/ml/pods/" + next(iter(kube.made))
            platform.delete(f"/tasks/{job}")
            until(lambda: ("DELETE", name) in kube.asked, 20)
            welcome = json.dumps({"type": "welcome", "role": "ps", "abi": 1, "pid": 1}).encode()
            pod.settimeout(20 * harness.STRETCH)
            with contextlib.suppress(ConnectionError):
                pod.sendall(struct.pack("<I", len(welcome)) + welcome)
                assert pod.recv(1) == b""
            platform.train(epochs=1)
            until(lambda: len(kube.made) == 2, 20)
            assert ("PATCH", name) not in kube.asked
        finally:
            deletion.set()
            platform.kill()


harness.main(globals())
