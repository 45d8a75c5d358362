#!/usr/bin/python3
"""A real mongod with the promises of MongoServerMain: mongod.py MONGOD HOST PORT IDLE_SECONDS [FILE].

Port 0 takes a free one; the line "listening on HOST:PORT" says which, when the server answers and has its users. Ends by
itself when nobody was connected for IDLE_SECONDS (0: never). Its data are in FILE.mongod, or go with it.
MONGO_MAY_END=COMMAND: asked before it ends by itself; 1: not yet.
MONGO_ROOT=USER:PASSWORD: users, and this first one with the role root. MONGO_TLS=FOLDER: TLS with the folder's server.crt,
server.key and ca.crt; who connects needs no certificate, and a good one where it brings one.
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pymongo

START_S = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(mongod, host, port, folder, tls):
    bind = host if host in ("0.0.0.0", "127.0.0.1") else f"{host},127.0.0.1"
    options = ["--dbpath", str(folder), "--bind_ip", bind, "--port", str(port), "--nounixsocket", "--wiredTigerCacheSizeGB",
               "0.25"]
    if os.environ.get("MONGO_ROOT"):
        options += ["--auth"]
    if tls:
        pem = folder / "server.pem"
        pem.touch(mode=0o600)
        pem.write_text((tls / "server.crt").read_text() + (tls / "server.key").read_text())
        options += ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(pem), "--tlsCAFile", str(tls / "ca.crt"),
                    "--tlsAllowConnectionsWithoutCertificates"]
    # Its log to stderr; it ends with us, however that is.
    return subprocess.Popen(["setpriv", "--pdeathsig", "TERM", mongod, *options], stdin=subprocess.DEVNULL,
                            stdout=sys.stderr)


def connect(port, tls, **user):
    more = {"tls": True, "tlsCAFile": str(tls / "ca.crt")} if tls else {}
    return pymongo.MongoClient("localhost", port, directConnection=True, serverSelectionTimeoutMS=1000, **more, **user)


def await_answer(server, client):
    deadline = time.monotonic() + START_S
    while True:
        try:
            return client.admin.command("ping")
        except pymongo.errors.ConnectionFailure:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("mongod does not start")


def make_root(port, tls, client):
    """The first user, where there is none yet: from this host that needs no other one."""
    name, _, password = os.environ["MONGO_ROOT"].partition(":")
    with connect(port, tls, username=name, password=password, authSource="admin") as root:
        try:
            root.admin.command("usersInfo", name)
        except pymongo.errors.OperationFailure:
            client.admin.command("createUser", name, pwd=password, roles=["root"])
            root.admin.command("usersInfo", name)


def is_used(port):
    """Somebody is connected, as the kernel says."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
    return any(int(line[1].rpartition(":")[2], 16) == port and line[3] == "01" for line in lines)


def may_end():
    command = os.environ.get("MONGO_MAY_END")
    return not command or subprocess.call(command, shell=True, stdout=subprocess.DEVNULL) != 1


def watch(server, port, idle_s):
    """Until it ends, or nobody has been connected for so long."""
    used = time.monotonic()
    while True:
        try:
            return server.wait(idle_s / 4 if idle_s else None)
        except subprocess.TimeoutExpired:
            used = time.monotonic() if is_used(port) else used
            if time.monotonic() - used >= idle_s and may_end():
                return 0


def main(mongod, host, port, idle_s, file=None):
    port, tls = int(port) or free_port(), os.environ.get("MONGO_TLS")
    tls = pathlib.Path(tls) if tls else None
    folder = pathlib.Path(f"{file}.mongod" if file else tempfile.mkdtemp(prefix="mongod"))
    folder.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = start(mongod, host, port, folder, tls)
    try:
        with connect(port, tls) as client:
            await_answer(server, client)
            if os.environ.get("MONGO_ROOT"):
                make_root(port, tls, client)
        print(f"listening on {host}:{port}", flush=True)
        return watch(server, port, int(idle_s))
    finally:
        server.terminate()
        server.wait()
        if not file:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
