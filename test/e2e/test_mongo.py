#!/usr/bin/python3
"""The platform on MongoDB: its users of one job, and what it does without it."""
import asyncio
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import urllib.parse

import requests

import harness
from harness import Platform, case, skip, until

SERVER = pathlib.Path(__file__).resolve().parent.parent / "mongo"


def server_uri(database, kind="users"):
    """A server with users: MONGODB_URI, or the stand-in that tests share; "tls": one behind TLS."""
    if not (harness.BIN.parent / "lib/kubeml-mongo.so").exists():
        skip("this build has no MongoDB: libmongoc's headers are not installed")
    told = subprocess.run([SERVER / "uri.sh", kind], capture_output=True, text=True)
    if told.returncode == 77:
        skip(told.stdout.strip())
    assert told.returncode == 0, told
    before, _, options = told.stdout.strip().partition("?")
    if "MONGODB_URI" not in os.environ:
        print("the server is the tests' stand-in, not MongoDB")
    return before.rstrip("/") + f"/{database}?{options}"


def client(uri):
    try:
        import pymongo
    except ImportError:
        skip("python3-pymongo is not here, which looks at the server's users")
    return pymongo.MongoClient(uri.replace("kubeml.keep_ms", "ignored"), serverSelectionTimeoutMS=5000)


def job_users(mongo, database):
    found = mongo.admin.command({"usersInfo": {"forAllDBs": True}})["users"]
    return {u["user"]: u for u in found if u["user"].startswith("job-") and u["db"].startswith(database)}


def clean(mongo, database):
    for name in job_users(mongo, database).values():
        mongo[name["db"]].command("dropUser", name["user"])
    for name in mongo.list_database_names():
        if name == database or name.startswith(database + "_"):
            mongo.drop_database(name)


class Server:
    """A stand-in of our own, without users, whose data outlive it."""

    def __init__(self):
        self.holder = harness.held_port()
        self.port = self.holder.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        self.process = None
        self.uri = f"mongodb://127.0.0.1:{self.port}/kubeml?kubeml.patience_ms=4000"

    def start(self):
        self.process = subprocess.Popen(
            [SERVER / "run.sh", "127.0.0.1", str(self.port), "300", self.folder.name + "/data"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("MONGO_")})
        line = self.process.stdout.readline()
        if line.startswith("listening on"):
            return
        process, self.process = self.process, None
        process.stdout.close()
        status = process.wait(30 * harness.STRETCH)
        if status == 77:
            skip(line.strip())
        raise AssertionError(f"the stand-in ended with {status}: {line}")

    def stop(self):
        """With SIGTERM: unlike MongoDB's, the stand-in's file may be empty after a kill -9 between two writes."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(30)
            self.process.stdout.close()
            self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.holder.close()
        self.folder.cleanup()


class Line:
    """A port that leads to another one of this machine and counts what that one answers."""

    def __init__(self, to):
        self.to, self.given = to, 0
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.connect, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever)

    async def connect(self, reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", self.to)
        await asyncio.gather(self.forward(reader, back, False), self.forward(there, writer, True))

    async def forward(self, reader, writer, counted):
        try:
            while block := await reader.read(1 << 16):
                self.given += len(block) if counted else 0
                writer.write(block)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


@case(limit=120, platform=False)
def users_live_as_long_as_their_job():
    database = f"e2e_{os.getpid()}"
    uri = server_uri(database)
    mongo = client(uri)
    try:
        with Platform("--store", uri) as p:
            ready(p)
            p.dataset()
            p.function()
            job = p.train(epochs=50000, default_parallelism=2)
            until(lambda: p.task(job)["state"] == "running" and p.task(job)["epoch"] >= 1, 40)
            users = job_users(mongo, database)
            assert len(users) == 2, users
            roles = sorted((r["role"], r["db"] == database) for u in users.values() for r in u["roles"])
            assert roles == [("kubeml-job-1", True), ("read", False)], roles
            # No pod was given the store's own user, by its arguments, its environment or its messages.
            for pod in p.pods():
                for place in ("cmdline", "environ"):
                    assert b"mongodb" not in pathlib.Path(f"/proc/{pod['pid']}/{place}").read_bytes(), pod
            # A crash forgets nobody who is still needed, and somebody whose job is gone is not kept.
            mongo[database].command("createUser", "job-0123456789abcdef", pwd="x" * 32,
                                    roles=[{"role": "read", "db": database}])
            p.kill()
            p.start()
            ready(p)
            until(lambda: set(job_users(mongo, database)) == set(users), 20, message="users after a crash")
            epoch = p.task(job)["epoch"]
            until(lambda: p.task(job)["epoch"] > epoch, 40)
            p.delete(f"/tasks/{job}")
            p.wait(job)
            until(lambda: not job_users(mongo, database), 20, message="users after the job's end")
            done = p.train(epochs=1)
            p.succeed(done)
            assert len(p.post("/infer", json={"model_id": done, "data": [[[0.0] * 28] * 28]})["predictions"]) == 1
            until(lambda: not job_users(mongo, database), 20, message="users after inference")
            assert "its pods have users of their own in the store" in p.log_text()
            # One that goes on gets new ones.
            p.post(f"/tasks/{job}/resume")
            until(lambda: len(job_users(mongo, database)) == 2, 20)
            p.delete(f"/tasks/{job}")
            p.wait(job)
            assert "@" not in "".join(line for line in p.log_text().splitlines() if "mongodb:" in line)
    finally:
        clean(mongo, database)


@case(limit=120, platform=False)
def what_is_replaced_leaves_nothing():
    """A job replaces its checkpoint after every epoch: the database must not keep them all."""
    with Server() as server:
        server.start()
        mongo = client(server.uri).kubeml
        with Platform("--store", server.uri) as p:
            ready(p)
            p.dataset()
            p.function()
            p.succeed(p.train(epochs=15, default_parallelism=2), 60)
            until(lambda: {c["files_id"] for c in mongo["blobs.chunks"].find({}, {"files_id": 1})}
                  == {f["_id"] for f in mongo["blobs.files"].find()}, 10, message="bytes that nothing names")
            assert mongo["blobs.files"].count_documents({}) > 0
            assert mongo.uploads.count_documents({"state": "deleted"}) == 0, list(mongo.uploads.find())


@case(limit=120, platform=False)
def functions_fetch_their_shares_alone():
    """An epoch of two functions: every chunk of both splits comes once, and not once to each."""
    train, test = 6000, 512
    whole = (train + test) * 28 * 28
    with Server() as server:
        server.start()
        with Line(server.port) as line, Platform("--store", server.uri.replace(str(server.port), str(line.port))) as p:
            ready(p)
            p.dataset(files=harness.tiny_mnist(train, test))
            p.function()
            before = line.given
            p.succeed(p.train(epochs=1, k=2, batch_size=64, default_parallelism=2))
            given = line.given - before
            print(f"{given} bytes came from the server, the data set has {whole}")
            assert whole <= given < 1.25 * whole, given


# A function whose file-size limit, seen from its first step on, holds the two GiB that its dataset is said to have.
LIMITED = """#include <kubeml.h>
#include <sys/resource.h>
static kml_tensor model(kml_graph *g, kml_tensor x)
{
    return kml_linear(g, kml_flatten(g, x), 10);
}
static int step(kml_step *s)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_FSIZE, &files) || files.rlim_cur < 2UL << 30)
        return kml_step_fail(s, "files end at %lu bytes", (unsigned long)files.rlim_cur);
    return kml_gradients(s) ? -1 : kml_update(s, kml_learning_rate(s));
}
KUBEML_FUNCTION(.model = model, .step = step);
"""


@case(limit=120, platform=False)
def a_function_may_keep_all_of_its_dataset():
    """What it fetches goes into one file, which the limit of a log must not cut."""
    with Server() as server:
        server.start()
        mongo = client(server.uri)
        with Platform("--store", server.uri) as p:
            ready(p)
            p.dataset()
            p.function(code=LIMITED)
            upload = mongo.kubeml["records.datasets"].find_one()["value"]["upload"]
            told = mongo[f"kubeml_{upload}"].meta.update_one({"_id": "info"}, {"$set": {"bytes": 2 << 30}})
            assert told.matched_count == 1, told
            p.succeed(p.train(epochs=1))


def ready(p):
    """A slow server is waited for, and said to be away until it answers."""
    until(lambda: requests.get(p.url + "/ready", timeout=20).status_code == 200, 30, message="never ready")


def problem(p, path, **arguments):
    answer = requests.get(p.url + path, timeout=20, **arguments)
    assert answer.status_code == 503, (path, answer.status_code, answer.text)
    assert answer.headers["Content-Type"].startswith("application/problem+json"), answer.headers
    assert "Retry-After" in answer.headers or path == "/ready"
    detail = answer.json()["detail"]
    assert "database" in detail, detail
    return detail


@case(limit=120, platform=False)
def no_database_is_said_and_waited_for():
    server_uri("x")  # leaves the case out where there is no server
    with Server() as server:
        with Platform("--store", server.uri) as p:
            assert p.get("/health")["status"] == "ok"
            for path in ("/started", "/ready", "/dataset", "/function", "/tasks", "/history"):
                assert f"mongodb://127.0.0.1:{server.port}/kubeml" in problem(p, path), path
            p.get("/version")
            server.start()
            ready(p)
            p.dataset()
            p.function()
            assert "the store has no users" not in p.log_text()
            p.succeed(p.train(epochs=1))
            assert "the store has no users" in p.log_text()  # the stand-in's, here
            # In the middle of a job: it is said again, and what happened meanwhile is written later.
            job, far = p.train(epochs=100000), p.train(p.paced(5), epochs=100000)
            until(lambda: p.task(job)["epoch"] >= 1 and p.task(far)["state"] == "running", 30)
            server.stop()
            until(lambda: requests.get(p.url + "/ready", timeout=20).status_code == 503, 30)
            problem(p, "/ready")
            problem(p, "/dataset")
            assert p.get("/started") == {"status": "started"}
            for one in (job, far):  # the first is about to write a checkpoint, the other one is far from any
                why = p.get(f"/tasks/{one}/explain")
                assert (why["state"], why["reason"]) == ("running", "StoreDown"), why
                p.delete(f"/tasks/{one}")
            server.start()
            ready(p)
            names = [d["name"] for d in p.get("/dataset")]
            assert names == ["tiny"], names
            p.wait(job, 60)
            p.kill()  # what the record says is in the store
            p.start()
            ready(p)
            until(lambda: p.task(job)["state"] in ("cancelled", "stopped", "failed"), 20)


@case(limit=60, platform=False)
def a_locator_needs_no_name_of_a_database():
    server_uri("x")  # leaves the case out where there is no server
    with Server() as server:
        with Platform("--store", f"mongodb://127.0.0.1:{server.port}") as p:
            assert f"mongodb://127.0.0.1:{server.port}/kubeml: " in problem(p, "/ready")
            server.start()
            ready(p)
            p.dataset()
            assert [d["name"] for d in p.get("/dataset")] == ["tiny"]


@case(limit=60, platform=False)
def a_database_that_lets_nobody_in_is_named():
    uri = server_uri("x")
    if "@" not in uri:
        skip("MONGODB_URI names no user")
    wrong = uri[:uri.index("://") + 3] + "nobody:secret-word@" + uri[uri.rindex("@") + 1:]
    with Platform("--store", wrong) as p:
        detail = problem(p, "/ready")
        assert "uthenticat" in detail and "secret-word" not in detail, detail
        assert "secret-word" not in p.log_text()


@case(limit=90, platform=False)
def a_job_whose_users_may_not_be_made_fails_with_that():
    database = f"e2e_{os.getpid()}"
    uri = server_uri(database)
    mongo = client(uri)
    name = f"kubeml-{os.getpid()}"
    mongo.admin.command("createUser", name, pwd="limited", roles=["readWriteAnyDatabase", "dbAdminAnyDatabase"])
    try:
        limited = f"{uri[:uri.index('://') + 3]}{name}:limited@{uri[uri.rindex('@') + 1:]}"
        with Platform("--store", limited) as p:
            ready(p)
            # Before the first job.
            until(lambda: "users" in p.get("/ready"), 20, message="that it makes no users is not said")
            assert "lets no users be made for jobs" in p.log_text()
            p.dataset()
            p.function()
            task = p.wait(p.train(epochs=1), 40)
            assert (task["state"], task["reason"]) == ("failed", "StoreAccess"), task
            assert "not authorized" in task["message"] and "access to the store" in task["message"], task
    finally:
        mongo.admin.command("dropUser", name)
        clean(mongo, database)


@case(limit=90, platform=False)
def a_job_reads_through_tls_from_a_server_by_name():
    """What the functions' walls let through follows from what the driver reads in the URI, however that is written."""
    database = f"e2e_{os.getpid()}"
    plain = server_uri(database, "tls").replace("127.0.0.1", "localhost")
    before, query = plain.split("?")
    options = dict(part.split("=") for part in query.split("&"))
    options["tlscafile"] = urllib.parse.quote(options.pop("tlsCAFile"), safe="")
    uri = f"{before}?{'&'.join('='.join(option) for option in options.items())}"
    try:
        with Platform("--store", uri) as p:
            ready(p)
            p.dataset(files=harness.tiny_mnist(6000, 512))
            p.function()
            p.succeed(p.train(epochs=2, k=2, batch_size=64, default_parallelism=2))
    finally:
        clean(client(plain), database)


if __name__ == "__main__":
    harness.main(globals())
