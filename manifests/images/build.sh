#!/bin/bash
# Builds the images with docker, podman or buildah, whichever works here: build.sh [IMAGE...]
# Settings:
#   ENGINE       docker, podman or buildah
#   BASE         the base image; the build runs on it too, so both have one C library
#   PREFIX, TAG  of the names: localhost/ and the version
#   JOBS         of make
#   OUT          a folder that gets NAME.tar of each image
#   LAYERS=1     buildah keeps each step's layer for the next build
#   PREBUILT     a folder in which make built the programs on this machine, which must run BASE's distribution: nothing is
#                compiled then
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
: "${PREFIX:=localhost/}" "${JOBS:=2}" "${BASE:=docker.io/library/debian:12-slim}" "${OUT:=}" "${LAYERS:=}" "${PREBUILT:=}"
: "${TAG:=$(sed -n 's/.*KUBEML_VERSION "\(.*\)".*/\1/p' "$root/common/base/version.h")}"
images=("$@")
[ $# -gt 0 ] || images=(controller builder ps function-cpu)

works() {
    case $1 in
    docker) docker info >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null ;;
    esac
}
engine=${ENGINE:-}
for candidate in docker podman buildah; do
    [ -n "$engine" ] || ! works $candidate || engine=$candidate
done
[ -n "$engine" ] || { echo "images: none of docker, podman and buildah works here" >&2; exit 1; }

# buildah also works where containers cannot be started as usual (no overlay, no namespaces), with these options.
options=()
if [ "$engine" = buildah ]; then
    read -ra options <<<"${BUILDAH_OPTIONS---storage-driver vfs}"
fi
build() { # NAME CONTAINERFILE-ARGUMENTS...
    local name=$1
    shift
    case $engine in
    buildah) buildah "${options[@]}" build --isolation chroot --network host --layers="$([ -n "$LAYERS" ] && echo true || echo false)" -t "$name" "$@" ;;
    *) "$engine" build -t "$name" "$@" ;;
    esac
}
save() { # NAME FILE
    rm -f "$2"
    case $engine in
    buildah) buildah "${options[@]}" push -q "$1" "docker-archive:$2:$1" ;;
    *) "$engine" save -o "$2" "$1" ;;
    esac
}

# The context is what the build needs, and no other file of the working tree.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
(cd "$root" && git ls-files -co --exclude-standard -- Makefile common controller ps function-runtime kernels cli builder \
    manifests/images | while read -r f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done | tar -c --null -T -) | tar -x -C "$context"

files=$root/manifests/images
cuda=
case " ${images[*]} " in *" function-cuda "*) cuda=1 ;; esac
if [ -n "$cuda" ] && [ ! -e "${PREBUILT:-/none}/lib/kubeml-cuda.so" ]; then
    echo "images: function-cuda takes the CUDA engine from this machine: make CUDA=1, and PREBUILT=build/release" >&2
    exit 1
fi
if [ -n "$PREBUILT" ]; then
    collected=$context/collected
    CUDA=$cuda sh "$files/collect.sh" "$(realpath "$PREBUILT")" "$root" "$collected"
    printf 'FROM scratch\nCOPY . /\n' >"$context/Containerfile"
    build "${PREFIX}kubeml-build:$TAG" -f "$context/Containerfile" "$collected"
else
    build "${PREFIX}kubeml-build:$TAG" --build-arg "BASE=$BASE" --build-arg "JOBS=$JOBS" -f "$files/build.Containerfile" "$context"
fi
for image in "${images[@]}"; do
    base=$BASE
    build "${PREFIX}kubeml-$image:$TAG" ${base:+--build-arg "BASE=$base"} --build-arg "VERSION=$TAG" \
        --build-arg "BUILD=${PREFIX}kubeml-build:$TAG" -f "$files/$image.Containerfile" "$files"
    if [ -n "$OUT" ]; then
        mkdir -p "$OUT"
        save "${PREFIX}kubeml-$image:$TAG" "$OUT/$image.tar"
    fi
done
echo "built with $engine: ${images[*]/#/${PREFIX}kubeml-} ($TAG)"
