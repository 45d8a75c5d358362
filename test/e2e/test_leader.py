"""Two controllers on one store: one leads by a Lease, both answer, and the other takes over."""
import contextlib
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import os

import requests
import yaml

import harness
from fake_kube import fake_kube
from harness import Platform, case, until

TOKEN = "the-token-of-both"
USER, OF_USER = "anna", "the-token-of-anna"
LOST_S = 2.2  # KUBE_LEASE_LOST_MS


@contextlib.contextmanager
def controllers(*names, store=None):
    """Controllers of one store and one API server, by name; they are ended, however they are."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="l", dir=os.environ.get("TEST_TMP")))
    (folder / "token").write_text(f"{TOKEN}\n{USER}:{OF_USER}\n")
    (folder / "store").mkdir()
    with fake_kube(folder) as kube:
        made = {}
        for name in names:
            (folder / name).mkdir()
            made[name] = Platform("--cluster", "kubernetes", "--pods", str(kube.pods), "--lease", "kubeml", "--context", "test",
                                  "--store", store or f"lmdb:{folder}/store", "--pool-functions", "0", "--pool-ps", "0",
                                  "--token-file", str(folder / "token"), home=folder / name,
                                  env={"POD_NAME": name, "KUBECONFIG": str(kube.config)})
        try:
            yield kube, made
        finally:
            for platform in made.values():
                if platform.process and platform.process.poll() is None:
                    platform.process.send_signal(signal.SIGCONT)
                    platform.kill()


def call(platform, method, path, token=TOKEN, **arguments):
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, */*;q=0.5"}
    return requests.request(method, platform.url + path, headers=headers, timeout=60 * harness.STRETCH, **arguments)


def train(platform, token=TOKEN, function="zoo"):
    return call(platform, "POST", "/train", token, json={
        "function_name": function, "dataset": "tiny", "epochs": 2, "batch_size": 32, "lr": 0.01,
        "options": {"default_parallelism": 2, "static_parallelism": True}})


def uploads(platform):
    reply = call(platform, "POST", "/dataset/tiny", files=harness.tiny_mnist())
    assert reply.status_code == 200, reply.text
    reply = call(platform, "POST", "/function/zoo", json={"model": "lenet5"})
    assert reply.status_code == 200, reply.text


def leads(platform):
    return call(platform, "GET", "/ready").json()["leads"]


def unseen(platform):
    """Why it looks at no TrainJobs."""
    return call(platform, "GET", "/ready").json().get("trainjobs")


def two(made):
    """The one that leads and the one that stands by."""
    a, b = made["a"].start(), made["b"].start()
    until(lambda: leads(a) or leads(b), 20)
    first, second = (a, b) if leads(a) else (b, a)
    until(lambda: call(second, "GET", "/tasks").status_code == 200, 20, message="the standby knows no leader")
    return first, second


def follow(platform, path, lines):
    with requests.get(platform.url + path, headers={"Authorization": f"Bearer {TOKEN}"}, stream=True, timeout=60) as reply:
        assert reply.status_code == 200, reply.text
        with contextlib.suppress(requests.RequestException):
            for line in reply.iter_lines(decode_unicode=True):
                lines.append(line)
    lines.append(None)


@case(limit=90, platform=False)
def both_answer_and_one_leads():
    with controllers("a", "b") as (kube, made):
        first, second = two(made)
        assert not leads(second) and kube.holder() in ("a", "b")
        until(lambda: unseen(first), 20)
        mine, other = call(first, "GET", "/ready").json(), call(second, "GET", "/ready").json()
        assert {**mine, "leads": False} == other and other["slots"] == 4, (mine, other)
        assert b"kubeml_leads 1" in call(first, "GET", "/metrics").content
        assert b"kubeml_leads 0" in call(second, "GET", "/metrics").content
        uploads(second)
        for platform in (first, second):
            assert [d["name"] for d in call(platform, "GET", "/dataset").json()] == ["tiny"]
        # Code that one refuses both explain, and who trains it hears of it.
        broken = call(second, "POST", "/function/broken", files={"code": ("broken.c", "int x = ;")})
        assert broken.status_code == 400, broken.text
        for platform in (first, second):
            why = call(platform, "GET", "/function/broken/explain").json()
            assert why["reason"] == "CompileError" and "broken.c:1:9: error" in why["message"], why
            reply = train(platform, function="broken")
            assert reply.status_code == 404 and "did not compile: broken.c:1:9: error" in reply.json()["detail"], reply.text
        job = train(second)
        assert job.status_code == 200, job.text
        job = job.json()["id"]
        for platform in (first, second):
            assert call(platform, "GET", f"/tasks/{job}").json()["id"] == job
            assert call(platform, "GET", f"/tasks/{job}/logs").status_code == 200
        # Once, by the leader, and however they came.
        asked = 'kubeml_http_requests_total{method="GET",path="/tasks/{id}",status="200"}'
        counted = [harness.metric_in(call(platform, "GET", "/metrics").text, asked) for platform in (first, second)]
        assert counted[0] >= 2 and counted[1] is None, counted
        # Whoever asks the other one asks the leader by it.
        of_user = train(second, OF_USER).json()["id"]
        for platform in (first, second):
            assert call(platform, "GET", f"/tasks/{job}").json()["user"] is None
            assert call(platform, "GET", f"/tasks/{of_user}").json()["user"] == USER
        assert call(second, "DELETE", f"/tasks/{of_user}", OF_USER).status_code == 200
        # What the leader refuses is refused in its words; what does not come with the token is not handed on.
        for method, path in (("GET", "/tasks/none"), ("DELETE", "/tasks/none"), ("GET", "/tasks/none/events")):
            here, there = call(first, method, path), call(second, method, path)
            assert (here.status_code, here.json()) == (there.status_code, there.json()) and here.status_code == 404
        assert requests.get(second.url + "/tasks").status_code == 401
        assert call(second, "DELETE", "/dataset/tiny").status_code == 409
        # A stream comes through as it is written, and ends with its server.
        lines = []
        stream = threading.Thread(target=follow, args=(second, f"/tasks/{job}/events", lines))
        stream.start()
        until(lambda: "event: state" in lines, 20)
        assert None not in lines
        assert call(second, "DELETE", f"/tasks/{job}").status_code == 200
        until(lambda: any('"cancelled"' in line for line in lines if line), 20, message=lambda: str(lines))
        assert first.stop() == 0 and second.stop() == 0
        stream.join(30 * harness.STRETCH)
        assert lines[-1] is None


@case(limit=120, platform=False)
def a_request_is_handed_on_once():
    """Two that each take the other for the leader do not send it round."""
    with controllers("a", "b") as (kube, made):
        _, second = two(made)
        reply = requests.get(second.url + "/tasks", headers={"Authorization": f"Bearer {TOKEN}", "X-KubeML-Forwarded": "1"})
        assert reply.status_code == 503 and reply.headers["Retry-After"] == "1", reply.text


@case(limit=120, platform=False)
def the_other_takes_over_after_kill_9():
    with controllers("a", "b") as (kube, made):
        first, second = two(made)
        uploads(first)
        job = train(first).json()["id"]
        lines = []
        stream = threading.Thread(target=follow, args=(second, f"/tasks/{job}/events", lines))
        stream.start()
        until(lambda: "event: state" in lines, 20)
        environment = {**os.environ, "KUBEML_URL": second.url, "KUBEML_TOKEN": TOKEN}
        follower = subprocess.Popen([str(harness.BIN / "kubeml"), "logs", "-f", job], env=environment)
        until(lambda: harness.is_connected(follower), 20)
        first.kill()
        # Nobody hangs: 503 and Retry-After, until it is the other's.
        reply = call(second, "GET", f"/tasks/{job}")
        assert reply.status_code == 503 and reply.headers["Retry-After"], reply.text
        assert train(second).status_code == 503
        stream.join(30 * harness.STRETCH)
        assert not stream.is_alive()
        # The command line waits for as long as that takes.
        done = subprocess.run([str(harness.BIN / "kubeml"), "task", "get", job], capture_output=True, text=True,
                              env=environment)
        assert done.returncode == 0 and job in done.stdout, done
        until(lambda: call(second, "GET", f"/tasks/{job}").status_code == 200, 30)
        assert leads(second) and call(second, "GET", f"/tasks/{job}").json()["id"] == job
        assert [t["id"] for t in call(second, "GET", "/tasks").json()] == [job]
        # Back under another name, the first stands by.
        first.start()
        until(lambda: call(first, "GET", f"/tasks/{job}").status_code == 200, 20)
        assert not leads(first)
        assert follower.poll() is None, "a log is followed until its job ends"
        assert call(second, "DELETE", f"/tasks/{job}").status_code == 200
        assert follower.wait(30 * harness.STRETCH) == 0
        # An orderly end lets go of the lease at once.
        assert second.stop() == 0
        until(lambda: leads(first), 20)
        assert call(first, "GET", f"/tasks/{job}").json()["id"] == job


@case(limit=120, platform=False)
def who_was_stopped_for_long_acts_no_more():
    with controllers("a", "b") as (kube, made):
        first, second = two(made)
        first.process.send_signal(signal.SIGSTOP)
        until(lambda: leads(second), 30)
        assert call(second, "GET", "/tasks").status_code == 200
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(20 * harness.STRETCH) == 1
        assert "lease" in first.log_text().splitlines()[-1], first.log_text()


@case(limit=120, platform=False)
def who_was_stopped_while_it_took_the_lease_leads_when_it_is_renewed():
    """The answer comes, and by the time it is read what it says has run out."""
    with controllers("a") as (kube, made):
        kube.away = True
        a = made["a"].start()
        stopped = threading.Event()
        answer = kube.lease

        def stop_and_answer(method, name, body):
            if method == "POST":
                a.process.send_signal(signal.SIGSTOP)
                stopped.set()
            return answer(method, name, body)
        kube.lease, kube.away = stop_and_answer, False
        until(stopped.is_set)
        over = time.monotonic() + LOST_S + 0.8
        until(lambda: time.monotonic() > over)
        assert kube.holder() == "a"
        a.process.send_signal(signal.SIGCONT)
        until(lambda: leads(a), 20)
        assert call(a, "GET", "/tasks").json() == []


@contextlib.contextmanager
def two_and_a_place(place):
    """A controller that leads and waits when it comes to that place, the other one, and how the other comes to lead as the
    first does what it is asked; that one goes on, and ends, at the block's end."""
    with controllers("a", "b") as (kube, made):
        a, b = made["a"], made["b"]
        held = a.folder / "held"
        a.env |= {"KUBEML_FAILPOINT": f"{place}:wait", "KUBEML_FAILPOINT_FILE": str(held)}
        a.start()
        until(lambda: leads(a), 20)
        b.start()
        uploads(a)
        answer = kube.lease

        def refuse_a(method, name, body):
            if method == "PUT" and body["spec"]["holderIdentity"] == "a":
                return kube.status(503, "ServiceUnavailable")
            return answer(method, name, body)

        @contextlib.contextmanager
        def taken_over(ask):
            def try_to():
                with contextlib.suppress(requests.RequestException):
                    ask()
            asker = threading.Thread(target=try_to)
            asker.start()
            until(held.exists)
            kube.lease = refuse_a
            until(lambda: leads(b), 20)
            yield
            held.unlink()
            assert a.process.wait(20 * harness.STRETCH) == 1
            asker.join(20 * harness.STRETCH)
        yield a, b, taken_over


def loses_the_lease(place):
    """A controller is held up at that place while it begins a job; another leads, and cancels the job."""
    with two_and_a_place(place) as (a, b, taken_over):
        with taken_over(lambda: train(a)):
            job, = [t["id"] for t in call(b, "GET", "/tasks").json()]
            assert call(b, "DELETE", f"/tasks/{job}").status_code == 200
            until(lambda: call(b, "GET", f"/tasks/{job}").json()["state"] == "cancelled", 20)
        assert call(b, "GET", f"/tasks/{job}").json()["state"] == "cancelled"


@case(limit=120, platform=False)
def who_lost_the_lease_in_the_middle_of_a_turn_writes_no_record():
    loses_the_lease("controller.save-record:1")


@case(limit=120, platform=False)
def who_lost_the_lease_in_the_middle_of_a_write_undoes_nothing():
    loses_the_lease("controller.put-record:2")  # the first is the new job's record


@case(limit=120, platform=False)
def who_lost_the_lease_in_the_middle_of_a_cancellation_undoes_no_resume():
    with two_and_a_place("controller.put-ended:1") as (a, b, taken_over):
        job = train(a).json()["id"]
        assert call(a, "POST", f"/tasks/{job}/suspend").status_code == 200
        until(lambda: call(a, "POST", f"/tasks/{job}/suspend").status_code == 200 and
              call(a, "GET", f"/tasks/{job}").json()["state"] == "suspended", 20)
        with taken_over(lambda: call(a, "DELETE", f"/tasks/{job}")):
            until(lambda: call(b, "POST", f"/tasks/{job}/resume").status_code == 200, 20)
        b.kill()  # what it knows itself is not what is asked
        b.start()
        until(lambda: leads(b), 20)
        state = call(b, "GET", f"/tasks/{job}").json()["state"]
        assert state in ("queued", "starting"), state


@case(limit=120, platform=False)
def who_could_not_renew_holds_still_and_leads_on():
    """Everything of the API server answers but its Leases. What changes something is left alone, whoever asks for it."""
    with controllers("a") as (kube, made):
        first = made["a"].start()
        until(lambda: leads(first), 20)
        uploads(first)
        job = train(first).json()["id"]

        def writes():
            return [path for method, path in kube.asked if method != "GET" and "/leases" not in path]

        def tries():
            return sum("/leases" in path for _, path in kube.asked)
        until(writes, 30, message="the job asks for no pod")
        kube.forbidden = ("/leases",)
        until(lambda: not leads(first), 20)
        reply = call(first, "GET", f"/tasks/{job}")
        assert reply.status_code == 503 and reply.headers["Retry-After"], reply.text
        assert train(first).status_code == 503
        # What was on its way when the lease ended has come by the next try; a pod is asked for every few seconds.
        before = tries()
        until(lambda: tries() > before + 1, 20, every=0.02)
        written, before = len(writes()), tries()
        until(lambda: tries() > before + 12, 40, every=0.02)
        assert len(writes()) == written, writes()[written:]
        assert "nothing is done until it is" in first.log_text()
        kube.forbidden = ()
        until(lambda: leads(first), 20)
        assert call(first, "GET", f"/tasks/{job}").json()["id"] == job and "leads on" in first.log_text()
        assert train(first).status_code == 200
        until(lambda: len(writes()) > written, 30, message="it does nothing")
        assert first.process.poll() is None and first.stop() == 0


@case(limit=120, platform=False)
def the_api_server_is_away_for_a_moment_and_the_same_one_leads():
    with controllers("a", "b") as (kube, made):
        first, second = two(made)
        kube.away = True
        until(lambda: not leads(first), 20)
        kube.away = False
        until(lambda: leads(first) or leads(second), 20)
        assert leads(first) and not leads(second)
        until(lambda: call(second, "GET", "/tasks").status_code == 200, 20)
        assert first.process.poll() is None and second.stop() == 0 and first.stop() == 0


@case(limit=120, platform=False)
def without_the_api_server_nobody_leads_for_long():
    with controllers("a", "b") as (kube, made):
        first, second = two(made)
        kube.away = True
        assert first.process.wait(30 * harness.STRETCH) == 1
        assert call(second, "GET", "/dataset").status_code == 200
        reply = call(second, "GET", "/tasks")
        assert reply.status_code == 503 and not leads(second), reply.text
        kube.away = False
        until(lambda: leads(second), 30)
        assert call(second, "GET", "/tasks").json() == []


@case(limit=120, platform=False)
def train_jobs_are_looked_at_when_there_are_any():
    """The leader does without, says so, and needs nobody who starts it again."""
    with controllers("a") as (kube, made):
        a = made["a"].start()
        until(lambda: leads(a) and unseen(a), 20)
        assert "not installed" in unseen(a) and "TrainJobs are not looked at" in a.log_text()
        assert call(a, "GET", "/tasks").json() == []
        kube.crds = True
        until(lambda: not unseen(a), 30)
        assert "TrainJobs are looked at" in a.log_text() and a.stop() == 0


@case(limit=120, platform=False)
def a_function_goes_whose_object_was_deleted_while_nobody_led():
    with controllers("a") as (kube, made):
        kube.crds, a = True, made["a"]
        kube.functions = [{"metadata": {"name": "of-object", "uid": "1", "generation": 1, "labels": {"kubeml.dev/install": "kubeml"}},
                           "spec": {"model": "lenet5"}}]

        def functions():
            return {f["name"] for f in call(a, "GET", "/function").json()}
        a.start()
        until(lambda: functions() == {"of-object"}, 30, message="the object makes no function")
        assert call(a, "POST", "/function/by-hand", json={"model": "lenet5"}).status_code == 200
        assert a.stop() == 0
        kube.functions = []
        a.start()
        until(lambda: functions() == {"by-hand"}, 30, message=lambda: f"there are {functions()}")
        assert a.stop() == 0


def each_operation(platform):
    """Asks every operation of the API once: method, path, its reply. Who answers 503 says so in the contract."""
    paths = yaml.safe_load((harness.ROOT / "docs/reference/openapi.yaml").read_text())["paths"]
    for path, methods in paths.items():
        for method in set(methods) & {"get", "post", "put", "delete"}:
            operation = methods[method]
            takes = operation.get("requestBody", {}).get("content", {})
            body = {"json": {}} if "application/json" in takes else {"files": {"x": b"x"}} if takes else {}
            reply = call(platform, method.upper(), path.replace("{", "").replace("}", ""), **body)
            assert reply.status_code != 503 or "503" in operation["responses"], (method, path, reply.text)
            yield method, path, reply


@case(limit=120, platform=False)
def nothing_of_a_leaders_is_touched_before_it_leads():
    """Every path of the API, on a controller that has never led."""
    with controllers("a") as (kube, made):
        kube.away = True
        a = made["a"].start()
        asked = 0
        for method, path, reply in each_operation(a):
            led = path.startswith(("/tasks", "/train", "/infer", "/usage")) or method == "delete"
            assert (reply.status_code == 503) is led, (method, path, reply.status_code, reply.text)
            asked += 1
        assert asked > 25 and a.process.poll() is None
        assert call(a, "GET", "/ready").json() == {"status": "ready", "leads": False}


def trainjobs(kube, ours):
    """{name: (state, reason, job)}"""
    with kube.lock:
        return {name: tuple(o.get("status", {}).get(key) for key in ("state", "reason", "job"))
                for name, o in kube.trainjobs.items() if name in ours}


@case(limit=180, platform=False)
def another_database_and_another_namespace_take_nothing_away():
    """A release that is pointed to another database and back keeps its TrainJobs and its jobs; and jobs whose namespace was
    deleted go on in the next one that has their database."""
    with controllers("a") as (kube, made):
        a = made["a"]
        kube.trainjobs, kube.crds, kube.uid = {}, True, "first"
        a.start()
        until(lambda: leads(a), 20)
        uploads(a)
        jobs = [train(a).json()["id"] for _ in range(2)]
        shown = {f"job-{job}": job for job in jobs}
        until(lambda: {n: s[2] for n, s in trainjobs(kube, shown).items()} == shown, 20, message=lambda: kube.trainjobs)
        a.stop()

        where = a.options.index("--store") + 1
        store = a.options[where]
        a.options[where] = store + "-other"
        pathlib.Path(a.options[where].removeprefix("lmdb:")).mkdir()
        a.start()
        want = {name: ("waiting", "NotInDatabase", job) for name, job in shown.items()}
        until(lambda: trainjobs(kube, shown) == want, 20, message=lambda: kube.trainjobs)
        assert call(a, "GET", "/tasks?state=all").json() == []
        a.stop()

        a.options[where] = store
        a.start()
        until(lambda: all(s[1] != "NotInDatabase" for s in trainjobs(kube, shown).values()), 20)
        assert set(trainjobs(kube, shown)) == set(shown)
        # Its history deleted through the API, a job's TrainJob goes.
        call(a, "DELETE", f"/tasks/{jobs[1]}")
        until(lambda: call(a, "GET", f"/tasks/{jobs[1]}").json()["state"] == "cancelled", 20)
        reply = call(a, "DELETE", f"/history/{jobs[1]}")
        assert reply.status_code == 200, reply.text
        until(lambda: f"job-{jobs[1]}" not in kube.trainjobs, 60)
        a.stop()

        kube.trainjobs, kube.uid = {}, "second"
        a.start()
        # With its status the database has noted the TrainJob.
        until(lambda: {n: s[2] for n, s in trainjobs(kube, shown).items()} == {f"job-{jobs[0]}": jobs[0]}, 20,
              message="a job whose namespace is gone gets no TrainJob")
        assert call(a, "GET", f"/tasks/{jobs[0]}").json()["state"] in ("queued", "starting", "running")
        a.stop()

        # But deleted in this namespace while nobody looked, it is cancelled.
        kube.trainjobs.clear()
        a.start()
        until(lambda: call(a, "GET", f"/tasks/{jobs[0]}").json().get("state") == "cancelled", 30)


@case(limit=120, platform=False)
def no_store_is_said_and_waited_for():
    if not list((harness.BUILD / "lib").glob("kubeml-mongo.so")):
        harness.skip("built without libmongoc")
    with harness.held_port() as nobody, harness.held_port() as holder:
        address, port = f"127.0.0.1:{nobody.getsockname()[1]}", holder.getsockname()[1]
        with controllers("a", store=f"mongodb://{address}/kubeml?serverSelectionTimeoutMS=500") as (kube, made):
            a = made["a"]
            a.options += ["--listen", f"127.0.0.1:{port}"]
            starter = threading.Thread(target=lambda: a.start(wait=False))
            starter.start()
            a.url = f"http://127.0.0.1:{port}"

            def answer():
                with contextlib.suppress(requests.ConnectionError):
                    reply = call(a, "GET", "/ready")
                    return [reply] if "starting" not in reply.text else None  # a 503 counts as false
            reply = until(answer, 30)[0]
            assert reply.status_code == 503 and address in reply.json()["detail"], reply.text
            assert reply.headers["Retry-After"]
            assert call(a, "GET", "/health").status_code == 200
            for method, path, reply in each_operation(a):
                alive = path in ("/health", "/version", "/metrics", "/zoo")
                assert (reply.status_code == 503) is not alive, (method, path, reply.status_code, reply.text)
            assert requests.get(a.url + "/dataset").status_code == 401
            assert kube.holder() is None
            assert a.stop() == 0
            starter.join(20)


harness.main(globals())
