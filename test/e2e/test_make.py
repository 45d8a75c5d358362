#!/usr/bin/python3
"""What make tells of itself, and what it sees of a change without being told: other flags, other kernels."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness
from harness import BUILD, ROOT, case


def make(*words):
    """Its output, without what the make around this test was told."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "SANITIZER", "OPT", "CUDA")}
    run = subprocess.run(["make", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60 * harness.STRETCH)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


class Build:
    """An empty build folder."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))

    def make(self, name, *settings):
        """A file of it, (text, when it was written)."""
        make("-s", f"BUILD={self.folder}", str(self.folder / name), *settings)
        return (self.folder / name).read_text(), (self.folder / name).stat().st_mtime_ns


@case(limit=60, platform=False)
def other_flags_are_seen():
    build = Build()
    first = build.make("flags")
    assert " -O2 " in first[0] and build.make("flags") == first, "it was written again for nothing"
    assert " -O3 " in build.make("flags", "OPT=-O3")[0]


@case(platform=False)
def what_some_files_are_compiled_with_is_not_all_files():
    """Whichever is asked for first: the flags of all have no part of it."""
    said = make("-n", "BUILD=/none", "MONGO_CFLAGS=-DOF_ONE_FILE", "/none/obj/common/store/mongo/store_mongo_link.o")
    of_all, = [line for line in said.splitlines() if re.search(r" > ?/none/flags$", line)]
    assert "-DOF_ONE_FILE" not in of_all and " -DOF_ONE_FILE " in said, said


def toolkit():
    """One that knows nothing but that it was called."""
    home = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    (home / "bin").mkdir()
    (home / "include").mkdir()
    for header in ("cublasLt.h", "cudnn.h", "nccl.h", "cuda_runtime_api.h"):
        (home / "include" / header).write_text("#define CUDART_VERSION 13000\n")
    nvcc = home / "bin/nvcc"
    nvcc.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho compiled >>"$2"\n')
    nvcc.chmod(0o755)
    return home


@case(limit=60, platform=False)
def kernels_are_compiled_again_for_another_gpu_or_toolkit():
    build, home, other = Build(), toolkit(), toolkit()

    def times(*settings):
        return len(build.make("cuda/kernels/cuda/gemm.o", "CUDA=1", *settings)[0].splitlines())
    assert times(f"CUDA_HOME={home}") == 1 and times(f"CUDA_HOME={home}") == 1, "compiled again for nothing"
    assert times(f"CUDA_HOME={home}", "CUDA_ARCH=-arch=sm_80") == 2
    assert times(f"CUDA_HOME={other}", "CUDA_ARCH=-arch=sm_80") == 3


@case(limit=60, platform=False)
def whose_cuda_it_is_is_forgotten_with_the_engine():
    build, home = Build(), toolkit()

    def compiled(*settings):
        return "-c common/contract/nvml.c" in make("V=1", f"BUILD={build.folder}", str(build.folder / "obj/common/contract/nvml.o"), *settings)
    assert compiled("CUDA=1", f"CUDA_HOME={home}") and not compiled("CUDA=1", f"CUDA_HOME={home}")
    assert compiled("CUDA=0") and not compiled("CUDA=0")


@case(limit=60, platform=False)
def an_engine_stays_where_no_toolkit_is_found_and_nothing_has_changed():
    build = Build()
    (build.folder / "lib").mkdir()
    engine, all_else = build.folder / "lib/kubeml-cuda.so", ("-s", f"BUILD={build.folder}", "PROGRAMS=", "MODULE=", "all")
    (build.folder / "cuda_major").write_text("13\n")

    def kept(*settings):
        engine.touch()
        return make(*settings, *all_else), engine.exists()
    said, there = kept("CUDA_HOME=/none")  # as `sudo make install` has it
    assert there and "stays: none can be built here for want of nvcc" in said, said
    assert (build.folder / "cuda_major").read_text() == "13\n"
    said, there = kept("CUDA=0")
    assert not there and "the CUDA engine of an earlier build is removed" in said, said
    engine.touch()
    os.utime(engine, (0, 0))
    said = make("CUDA_HOME=/none", *all_else)
    assert not engine.exists() and "is removed" in said, "it is of other sources\n" + said


@case(platform=False)
def the_seam_is_all_headers_between_the_engine_and_a_program():
    told = subprocess.run(["gcc", "-I.", "-MM", "kernels/backend.h"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = re.search(r"^SEAM := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    assert set(named.split()) == set(told.stdout.replace("\\", "").split()[1:]), (named, told.stdout)


@case(limit=60, platform=False)
def other_kernels_have_another_version():
    """It stands in the key of what was measured on a GPU (kernels/cuda/cuda_algo.c)."""
    build, changed = Build(), pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))) / "gemm.cu"
    first = build.make("cuda_kernels_version.h")
    assert first[0].startswith('#define CUDA_KERNELS_VERSION "') and build.make("cuda_kernels_version.h") == first
    sources = sorted((ROOT / "kernels/cuda").glob("*.cu"))
    changed.write_text((ROOT / "kernels/cuda/gemm.cu").read_text().replace("TILE_M = 64", "TILE_M = 32"))
    names = [str(changed) if s.name == changed.name else str(s.relative_to(ROOT)) for s in sources]
    assert build.make("cuda_kernels_version.h", f"SRC_cu={' '.join(names)}")[0] != first[0]


@case(platform=False)
def flags_of_one_processor_are_not_given_to_another():
    for machine, given in (("x86_64-linux-gnu", {"-mavx2", "-mavx512f", "-mavx512bf16"}), ("aarch64-linux-gnu", set())):
        compiler = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))) / "cc"
        compiler.write_text(f"#!/bin/sh\necho {machine}\n")
        compiler.chmod(0o755)
        run = subprocess.run(["make", "-n", f"CC={compiler}", "CUDA=0", "BUILD=/none", "all"], cwd=ROOT, capture_output=True, text=True,
                             check=True)
        assert f"{compiler} " in run.stdout and "-c common/modelstore/merge_avx2.c" in run.stdout, run.stdout
        told = {flag for line in run.stdout.splitlines() if " -c " in line for flag in re.findall(r" (-m\S+)", line)}
        assert given <= told and (given or not told), (machine, told)


@case(platform=False)
def help_lists_what_the_docs_name():
    told = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line for line in told if not line.startswith("settings: ")]
    named = set(re.findall(r"`make ([a-z][a-z0-9-]*)", (ROOT / "docs/contributing/testing.md").read_text()))
    assert len(named) > 15 and named <= {row.split()[0] for row in rows}, named - {row.split()[0] for row in rows}
    assert len({len(re.match(r"\S+ +", row)[0]) for row in rows}) == 1, "they are not in one column:\n" + "\n".join(rows)


@case(platform=False)
def what_lacks_is_said_before_anything_is_made():
    """Neither is PyTorch installed for a bench that has no data, nor half a file left where Helm is not there."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CIFAR10", "BENCH_ARGS")}
    for target, says in (("bench-spread", "CIFAR10=FOLDER"), ("bench-drift", "CIFAR10=FOLDER"),
                         ("bench-accuracy-curve", "CIFAR10=FOLDER"), ("bench-accuracy-platform", "CIFAR10=FOLDER"),
                         ("manifests", "HELM=PATH"), ("lint-chart", "HELM=PATH")):
        run = subprocess.run(["make", "-s", f"BUILD={folder}/build", "HELM=/none/helm", target], cwd=ROOT, env=environment,
                             capture_output=True, text=True, timeout=60 * harness.STRETCH)
        assert run.returncode == 2 and says in run.stderr.splitlines()[0], (target, run)
    assert not (folder / "build/parity").exists() and not (ROOT / "manifests/kubeml.yaml.new").exists()


@case(platform=False)
def tests_that_lack_a_library_say_which():
    """As where python3 is not the distribution's; here by leaving out where its libraries are."""
    run = subprocess.run([sys.executable, "-S", ROOT / "test/run.py", "--e2e", "help_lists"], cwd=ROOT, capture_output=True, text=True,
                         timeout=60 * harness.STRETCH)
    assert run.returncode == 2 and run.stdout == "", (run.returncode, run.stdout)
    assert "has no numpy, requests, yaml; Debian's is /usr/bin/python3, with the packages of scripts/install-packages" in run.stderr, \
        run.stderr


# The second comes after the first, which takes the same and waits for the third.
TAKES = """#!/bin/sh
case $1 in
--list) printf 'first 20 thing\\nsecond 20 thing\\nthird 10\\nfourth - for a reason\\n' ;;
first) until [ -e "$0.third" ]; do sleep 0.1; done; touch "$0.first" ;;
second) [ -e "$0.first" ] ;;
third) touch "$0.third" ;;
esac
"""


@case(platform=False)
def a_listing_says_what_a_case_takes_and_what_is_left_out():
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    (folder / "test").mkdir()
    (folder / "test/takes").write_text(TAKES)
    (folder / "test/takes").chmod(0o755)
    run = subprocess.run([sys.executable, ROOT / "test/run.py", "--unit", "-j", "2"], capture_output=True, text=True,
                         env={**os.environ, "BUILD": str(folder)}, timeout=60 * harness.STRETCH)
    assert "left out takes:fourth: left out: for a reason" in run.stdout.splitlines(), run.stdout + run.stderr
    assert run.stdout.endswith("3 passed, 0 failed, 1 skipped\n"), run.stdout + run.stderr


def run_units(folder, *patterns, **programs):
    """What run.py says of these test programs, shell scripts."""
    (folder / "test").mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / "test" / name).write_text("#!/bin/sh\n" + text)
        (folder / "test" / name).chmod(0o755)
    run = subprocess.run([sys.executable, ROOT / "test/run.py", "--unit", *patterns], capture_output=True, text=True,
                         env={**os.environ, "BUILD": str(folder)}, timeout=60 * harness.STRETCH)
    return run.returncode, run.stdout + run.stderr


@case(platform=False)
def a_program_whose_cases_are_not_known_has_failed():
    good = "[ $1 != --list ] || echo one 10\n"
    for bad, says in (("echo its words >&2; kill -SEGV $$\n", "its words"),
                      ('[ -e "$0.again" ] || { touch "$0.again"; exit 3; }\n' + good, "(status 3, "),
                      ("exit 77\n", "(status 77, "), ("", "it lists no case")):
        status, said = run_units(pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP"))), good=good, bad=bad)
        assert status == 1 and "FAIL bad:--list" in said and says in said, said
        assert said.endswith("1 passed, 1 failed\n"), said


@case(platform=False)
def a_name_that_no_case_has_is_a_failure():
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    status, said = run_units(folder, "it:one", "it:other", it="[ $1 != --list ] || printf 'one 10\\ntwo 10\\n'\n")
    assert status == 1 and "FAIL it:other (no case, " in said and said.endswith("1 passed, 1 failed\n"), said
    assert run_units(folder, "it:")[0] == 0


@case(limit=60, platform=False)
def the_cluster_runs_or_leaves_out_every_module():
    """The list of test/cluster/test_e2e.py, without a cluster: a module that it lacks fails here, and not only there."""
    listing = subprocess.run([sys.executable, "test/cluster/test_e2e.py", "--list"], cwd=ROOT, capture_output=True, text=True)
    assert listing.returncode == 0 and listing.stdout, listing.stderr


@case(platform=False)
def a_program_that_an_earlier_build_left_is_not_run():
    """As after a change that renames a test: the program has the code of then. test_races_graph_ops is test_graph_ops."""
    lists = "[ $1 != --list ] || echo one 10\n"
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    status, said = run_units(folder, "-v", test_common=lists, test_races_graph_ops=lists, test_races_kernels=lists,
                             test_cuda_graph_ops=lists, test_races_planted=lists, test_renamed_since=lists)
    assert status == 0 and "test_renamed_since" not in said and said.endswith("5 passed, 0 failed\n"), said


# A machine's packages, those in $MISSING absent; apt-get installs but what is in $REFUSED, and says what it was asked for.
PACKAGES = {
    "dpkg-query": 'for p; do :; done; case " $MISSING " in *" $p "*) exit 1 ;; esac; echo installed',
    "apt-cache": '[ "$1" = show ]',
    "apt-get": 'echo "$@" >>"$ASKED"; for p; do case " $REFUSED " in *" $p "*) exit 100 ;; esac; done',
    "id": 'echo "$USER_ID"',
}


@case(platform=False)
def a_package_that_it_can_do_without_stops_nothing():
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    for name, text in PACKAGES.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    for name in ("sh", "env", "grep", "sed", "head"):  # and no sudo
        (folder / name).symlink_to(shutil.which(name))

    def install(missing, refused="", user=0, status=0):
        asked = folder / "asked"
        asked.write_text("")
        run = subprocess.run([ROOT / "scripts/install-packages"], capture_output=True, text=True,
                             env={"PATH": str(folder), "ASKED": str(asked), "MISSING": missing, "REFUSED": refused, "USER_ID": str(user)})
        assert run.returncode == status, (missing, run)
        return run.stdout + run.stderr, [line.split()[-1] for line in asked.read_text().splitlines() if line.startswith("install ")]
    assert install("") == ("", [])
    said, asked = install("libmongoc-dev make", "libmongoc-dev")
    assert asked == ["make", "libmongoc-dev"] and "install: left out: libmongoc-dev, which could not be installed\n" in said, (asked, said)
    assert install("make libmongoc-dev", "make", status=100)[1] == ["make"]
    assert install("libmongoc-dev", user=1000) == ("install: left out: libmongoc-dev, which needs root or sudo\n", [])
    said, asked = install("make", user=1000, status=1)
    assert "needs root or sudo for: make\n" in said and "scripts/demo or make check-built" in said and not asked, said


@case(limit=120, platform=False)
def what_is_installed_runs_and_goes_again():
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}

    def make(goal):  # -o: what was built is there, and flags of other builds would build it anew
        subprocess.run(["make", "-s", "-o", "all", goal, f"BUILD={BUILD}", f"DESTDIR={folder}", "PREFIX=/usr"], cwd=ROOT, check=True,
                       env=environment, stdout=subprocess.DEVNULL)
    make("install")
    kubeml = folder / "usr/bin/kubeml"
    said = subprocess.run([kubeml, "version"], env={"KUBEML_URL": "http://127.0.0.1:1", "HOME": str(folder)}, capture_output=True, text=True)
    assert said.stdout.startswith("kubeml "), said
    assert "complete " in (folder / "usr/share/bash-completion/completions/kubeml").read_text()
    harness.BIN = kubeml.resolve().parent
    with harness.Platform() as p:  # its module and its SDK are found, too
        p.dataset()
        p.function()
        p.succeed(p.train(epochs=1))
    make("uninstall")
    assert not [f for f in (folder / "usr").rglob("*") if not f.is_dir()]


if __name__ == "__main__":
    harness.main(globals())
