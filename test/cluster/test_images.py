"""The images that the pods run, as they lie in the archives: who they run as, what they say of themselves, how large they
are beyond their base, and what must be in them or must not."""
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

from cluster import HERE, ROOT, case, harness, skip

MOST = {"controller": 90}  # MiB beyond the base
IN = {"controller": ("usr/lib/kubeml/bin/kubeml-controller",), "builder": ("usr/bin/gcc", "usr/lib/kubeml/bin/kubeml-function"),
      "ps": ("usr/lib/kubeml/bin/kubeml-ps", "redis-server", "kubeml-redis.so"), "function-cpu": ("usr/lib/kubeml/bin/kubeml-function",)}
CUDA = ("usr/lib/kubeml/bin/kubeml-function", *(f"usr/lib/kubeml/lib/{name}" for name in (
    "kubeml-cuda.so", "libcudart.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libcudnn_engines_precompiled.so.9", "libnccl.so.2")))
NOT_IN = {name: ("bin/gcc", "/cc1", "bin/ld") for name in ("controller", "ps", "function-cpu", "function-cuda")}


def images():
    """The folder of those that every run builds."""
    folder = os.environ.get("KUBEML_TC_IMAGES")
    if not folder:
        skip("no images: they are built where buildah and debootstrap are (scripts/install-packages cluster)")
    return pathlib.Path(folder)


def read(name, folder, unpacked=None):
    """(config, [layer's size], [path]) of an image; the layers beyond the first are our own, which is the base. `unpacked`: a
    folder that becomes its root."""
    with tarfile.open(folder / f"{name}.tar") as archive:
        manifest, = json.load(archive.extractfile("manifest.json"))
        config = json.load(archive.extractfile(manifest["Config"]))["config"]
        paths = []
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                paths += ["/" + path.removeprefix("./") for path in files.getnames()]
            if unpacked:
                tar = subprocess.Popen(["tar", "-x", "-C", unpacked], stdin=subprocess.PIPE)
                shutil.copyfileobj(archive.extractfile(layer), tar.stdin, 1 << 20)
                tar.stdin.close()
                assert tar.wait() == 0, layer
        return config, [archive.getmember(layer).size for layer in manifest["Layers"]], paths


def check(name, config, paths, needed):
    assert config["User"] == "65532:65532", (name, config)
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    assert labels["title"].startswith("kubeml-") and labels["version"] == "0.1.0", (name, labels)
    assert labels["licenses"] == "Apache-2.0" and labels["description"], (name, labels)
    for path in needed:
        assert any(p.endswith("/" + path) for p in paths), (name, path)
    for path in NOT_IN.get(name, ()):
        assert not any(p.endswith(path) for p in paths), (name, path)


@case(limit=90, platform=False)
def they_are_small_labelled_and_run_as_nobody():
    for name, needed in IN.items():
        config, sizes, paths = read(name, images())
        check(name, config, paths, needed)
        beyond = sum(sizes[1:]) / 2**20
        print(f"{name}: {beyond:.0f} MiB beyond the base")
        assert len(sizes) > 1 and beyond <= MOST.get(name, 300), (name, beyond)


@case(limit=900, platform=False)
def the_cuda_image_has_all_that_its_engine_loads():
    """A gigabyte, which nobody else's case runs: it is built here, and where there is an engine to put into it."""
    images()
    if not (harness.BUILD / "lib/kubeml-cuda.so").exists():
        skip(f"no {harness.BUILD.name}/lib/kubeml-cuda.so: make cuda-toolkit, then make CUDA=1")
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    built = subprocess.run([HERE / "images.sh", folder, "function-cuda"], capture_output=True, text=True,
                           env={**os.environ, "BUILD": os.path.relpath(harness.BUILD, ROOT)})
    if built.returncode == 77:
        skip((built.stdout + built.stderr).strip().splitlines()[-1])
    assert built.returncode == 0, built.stdout + built.stderr
    root = folder / "root"
    root.mkdir()
    config, sizes, paths = read("function-cuda", folder, unpacked=root)
    (folder / "function-cuda.tar").unlink()
    check("function-cuda", config, paths, CUDA)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in config["Env"], config
    print(f"function-cuda: {sum(sizes[1:]) / 2**20:.0f} MiB beyond the base")
    # Each is found from where the one that wants it lies, with what the base has; the driver alone is the node's.
    for program in (*(root / "usr/lib/kubeml/lib").iterdir(), root / "usr/lib/kubeml/bin/kubeml-function"):
        told = subprocess.run(["chroot", root, "/lib64/ld-linux-x86-64.so.2", "--list", "/" + str(program.relative_to(root))],
                              capture_output=True, text=True)
        lacks = [line for line in told.stdout.splitlines() if "not found" in line and "libcuda.so.1" not in line]
        assert told.returncode in (0, 1, 127) and not lacks and "=>" in told.stdout, (program.name, told.stdout, told.stderr)


harness.main(globals())
