#!/usr/bin/python3
"""The command line: its verbs against a running platform, their formats and exit statuses (0 done, 1 failed, 2 wrong
usage), and the platform that it starts and ends itself."""
import json
import os
import pty
import re
import signal
import socket
import subprocess

import yaml

import harness
from client import MODEL, Shell, answering, endless, ready, table, train, upload
from harness import case, until


# ---- the platform itself ------------------------------------------------------------------------

@case(platform=False)
def up_status_down():
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "deep/home")
    out = s.out("up", "--listen", "127.0.0.1:0", "--slots", 5)
    try:
        url = out.split(" at ")[1].split()[0]
        assert f"export KUBEML_URL={url}" in out and "controller.log" in out, out
        s.environment["KUBEML_URL"] = url
        assert s.out("status").splitlines() == [f"{s.out('version').splitlines()[0]} at {url}: ready",
                                                "jobs: 0 running, 0 queued; slots: 5 of 5 free"], s.out("status")
        assert s.json("status")["checks"]["slots"] == 5, s.json("status")
        assert s.out("version").count("\n") == 2 and url in s.out("version")
        upload(s)
        port = url.rsplit(":", 1)[1]
        s.refused("up", "--listen", f"127.0.0.1:{port}", says=["another controller runs on", f"the platform is up already at {url}"])
        said = s.run("up", "--gpus", "some", status=1)[1]
        assert "must be auto, all or none" in said and "up already" not in said, said
        other = Shell(KUBEML_HOME=s.folder / "other")
        other.refused("up", "--listen", f"127.0.0.1:{port}", says=f"port {port} on 127.0.0.1 is taken")
        assert "tiny" in s.out("dataset", "list"), "the first one is untouched"
    finally:
        assert s.out("down") == "kubeml is down\n"
    assert not harness.processes_of(s.folder), harness.processes_of(s.folder)
    s.refused("status", says=["connect", "kubeml up"])
    assert "no platform at" in s.out("version")
    assert "no platform runs in" in s.out("down")
    log, old = (s.folder / "deep/home" / name for name in ("controller.log", "controller.log.old"))
    short = log.read_text()
    s.out("up", "--listen", "127.0.0.1:0")
    try:
        assert log.read_text().startswith(short) and not old.exists(), "it goes on behind the last one's"
        os.truncate(log, 16 << 20)
        s.refused("up", "--listen", "127.0.0.1:0", says="the platform is up already")
        assert not old.exists(), "it is written to"
    finally:
        s.out("down")
    s.out("up", "--listen", "127.0.0.1:0")
    s.out("down")
    assert old.stat().st_size >= 16 << 20 and 0 < log.stat().st_size < 1 << 20
    s.refused("up", "--listen", "127.0.0.1:99999", status=2, says='not "127.0.0.1:99999"')


@case(platform=False)
def down_ends_what_a_killed_controller_left():
    """The next controller would take it over; who wants none is rid of it all the same, and the job is not."""
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "home")
    s.environment["KUBEML_URL"] = s.out("up", "--listen", "127.0.0.1:0").split(" at ")[1].split()[0]
    try:
        upload(s)
        s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
        job = endless(s)
        controller = int((s.folder / "home/run/controller.pid").read_text())
        os.kill(controller, signal.SIGKILL)
        until(lambda: not harness.alive(controller))
        records = [json.loads(record.read_text()) for record in (s.folder / "home/run/pods").glob("*.json")]
        # The job's: one for the pool may have been on its way just then, and ends with who starts it.
        pods = [record["pid"] for record in records if record["job"] == job]
        assert len(pods) >= 3 and all(harness.alive(pid) for pid in pods), "they went with it: this shows nothing"
        said = s.out("down")
        assert re.fullmatch(r"ended \d+ processes that a killed controller had left\nkubeml is down\n", said), said
        assert not any(harness.alive(pid) for pid in pods), pods
        assert not harness.processes_of(s.folder), harness.processes_of(s.folder)
        assert "no platform runs in" in s.out("down")
        s.environment["KUBEML_URL"] = s.out("up", "--listen", "127.0.0.1:0").split(" at ")[1].split()[0]
        until(lambda: s.json("task", "get", job)["state"] == "running")
    finally:
        s.out("down")
    assert not harness.processes_of(s.folder), harness.processes_of(s.folder)


@case(platform=False)
def a_home_is_relative_to_where_the_platform_is_started():
    """Its pods run elsewhere."""
    s = Shell()
    s.environment["KUBEML_HOME"] = "here/home"
    s.environment["KUBEML_URL"] = s.out("up", "--listen", "127.0.0.1:0").split(" at ")[1].split()[0]
    try:
        upload(s)
        s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
        s.out("task", "wait", train(s))
        job = endless(s)
        controller = int((s.folder / "here/home/run/controller.pid").read_text())
        os.kill(controller, signal.SIGKILL)
        until(lambda: not harness.alive(controller))
        records = [json.loads(record.read_text()) for record in (s.folder / "here/home/run/pods").glob("*.json")]
        pods = [record["pid"] for record in records if record["job"] == job]
        assert pods and all(map(harness.alive, pods)), "they went with it: this shows nothing"
    finally:
        assert "kubeml is down\n" in s.out("down")
    assert not any(map(harness.alive, pods)), pods


@case(platform=False)
def up_that_cannot_start():
    s = Shell()
    s.environment["KUBEML_HOME"] = s.write("file", "")
    s.refused("up", "--listen", "127.0.0.1:0", says="file")
    s.environment["KUBEML_HOME"] = str(s.folder / "home")
    s.refused("up", "--listen", "0.0.0.0:0", says="needs a token")
    s.refused("up", "--listen", "nonsense", says="HOST:PORT", status=2)
    s.refused("up", "--slots", "0", says="--slots", status=2)
    s.refused("up", "--listen", "127.0.0.1:0", "--token-file", "none", says="none")
    assert not harness.processes_of(s.folder)


@case(platform=False)
def a_token():
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "home")
    s.write("token", "sesame\n")
    out = s.out("up", "--listen", "127.0.0.1:0", "--token-file", "token")
    try:
        s.environment["KUBEML_URL"] = out.split(" at ")[1].split()[0]
        s.refused("task", "list", says="KUBEML_TOKEN")
        s.environment["KUBEML_TOKEN"] = "sesam"
        s.refused("task", "list", says="KUBEML_TOKEN")
        s.environment["KUBEML_TOKEN"] = "sesame"
        s.out("task", "list")
    finally:
        s.out("down")


@case(limit=120, platform=False)
def users_have_tokens_of_their_own():
    s = Shell()
    s.environment["KUBEML_HOME"] = str(s.folder / "home")

    def up():
        out = s.out("up", "--listen", "127.0.0.1:0", "--token-file", "tokens")
        s.environment["KUBEML_URL"] = out.split(" at ")[1].split()[0]
    s.write("tokens", "anna:of-anna\nben\n\nan na:x\n")
    s.refused("up", "--listen", "127.0.0.1:0", "--token-file", "tokens", says=["tokens: line 4", "user name"])
    s.write("tokens", "# the team's\nanna:of-anna\nben:of-ben\n\nof-nobody\n")
    up()
    try:
        s.environment["KUBEML_TOKEN"] = "anna:of-anna"
        s.refused("task", "list", says="KUBEML_TOKEN")
        jobs = {}
        for user, token in (("anna", "of-anna"), ("ben", "of-ben"), (None, "of-nobody")):
            s.environment["KUBEML_TOKEN"] = token
            if not jobs:
                upload(s)
                s.out("function", "create", "--name", "lenet", "--code", harness.LENET)
            jobs[train(s)] = user
            s.out("task", "wait", list(jobs)[-1])
        head, *lines = s.out("task", "list", "--all", "-o", "wide").splitlines()
        assert head.split()[-2:] == ["USER", "REASON"], head
        rows = {line.split()[0]: line.split()[-2] for line in lines}
        log = (s.folder / "home/controller.log").read_text()
        for job, user in jobs.items():
            assert s.json("task", "get", job)["user"] == user and rows[job] == (user or "-"), rows
            assert (f"job={job} asked for by {user}" in log) == bool(user), log
        assert "of-anna" not in log and "of-nobody" not in log
        s.out("down")
        up()
        assert {t["id"]: t["user"] for t in s.json("task", "list", "--all")} == jobs
        s.environment["KUBEML_TOKEN"] = "of-nobody"
        anna, ben, nobody = jobs
        assert s.run("history", "prune", "-y", "--user", "an") == ("", "nothing to be deleted\n")
        assert s.out("history", "prune", "-y", "--user", "anna") == f"history {anna} deleted\n"
        waits = [train(s, "-p", 4, epochs=50000), train(s, "-p", 4)]
        assert s.run("task", "prune", "-y", "--user", "ben") == ("", "nothing to be stopped\n")
        out = s.out("task", "prune", "-y")
        assert all(job in out for job in waits), out
        out = s.out("history", "prune", "-y")  # of all users
        assert ben in out and nobody in out, out
    finally:
        s.out("down")


# ---- what is shown -----------------------------------------------------------------------------

@case(limit=90)
def formats(p):
    s = ready(p)
    once = train(s, "--K", 4, "--sparse-avg")
    assert s.json("task", "get", once)["request"]["options"]["k"] == -1
    s.out("task", "wait", once)
    s.out("history", "delete", once)
    job = train(s, "--K", 4, "--seed", 7, "--priority", 3)
    s.out("task", "wait", job)
    for words, columns in (("dataset list", "NAME TRAIN TEST SHAPE CLASSES"), ("function list", "NAME VERSION KIND"),
                           ("task list --all", "ID STATE EPOCH OF"), ("history list", "ID FUNCTION DATASET EPOCHS"),
                           ("zoo list", "NAME PARAMETERS ABOUT")):
        words = words.split()
        narrow, wide = s.out(*words), s.out(*words, "-o", "wide")
        assert narrow.split()[:len(columns.split())] == columns.split(), narrow
        assert narrow.splitlines()[0] == s.out(*words, "-o", "table").splitlines()[0]
        assert narrow.count("\n") == wide.count("\n"), (narrow, wide)
        assert len(wide.splitlines()[0]) >= len(narrow.splitlines()[0])
        told = s.json(*words)
        assert len(told) == narrow.count("\n") - 1
        # What a job before this one left may still change between two looks.
        until(lambda w=words: yaml.safe_load(s.out(*w, "-o", "yaml")) == s.json(*w), 20,
              message=f"{words}: YAML is read as something else than JSON")
    for words, cells in (("history list", {"STATE": "succeeded", "AGE": ".*s"}), ("task list -a", {"STATE": "succeeded", "AGE": ".*s"}),
                         ("history list -o wide", {"K": "4", "FUNCTIONS": "2", "SEED": "7"}),
                         ("task list -a -o wide", {"K": "4", "PRIORITY": "3"})):
        titles, row = (re.split(" {2,}", line) for line in s.out(*words.split()).splitlines())
        for title, cell in cells.items():
            assert re.fullmatch(cell, row[titles.index(title)]), (words, title, row)
    for words in ("dataset get tiny", "function get lenet", f"task get {job}", f"history get {job}", f"explain {job}",
                  "explain lenet", "status"):
        told = s.json(*words.split())
        if words != "status":
            assert yaml.safe_load(s.out(*words.split(), "-o", "yaml")) == told, words
    assert table(s.out("dataset", "list")) == [
        {"NAME": "tiny", "TRAIN": "512", "TEST": "128", "SHAPE": "1x28x28", "CLASSES": "10"}]
    for words in ("dataset list", "dataset get tiny", "function get lenet", f"task get {job}", f"explain {job}",
                  f"history get {job}", "zoo list", "status"):
        s.refused(*words.split(), "-o", "xml", says='no output format "xml"', status=2)


SCALARS = ["2026-11-21T20:56:38.450Z", "2026-11-21", "2026-11-21 20:56:38", "190:20:30", "1:30", "1_000", "0b101", "0o17",
           "017", "0x1F", "1e5", "1234e56789", "12345678901234567890", "+1", "-1.5", ".5", ".inf", "-.INF", ".nan", "inf", "nan",
           "=", "<<", "~", "", "null", "Yes", "OFF", "n", "true", "- a", "a: b", "#", "2 epochs are trained", "two\nlines", " ",
           "ä", "'", '"', "\\", "*a", "&a", "!a", "%a", "@a", "`a", "{}", "[]", "? a", "---", "..."]
NUMBERS = [0, -1, 9007199254740993, 0.0, 1.0, -2.5, 1e-05, 2e-07, 1e22, -3e+100, 1.5e-300, 0.1, 5e-324, True, False, None]


@case(limit=60, platform=False)
def a_list_is_read_to_its_last_page():
    with answering({"/function": ([{"name": "a"}], "/function?limit=1&continue=a"),
                    "/function?limit=1&continue=a": ([{"name": "b"}], "/function?limit=1&continue=b"),
                    "/function?limit=1&continue=b": ([], None),
                    "/tasks?state=all": ([{"id": "1", "created": "2026-01-02"}], "/tasks?state=all&continue=1"),
                    "/tasks?state=all&continue=1": ([{"id": "2", "created": "2026-01-01"}], None)}) as s:
        assert s.json("function", "list") == [{"name": "a"}, {"name": "b"}]
        assert [row["id"] for row in s.json("task", "list", "--all")] == ["2", "1"]


@case(limit=60, platform=False)
def a_loss_without_bounds_keeps_its_column():
    data = {"train_loss": [0.5, 2200036.1622, 1e300], "validation_loss": [0.25, -936120.6428, None],
            "accuracy": [96.02, 9.8, None], "epoch_duration": [1.5, 2.5, 3.5], "parallelism": [4, 4, 4]}
    with answering({"/history/x": ({"id": "x", "data": data}, None)}) as s:
        head, *rows = s.out("history", "get", "x").splitlines()
    assert [len(row) for row in rows] == 3 * [len(head)], (head, rows)
    assert [row.split()[1:3] for row in rows] == [["0.5000", "0.2500"], ["2.2e+06", "-9.361e+05"], ["1e+300", "-"]], rows


@case(limit=60, platform=False)
def what_has_targets_is_told_as_such():
    """A number as the platform says it; and no classes are none."""
    reg = {"name": "reg", "train_set_size": 500, "test_set_size": 100, "shape": [8, 1, 1], "dtype": "float32", "classes": 0,
           "targets": 2, "digest": "d1"}
    cls = {**reg, "name": "cls", "classes": 3, "targets": 0, "digest": "d2"}
    with answering({"/infer": ({"predictions": [[1.64222490788, 3.84632205963], [0, -1e-20]]}, None), "/dataset": ([cls, reg], None)}) as s:
        s.write("x.json", "[[1]]")
        assert s.out("infer", "-n", "a", "--datafile", "x.json") == "[1.64222490788,3.84632205963] [0,-1e-20]\n"
        assert [(row["NAME"], row["CLASSES"]) for row in table(s.out("dataset", "list"))] == [("cls", "3"), ("reg", "-")]
        wide = [(row["CLASSES"], row["TARGETS"], row["DIGEST"]) for row in table(s.out("dataset", "list", "-o", "wide"))]
        assert wide == [("3", "-", "d2"), ("-", "2", "d1")], wide


@case(limit=60, platform=False)
def yaml_is_read_as_what_json_says():
    """Also by YAML 1.1: times, digits with a colon, and numbers without a point."""
    told = [{"name": "a", "words": SCALARS, "numbers": NUMBERS, **{word: word for word in SCALARS}}]
    with answering({"/function": (told, None)}) as s:
        assert s.json("function", "list") == told
        read = yaml.safe_load(s.out("function", "list", "-o", "yaml"))
    for key, value in told[0].items():
        assert read[0][key] == value, (key, value, read[0][key])
        assert list(map(type, value)) == list(map(type, read[0][key])), (key, value, read[0][key])
    assert read == told


@case(limit=90)
def top(p):
    s = ready(p)
    assert "no function of a job runs" in s.run("top")[1] and s.json("top") == []
    job = endless(s)
    head, *rows = s.out("top").splitlines()
    assert head.split() == "JOB FUNCTION CPU % MEMORY GPU % GPU MEMORY WATTS".split(), head
    assert len(rows) == 2, "they run, and have said so"
    for i, row in enumerate(rows):
        id, function, cpu, memory, *gpu = row.split()
        assert (id, function, gpu) == (job, str(i), ["-"] * 3) and memory.endswith("Mi") and int(memory[:-2]) > 0, row
    until(lambda: all(r["cpu_percent"] > 0 for r in s.json("top")), 20)
    s.out("task", "stop", job)
    s.run("task", "wait", job, status=1)
    assert s.json("top") == [], s.json("top")
    used = json.loads(s.out("history", "get", job, "-o", "json"))["usage"]
    assert len(used["cpu_percent"]) == len(used["memory_bytes"]) and max(filter(None, used["memory_bytes"])) > 1 << 20


@case(limit=90)
def tasks(p):
    s = ready(p)
    assert "no job waits or runs" in s.run("task", "list")[1] and s.json("task", "list") == []
    job = endless(s)
    row, = table(s.out("task", "list"))
    assert row["ID"] == job and row["STATE"] == "running" and row["OF"] == "50000", row
    s.refused("task", "wait", job, "--timeout", 1, says="did not end within 1 s")
    assert s.out("task", "stop", "--id", job) == f"job {job} stopped\n"
    out, said = s.run("task", "wait", job, status=1)
    assert said.startswith("cancelled: it was stopped"), said
    s.refused("task", "stop", job, says=job)
    before = s.json("task", "get", job)
    listed = s.out("task", "list", "-a")
    assert f"{before['validation_loss']:.4g}" in listed.split(), (listed, before)  # as the accuracy beside it
    done = before["epoch"]
    s.out("task", "resume", job)
    now = s.json("task", "get", job)
    assert now["epoch"] >= done and now["created"] == before["created"], (now, "what was trained is trained")
    until(lambda: s.json("task", "get", job)["epoch"] > done, message="it does not go on")
    waits = train(s, "-p", 4)
    assert s.out("explain", waits).split()[5] == "NoFreeSlot", s.out("explain", waits)
    out = s.out("task", "prune", "-y")
    assert job in out and waits in out, out
    until(lambda: s.json("task", "list") == [])
    with s.follow("logs", "-f", job) as follow:
        assert "kubeml-function" in follow.communicate(timeout=30)[0] and follow.returncode == 0


@case(limit=60, platform=False)
def spellings_of_the_first_kubeml():
    rows = [{"id": "1b", "created": "2026-01-02"}, {"id": "0a", "created": "2026-01-01"}]
    with answering({"/tasks": (rows, None), "/tasks?state=all": (rows, None), "/function": ([{"name": "lenet"}], None)}) as s:
        assert s.out("task", "list", "--short") == s.out("task", "list", "--short", "--all") == "0a\n1b\n"
        assert s.out("fn", "list") == s.out("function", "list")
        assert "kubeml function create" in s.out("help", "fn", "create")
        assert s.out("fn", "--help") == s.out("function", "--help")
        assert s.out("__options", "fn", "list") == s.out("__options", "function", "list")
        assert s.run("__names", "delete", "fn", "delete")[0] == "lenet\n"


@case(limit=60, platform=False)
def pruning_asks_first():
    """What is stopped or deleted is everybody's; without a terminal nobody can be asked."""
    rows = [{"id": "0a", "user": "anna"}, {"id": "1b", "user": "ben"}, {"id": "2c"}]
    lists = {"/tasks": (rows[:2], None), "/tasks?state=all": (rows, None)}
    asked = {("task", "prune"): "2 jobs of 2 users will be stopped: go on? (y/N) ",
             ("task", "prune", "--user", "ben"): "1 job of 1 user will be stopped: go on? (y/N) ",
             ("history", "prune"): "3 jobs of 3 users will be deleted, with histories, logs and models, where they have ended: "
                                   "go on? (y/N) "}
    with answering(lists) as s:
        for words, question in asked.items():
            s.refused(*words, says="no terminal to ask on: --yes", status=2)
            for answer, status in (("\n", 1), ("n\n", 1), ("yesterday, perhaps, or not\n", 1), ("\4", 1), ("Y\n", 0), ("yes\n", 0)):
                ours, theirs = pty.openpty()
                with os.fdopen(ours, "wb", buffering=0) as keys, os.fdopen(theirs, "rb") as terminal:
                    keys.write(answer.encode())
                    said = s.run(*words, status=status, stdin=terminal)[1]
                assert said.startswith(question), (words, answer, said)
                assert ("nothing is " in said) == bool(status), (words, answer, said)
            assert question not in s.run(*words, "--yes")[1]
    with answering({"/tasks": ([{"id": "0a"}], None)}) as s:
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "wb", buffering=0) as keys, os.fdopen(theirs, "rb") as terminal:
            keys.write(b"n\n")
            assert s.run("task", "prune", status=1, stdin=terminal)[1].startswith("1 job will be stopped: "), "nobody has a name"


@case(limit=90)
def functions_and_histories(p):
    s = ready(p)
    s.write("linear.c", MODEL % "10")
    assert s.out("function", "update", "--name", "lenet", "--code", "linear.c") == "function lenet is at version 2\n"
    assert s.out("function", "update", "--name", "lenet", "--code", "linear.c") == "function lenet is at version 2\n"
    about = s.json("function", "get", "lenet")
    assert about["version"] == 2 and len(about["versions"]) == 2, about
    s.write("warned.c", MODEL.replace("return", "int spare;\n    return") % "10")
    for verb, done in (("create", "created"), ("update", "is at version 1")):  # again it is not compiled, but in a pod of its own
        out, said = s.run("function", verb, "--name", "warned", "--code", "warned.c")
        assert out == f"function warned {done}\n" and ("warning: unused variable 'spare'" in said or verb == "update"), said
    assert "compiler_output" not in s.json("function", "get", "warned"), "a record has none"
    s.out("function", "delete", "warned")
    s.out("function", "create", "-n", "zoo", "--model", "mlp")
    assert [r["MODEL"] for r in table(s.out("function", "list")) if r["NAME"] == "zoo"] == ["mlp"]
    s.out("function", "update", "-n", "zoo", "--model", "mlp,flip=on,crop=4,scale=min_max")
    assert s.json("function", "get", "zoo")["model"] == "mlp,flip=on,crop=4,scale=min_max"
    s.out("task", "wait", s.out("train", "-f", "zoo", "-d", "tiny", "-e", "1").strip())
    suspended, first = endless(s), train(s, "-p", 4)
    s.out("task", "stop", first)
    s.out("history", "prune", "-y")
    assert s.json("history", "list") != [] and first not in s.out("task", "list", "-a"), "one that never began goes too"
    s.out("task", "suspend", suspended)
    s.run("task", "wait", suspended, status=1)
    out, said = s.run("history", "prune", "-y")
    assert suspended not in out, "it is to go on"
    assert said == f"history {suspended} is not deleted: job {suspended} is suspended and may go on: stop it first\n", said
    s.refused("history", "delete", suspended, says="stop it first")
    s.out("task", "resume", suspended)
    assert f"job {suspended} has not ended" in s.run("history", "prune", "-y")[1]
    assert s.out("task", "prune", "-y") == f"job {suspended} stopped\n"
    assert suspended in s.out("history", "prune", "-y"), "it may not have ended by then, and is waited for"
    jobs = [train(s, epochs=1) for _ in range(3)]
    for job in jobs:
        s.out("task", "wait", job)
    listed = [r["ID"] for r in table(s.out("task", "list", "-a"))]
    assert listed == jobs, (listed, jobs)
    # In the order of their starts, and two may start at once.
    assert sorted(r["ID"] for r in table(s.out("history", "list"))) == sorted(jobs)
    s.out("history", "delete", jobs[0])
    s.refused("history", "get", jobs[0], says=jobs[0])
    s.refused("model", "export", jobs[0], "-o", "x.npz", says=jobs[0])
    assert list(s.folder.glob("x.npz*")) == [], "a refused export leaves no file"
    assert s.out("history", "prune", "-y").count("deleted") == 2 and s.json("history", "list") == []
    for name in ("lenet", "zoo"):
        s.out("function", "delete", name)
    s.out("dataset", "delete", "--name", "tiny")
    assert s.json("function", "list") == [] and s.json("dataset", "list") == []


@case(platform=False)
def completion():
    s = Shell()
    (s.folder / "bin").mkdir()
    s.write("bin/kubectl", '#!/bin/sh\n[ "$*" = "config get-contexts -o name" ] && printf "kind\\nlab\\n"\n')
    (s.folder / "bin/kubectl").chmod(0o755)
    at = {"kubeml da": "dataset", "kubeml task re": "resume", "kubeml train --goal": "--goal-accuracy=",
          "kubeml train --sta": "--static", "kubeml --con": "--context=", "kubeml --context k": "kind",
          "kubeml --context = l": "lab", "kubeml --context =": "kind lab", "kubeml --context kind da": "dataset",
          "kubeml --context = kind --namespace ml task re": "resume", "kubeml --context kind train --goal": "--goal-accuracy=",
          "kubeml run --train": "--traindata= --trainlabels=", "kubeml run lenet.c --js": "--json", "kubeml run lenet.c --dataset ": "",
          "kubeml help ta": "task", "kubeml help task re": "resume", "kubeml run le": "",  # "": a file's name, if there is one
          "kubeml train -f ": "lenet linear", "kubeml train --function = li": "linear", "kubeml train -f lenet -d ": "mnist",
          "kubeml train --static --merge ": "database server nccl", "kubeml train --merge = s": "server", "kubeml train ": "",
          "kubeml train --init ": "0a 1b", "kubeml train -e ": "", "kubeml task get ": "0a 1b", "kubeml task get 0a ": "",
          "kubeml task get --id = 0a ": "0a 1b", "kubeml task get -o ": "json yaml", "kubeml task list -o w": "wide",
          "kubeml task list ": "", "kubeml explain ": "0a 1b lenet linear", "kubeml infer -n 1": "1b", "kubeml infer --datafile ": "",
          "kubeml function delete ": "lenet linear", "kubeml fn del": "delete", "kubeml fn delete ": "lenet linear", "kubeml function create ": "", "kubeml function create -n x -m ": "lenet resnet18",
          "kubeml dataset get --name ": "mnist", "kubeml completion ": "bash", "kubeml run lenet.c -d ": "", "kubeml model export ": "0a 1b"}
    s.write("complete.sh", f"""PATH=bin:{harness.BIN}:$PATH
source <(kubeml completion bash)
complete -p kubeml
compopt() {{ :; }}
try() {{
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _kubeml
    echo "${{COMPREPLY[@]}}"
}}
""" + "".join(f"try {words}{' ' + chr(39) * 2 if words[-1] == ' ' else ''}\n" for words in at))
    lists = {"/function": [{"name": "lenet"}, {"name": "linear"}], "/dataset": [{"name": "mnist"}, {"name": "$(touch${IFS}owned)"}],
             "/zoo": [{"name": "lenet"}, {"name": "resnet18"}], "/tasks?state=all": [{"id": "0a"}, {"id": "1b"}]}
    with answering({path: (rows, None) for path, rows in lists.items()}) as there:
        done = subprocess.run(["bash", "complete.sh"], capture_output=True, text=True, timeout=60, cwd=s.folder,
                              env=s.environment | {"KUBEML_URL": there.environment["KUBEML_URL"]})
    assert not (s.folder / "owned").exists(), "what a server calls a thing is not run"
    defined, *lines = done.stdout.splitlines()
    assert "-o default" in defined and "-F _kubeml kubeml" in defined and not done.stderr, done
    told = {words: set(line.split()) for words, line in zip(at, lines)}
    assert told == {words: set(line.split()) for words, line in at.items()}, told
    schema = yaml.safe_load((harness.ROOT / "docs/reference/openapi.yaml").read_text())["components"]["schemas"]
    for name, option in (schema["TrainOptions"]["properties"] | schema["GpuShare"]["properties"]).items():
        if option.get("type") == "string" and "enum" in option:
            assert s.out("__names", "--" + name.replace("_", "-"), "train").split() == option["enum"], name
    with harness.held_port() as down, socket.create_server(("127.0.0.1", 0)) as silent:  # which takes what comes, and says nothing
        for port in (down, silent):
            s.environment["KUBEML_URL"] = "http://{}:{}".format(*port.getsockname())
            assert s.run("__names", "-f", "train") == ("", "")


if __name__ == "__main__":
    harness.main(globals())
