#!/usr/bin/python3
"""The quickstart's commands, one after the other as it shows them, on the port that is `kubeml up`'s own. What differs:
the data set is a small one, its files made here, what make builds is there already, and the example's batches take a while, so
that a job still runs when the next command wants it to."""
import gzip
import os
import pathlib
import re
import socket
import subprocess
import tempfile

import harness
from harness import case

FILES = {"x-train": "train-images-idx3-ubyte", "y-train": "train-labels-idx1-ubyte",
         "x-test": "t10k-images-idx3-ubyte", "y-test": "t10k-labels-idx1-ubyte"}
# What comes after `kubeml up`: nobody but this machine is heard.
HEARD = "grep -q ' 0100007F:2774 ' /proc/net/tcp; test -z \"$(grep ' 0*:2774 0*:0000 0A' /proc/net/tcp*)\""


def blocks(page, language):
    """The code of a page in this language, with lines that go on in the next one joined."""
    found = re.findall(rf"^```{language}\n(.*?)^```", (harness.ROOT / page).read_text(), flags=re.S | re.M)
    return re.sub(r"\\\n *", "", "".join(found)).splitlines()


def commands():
    """Those of the quickstart."""
    return [line.split(" #")[0].strip() for line in blocks("docs/quickstart.md", "sh")]


def heard(lines):
    return [part for line in lines for part in ([line, HEARD] if line == "kubeml up" else [line])]


def checkout(folder):
    """As `make` leaves one, and MNIST's download."""
    examples, data = folder / "function-runtime/examples", folder / "demo-out/mnist"
    for path in (examples, data, folder / "build/release", folder / "scripts"):
        path.mkdir(parents=True)
    (folder / "build/release/bin").symlink_to(harness.BIN)
    (folder / "Makefile").write_text("all install-packages: ;\n")
    (examples / "lenet.c").write_text(harness.paced_code(harness.PACE))
    files = harness.tiny_mnist()
    for field, name in FILES.items():
        (data / f"{name}.gz").write_bytes(gzip.compress(files[field]))
    script = folder / "scripts/mnist-data"
    script.write_text('#!/bin/sh\necho "$1"\n')
    script.chmod(0o755)


@case(limit=90, platform=False)
def by_hand():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", 10100))
        except OSError:
            harness.skip("port 10100 on 127.0.0.1 is taken")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="r", dir=os.environ.get("TEST_TMP")))
    checkout(folder)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBEML_")}
    environment["KUBEML_HOME"] = str(folder / "home")
    try:
        done = subprocess.run(["bash", "-euxc", "\n".join(heard(commands()))], cwd=folder, env=environment, capture_output=True,
                              text=True, timeout=80 * harness.STRETCH, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "http://127.0.0.1:10100" in done.stdout, done.stdout
        assert re.search(r"^\d( \d){9}$", done.stdout, flags=re.M), done.stdout  # ten test images
        assert (folder / "lenet.safetensors").exists()
        assert "\n+ kubeml task resume " in done.stderr, "it was not suspended"
        assert not harness.processes_of(folder), harness.processes_of(folder)
    finally:
        subprocess.run([str(harness.BIN / "kubeml"), "down"], env=environment, capture_output=True, timeout=60)


@case(platform=False)
def the_readme_shows_a_part_of_it():
    shown = [line.removeprefix("$ ") for line in blocks("README.md", "console") if line.startswith("$ ")]
    assert len(shown) == 5 and not set(shown) - set(commands()), set(shown) - set(commands())


if __name__ == "__main__":
    harness.main(globals())
