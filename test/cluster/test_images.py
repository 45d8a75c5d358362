"""The images that the pods run, as they lie in the archives: who they run as, what they say of themselves, how large they
are beyond their base, and what must be in them or must not."""
import json
import os
import pathlib
import tarfile

from cluster import case, harness, skip

MOST = {"controller": 90}  # MiB beyond the base
IN = {"controller": ("usr/lib/kubeml/bin/kubeml-controller",), "builder": ("usr/bin/gcc",),
      "ps": ("usr/lib/kubeml/bin/kubeml-ps", "redis-server", "kubeml-redis.so"), "function-cpu": ("usr/lib/kubeml/bin/kubeml-function",)}
NOT_IN = {name: ("bin/gcc", "/cc1", "bin/ld") for name in ("controller", "ps", "function-cpu")}


def read(name):
    """(config, [layer's size], [path]) of an image; the layers beyond the first are our own, which is the base."""
    folder = os.environ.get("KUBEML_TC_IMAGES")
    if not folder:
        skip("no images: they are built where buildah and debootstrap are (scripts/install-packages cluster)")
    with tarfile.open(pathlib.Path(folder) / f"{name}.tar") as archive:
        manifest, = json.load(archive.extractfile("manifest.json"))
        config = json.load(archive.extractfile(manifest["Config"]))["config"]
        paths = []
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                paths += ["/" + path.removeprefix("./") for path in files.getnames()]
        return config, [archive.getmember(layer).size for layer in manifest["Layers"]], paths


@case(limit=90, platform=False)
def they_are_small_labelled_and_run_as_nobody():
    for name, needed in IN.items():
        config, sizes, paths = read(name)
        assert config["User"] == "65532:65532", (name, config)
        labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
        assert labels["title"].startswith("kubeml-") and labels["version"] == "0.1.0", (name, labels)
        assert labels["licenses"] == "Apache-2.0" and labels["description"], (name, labels)
        beyond = sum(sizes[1:]) / 2**20
        print(f"{name}: {beyond:.0f} MiB beyond the base")
        assert len(sizes) > 1 and beyond <= MOST.get(name, 300), (name, beyond)
        for path in needed:
            assert any(p.endswith("/" + path) for p in paths), (name, path)
        for path in NOT_IN.get(name, ()):
            assert not any(p.endswith(path) for p in paths), (name, path)


harness.main(globals())
