#!/bin/bash
# Makes the image that holds a pod's namespaces open: pause.sh OUT.tar
set -euo pipefail
. "$(dirname "$0")/env.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${CC:-gcc} -static -Os -s -o "$folder/pause" "$here/pause.c"
"$here/mkimage.py" localhost/pause:1 "$folder" "$1" --entrypoint /pause
