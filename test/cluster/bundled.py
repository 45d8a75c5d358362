"""What the MongoDB that the chart brings needs on the test cluster: an image, and a disk for its claim.

The server in the image is the stand-in of test/mongo, because MongoDB's own cannot be had here. All else is the chart's:
StatefulSet, claim, Service, Secret and NetworkPolicy.
"""
import contextlib
import pathlib
import shutil
import subprocess

import cluster
from cluster import FOLDER, HERE, ROOT, apply, kubectl, skip

IMAGE = "docker.io/library/mongo:7.0"  # the chart's default
CLASS = "disk-of-node0"
CLAIM = "data-kubeml-mongodb-0"
LIBRARIES = ("server/libjvm.so", "libjava.so", "libjli.so", "libjimage.so", "libnet.so", "libnio.so", "libzip.so",
             "libverify.so", "libextnet.so", "libmanagement.so", "libmanagement_ext.so")
# It takes what the chart gives MongoDB's image: those options, and the first user from the environment and a file.
ENTRY = """#!/bin/bash
set -eu
[ "$1 $2" = "--bind_ip_all --wiredTigerCacheSizeGB" ] || { echo "what options are these: $*"; exit 2; }
export MONGO_ROOT=$MONGO_INITDB_ROOT_USERNAME:$(cat "$MONGO_INITDB_ROOT_PASSWORD_FILE")
exec JAVA/bin/java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx512m -XX:-UsePerfData -Dorg.slf4j.simpleLogger.defaultLogLevel=error \\
  -cp '/classes:/classes/*' MongoServerMain 0.0.0.0 27017 0 /data/db/stand-in
"""


def stand_in_image():
    """Built and given to node0, where the volume is, once a cluster."""
    if not cluster.OURS:
        skip("somebody's cluster brings its own volumes and pulls MongoDB's image")
    if not shutil.which("java"):
        skip("no stand-in for MongoDB (MONGO_TESTS=1 scripts/install-packages brings what it needs)")
    mark = cluster.STATE / "mongodb-image-loaded"
    with cluster.one_at_a_time("images"):
        if mark.exists():
            return
        java = pathlib.Path(shutil.which("java")).resolve().parents[1]
        root, tar = pathlib.Path(FOLDER) / "root", pathlib.Path(FOLDER) / "mongodb.tar"
        cache = subprocess.run(["bash", "-c", f". {ROOT}/test/mongo/env.sh; echo $KUBEML_MONGO_CACHE"], check=True,
                               capture_output=True, text=True).stdout.strip()
        subprocess.run([HERE / "mkroot.sh", root, "/bin/bash", "cat", java / "bin/java", *(java / "lib" / n for n in LIBRARIES)],
                       check=True)
        for part in ("lib", "conf"):
            shutil.copytree(java / part, root / str(java)[1:] / part, dirs_exist_ok=True, ignore_dangling_symlinks=True,
                            ignore=shutil.ignore_patterns("src.zip", "ct.sym", "libawt*"))
        shutil.copytree(f"{cache}/classes", root / "classes")
        (root / "data/db").mkdir(parents=True)
        (root / "entry").write_text(ENTRY.replace("JAVA", str(java)))
        (root / "entry").chmod(0o755)
        subprocess.run([HERE / "mkimage.py", IMAGE, root, tar, "--entrypoint", "/entry"], check=True)
        subprocess.run([HERE / "in.sh", "-n", "0", "ctr", "-n", "k8s.io", "images", "import", tar], check=True,
                       capture_output=True)
        mark.touch()


@contextlib.contextmanager
def disk(ns):
    """A disk of node0 for the claim of the release `kubeml` in that namespace, by the cluster's default class."""
    stand_in_image()
    folder = cluster.STATE / f"disk-{ns}"
    folder.mkdir()
    apply([{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS, "annotations": {
                "storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "kubernetes.io/no-provisioner"},
           {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"disk-{ns}"}, "spec": {
               "capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
               "persistentVolumeReclaimPolicy": "Retain", "local": {"path": str(folder)},
               "claimRef": {"namespace": ns, "name": CLAIM},  # and nobody else's
               "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                   {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node0"]}]}]}}}}], "default")
    try:
        yield
    finally:
        kubectl("delete", f"pv/disk-{ns}", f"storageclass/{CLASS}", "--wait=false", check=False)
        shutil.rmtree(folder, ignore_errors=True)
