#!/usr/bin/python3
"""`make images` with whatever of docker, podman and buildah works: stand-ins that write down what they are asked for. What
comes of real ones test/cluster/test_images.py looks at."""
import os
import pathlib
import re
import subprocess
import tempfile

import harness
from harness import ROOT, case, skip

ENGINES = ("docker", "podman", "buildah")
USUAL = ("controller", "builder", "ps", "function-cpu")
COMPILES = "make -n CUDA=0 BUILD=/out all"  # as the container's build, and says how
# Answers as the engine of its name would, as far as build.sh asks; a line in $SAID for each call, its words apart by tabs. What
# would be run in the context lies beside it.
ENGINE = """#!/bin/sh
printf '%s' "${0##*/}" >>"$SAID"
for word; do printf '\\t%s' "$word" >>"$SAID"; done
case $1 in
info) echo >>"$SAID"; exit "$NO_DAEMON" ;;
save) : >"$3" ;;
esac
for word; do case $word in docker-archive:*) word=${word#docker-archive:}; : >"${word%%:*}" ;; esac; done
if [ -e "$word/Makefile" ]; then
    cd "$word" && printf '\\tholds\\t%s' "$(ls | tr '\\n' ' ')" >>"$SAID"
    env -u MAKEFLAGS -u MAKELEVEL $COMPILES >"$SAID.commands"
fi
echo >>"$SAID"
"""


class Machine:
    """All of this machine's programs but for the engines, and stand-ins for some of them."""

    def __init__(self, *engines, daemon=True):
        if not (ROOT / ".git").exists():
            skip("build.sh asks git what belongs to the sources, and this is no clone")
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
        self.said = self.folder / "said"
        self.daemon = daemon
        programs = self.folder / "bin"
        programs.mkdir()
        for place in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
            for program in pathlib.Path(place).iterdir() if pathlib.Path(place).is_dir() else ():
                if program.name not in ENGINES and not (programs / program.name).exists():
                    (programs / program.name).symlink_to(program)
        for engine in engines:
            (programs / engine).write_text(ENGINE)
            (programs / engine).chmod(0o755)

    def make(self, *settings):
        """(status, what it printed, [[engine, word...]] of its calls)"""
        self.said.write_text("")
        environment = {k: v for k, v in os.environ.items()
                       if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ENGINE", "BASE", "PREFIX", "TAG", "OUT", "PREBUILT", "LAYERS")}
        run = subprocess.run(
            ["make", "-s", "--no-print-directory", "images", *settings], cwd=ROOT, capture_output=True, text=True, timeout=60 * harness.STRETCH,
            env={**environment, "PATH": str(self.folder / "bin"), "SAID": str(self.said), "COMPILES": COMPILES,
                 "NO_DAEMON": str(int(not self.daemon))})
        return run.returncode, run.stdout + run.stderr, [line.split("\t") for line in self.said.read_text().splitlines()]


def name_of(call):
    return call[call.index("-t") + 1]


@case(limit=90, platform=False)
def the_first_that_works_builds():
    for engines, daemon, settings, expected in (
            (ENGINES, True, [], "docker"),
            (ENGINES, False, [], "podman"),  # a client alone is no engine
            (("docker", "buildah"), False, [], "buildah"),
            (("buildah",), True, [], "buildah"),
            (ENGINES, True, ["ENGINE=buildah"], "buildah")):
        status, text, calls = Machine(*engines, daemon=daemon).make(
            "IMAGES=ps", "BASE=registry.example/base:1", "PREFIX=registry.example/", "TAG=7", *settings)
        what = (engines, daemon, settings, text, calls)
        assert status == 0 and f"built with {expected}: registry.example/kubeml-ps (7)" in text, what
        asked, built = [c for c in calls if "-t" not in c], [c for c in calls if "-t" in c]
        assert all(c == ["docker", "info"] for c in asked) and all(c[0] == expected for c in built), what
        first, second = built
        assert (name_of(first), name_of(second)) == ("registry.example/kubeml-build:7", "registry.example/kubeml-ps:7"), what
        assert str(ROOT / "manifests/images/build.Containerfile") in first and "BASE=registry.example/base:1" in first, what
        assert str(ROOT / "manifests/images/ps.Containerfile") in second, what
        for argument in ("BASE=registry.example/base:1", "VERSION=7", "BUILD=registry.example/kubeml-build:7"):
            assert second[second.index(argument) - 1] == "--build-arg", what
        # Where a container may not be started as usual.
        assert ("--isolation" in first) == (expected == "buildah"), what
        # The sources, and not all that lies in the tree.
        holds = first[first.index("holds") + 1].split()
        assert {"Makefile", "common", "manifests"} <= set(holds) and not {"build", "test", "docs"} & set(holds), what


def without_tests(commands):
    return [re.sub(r"-Itest/\S+ ", "", line) for line in commands.splitlines()]


@case(limit=60, platform=False)
def a_container_compiles_as_the_tree_does():
    """It has a part of the tree: no flag that a file needs may be in the other."""
    machine = Machine("docker")
    status, text, _ = machine.make("IMAGES=ps")
    assert status == 0, text
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    here = without_tests(subprocess.run(COMPILES.split(), cwd=ROOT, capture_output=True, text=True, check=True, env=environment).stdout)
    there = without_tests((machine.folder / "said.commands").read_text())
    assert any(" -c kernels/" in line for line in here), here
    assert there == here, "\n".join(["not the same:", *sorted(set(here) ^ set(there))])


@case(limit=60, platform=False)
def without_an_engine_it_says_so():
    for machine in (Machine(), Machine("docker", daemon=False)):
        status, text, calls = machine.make()
        assert status != 0 and "none of docker, podman and buildah works here" in text, (status, text)
        assert not [c for c in calls if c != ["docker", "info"]], calls


@case(limit=60, platform=False)
def each_image_is_a_file_where_one_is_wanted():
    for engine in ENGINES:
        machine = Machine(engine)
        status, text, calls = machine.make(f"OUT={machine.folder}/out")
        assert status == 0, text
        assert sorted(f.name for f in (machine.folder / "out").iterdir()) == sorted(f"{name}.tar" for name in USUAL), calls
        assert [name_of(c).split("/kubeml-")[1].split(":")[0] for c in calls if "-t" in c] == ["build", *USUAL], calls
        assert all(c[-1].startswith("localhost/kubeml-") or "docker-archive:" in c[-1] for c in calls if {"save", "push"} & set(c)), calls


@case(limit=60, platform=False)
def the_cuda_image_wants_an_engine_that_is_built():
    machine = Machine("docker")
    for settings in ([], [f"PREBUILT={machine.folder}"]):
        status, text, calls = machine.make("IMAGES=function-cuda", *settings)
        assert status != 0 and "make CUDA=1, and PREBUILT=build/release" in text, (status, text)
        assert not [c for c in calls if "-t" in c], calls


LINKED = {"cuda": ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"), "distribution": ("libcudnn.so.9",)}
LOADED = {"distribution": [f"libcudnn_{part}.so.9" for part in ("ops", "cnn", "graph", "heuristic", "engines_precompiled")],
          "nccl": ["libnccl.so.2"]}


class Toolkit(Machine):
    """Programs that were built, as far as collect.sh sees them, and NVIDIA's libraries in several folders."""

    def __init__(self):
        super().__init__()
        self.built = self.folder / "built"
        for name in ("bin/kubeml", "bin/kubeml-builder", "bin/kubeml-controller", "bin/kubeml-function", "bin/kubeml-ps",
                     "lib/kubeml-cuda.so", "lib/kubeml-redis.so"):
            (self.built / name).parent.mkdir(parents=True, exist_ok=True)
            (self.built / name).touch()
        for place in (LINKED, LOADED):
            for folder, names in place.items():
                (self.folder / folder).mkdir(exist_ok=True)
                for name in names:
                    (self.folder / folder / name).touch()
        found = "\n".join(f"{name} => {self.folder}/{folder}/{name} (0x1)" for folder, names in LINKED.items() for name in names)
        for name, text in (("strip", ""), ("ldd", f"case $1 in *cuda.so) echo '{found}' ;; esac"),
                           ("readelf", f"echo ' 0x1d (RUNPATH)  Library runpath: [$ORIGIN:{self.folder}/nccl]'")):
            (self.folder / "bin" / name).unlink(missing_ok=True)
            (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.folder / "bin" / name).chmod(0o755)

    def collect(self):
        """(what it says, the names of what lies beside the engine)"""
        run = subprocess.run(["sh", str(ROOT / "manifests/images/collect.sh"), str(self.built), str(ROOT), str(self.folder / "to")],
                             capture_output=True, text=True, env={**os.environ, "PATH": str(self.folder / "bin"), "CUDA": "1"})
        beside = self.folder / "to/image/function-cuda/usr/lib/kubeml/lib"
        return run.returncode, run.stdout + run.stderr, {f.name for f in beside.iterdir()} if beside.exists() else set()


@case(limit=60, platform=False)
def nvidias_libraries_are_found_in_all_their_folders():
    """As its packages for a distribution lay them: CUDA's in a folder of their own, cuDNN and NCCL among the distribution's."""
    machine = Toolkit()
    status, text, beside = machine.collect()
    every = {name for place in (LINKED, LOADED) for names in place.values() for name in names}
    assert status == 0 and beside == {"kubeml-cuda.so", *every}, (status, text, every - beside)
    (machine.folder / "nccl/libnccl.so.2").unlink()
    status, text, _ = machine.collect()
    assert status != 0 and "libnccl" in text and f"{machine.folder}/distribution" in text, (status, text)


if __name__ == "__main__":
    harness.main(globals())
