#!/bin/bash
# Gives every node an image: load.sh FILE.tar... (of mkimage.py, or `buildah push IMAGE docker-archive:FILE.tar:NAME`).
set -euo pipefail
. "$(dirname "$0")/env.sh"
for f in "$state"/node*.ns; do
    n=${f##*/node}
    for tar in "$@"; do
        "$here/in.sh" -n "${n%.ns}" ctr -n k8s.io images import "$(realpath "$tar")"
    done
done
