#!/bin/bash
# Makes a base image for buildah from the distribution's packages, where nothing can be pulled: base.sh NAME [SUITE]
# Needs root and debootstrap. Then run: make images BASE=NAME
set -euo pipefail
name=$1 suite=${2:-bookworm}
read -ra options <<<"${BUILDAH_OPTIONS---storage-driver vfs}"
folder=${BASE_ROOT:-}
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf --one-file-system "$folder"' EXIT
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$folder" >/dev/null
fi
rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/* "$folder"/usr/share/{doc,man,locale}/*
container=$(buildah "${options[@]}" from scratch)
buildah "${options[@]}" add -q "$container" "$folder" /
buildah "${options[@]}" commit -q "$container" "$name" >/dev/null
buildah "${options[@]}" rm "$container" >/dev/null
echo "$name from $suite"
