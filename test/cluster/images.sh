#!/bin/bash
# Builds the images of manifests/images that the cases run, as images.sh FOLDER: FOLDER/{controller,builder,ps,function-cpu}.tar.
# images.sh FOLDER IMAGE builds that one alone, and keeps nothing of it beside FOLDER/IMAGE.tar.
# What does not change is kept in $images_cache: the base (debootstrap), and the packages on top of it, in a storage of
# buildah's own. The programs are those of $BUILD where this machine runs the base's distribution, so that they are
# compiled once; elsewhere they are compiled in a container. Needs root, buildah and debootstrap; 77: there is no base.
# One at a time, because the storage and the names in it are shared.
set -euo pipefail
. "$(dirname "$0")/env.sh"
root=$(cd "$here/../.." && pwd)
images=$root/manifests/images suite=bookworm
: "${BUILD:=build/release}"
folder=$1
shift
mkdir -p "$folder" "$images_cache"
exec 9>"$images_cache/lock"
flock 9

# Unpacking by overlay where the kernel lets us: by vfs each layer is a copy of all below it.
driver=vfs
try=$(mktemp -d "$images_cache/try.XXXXXX")
mkdir "$try"/{lower,upper,work,merged}
if mount -t overlay overlay -o "lowerdir=$try/lower,upperdir=$try/upper,workdir=$try/work" "$try/merged" 2>/dev/null; then
    umount "$try/merged"
    driver=overlay
fi
rm -r "$try"
export ENGINE=buildah LAYERS=1 OUT=$folder PREFIX=localhost/
export BUILDAH_OPTIONS="--root $images_cache/storage --runroot $images_cache/run --storage-driver $driver"
b() { buildah ${BUILDAH_OPTIONS} "$@"; }

# Named by what it is made by.
BASE=localhost/kubeml-base:$suite-$(sha256sum "$images/base.sh" | cut -c1-12)
export BASE
b inspect --type image "$BASE" >/dev/null 2>&1 || "$images/base.sh" "$BASE" "$suite" || {
    echo "images: no base could be made; is there a way to the distribution's packages?" >&2
    exit 77
}
if grep -qx "VERSION_CODENAME=$suite" /etc/os-release; then
    make -s -C "$root" -j2 BUILD="$BUILD" all
    export PREBUILT=$root/$BUILD
fi
wanted=("$@")
[ $# -gt 0 ] || wanted=(controller builder ps function-cpu)
if [ -z "${PREBUILT:-}" ] && [[ " ${wanted[*]} " = *" function-cuda "* ]]; then
    echo "images: function-cuda takes its engine from this machine, which does not run $suite"
    exit 77
fi
if ! "$images/build.sh" "${wanted[@]}" >"$folder/log" 2>&1; then
    tail -40 "$folder/log" >&2
    exit 1
fi
tail -1 "$folder/log"
# buildah leaves the stages' containers; what no image stands on goes with them.
b rm --all >/dev/null
for image in "$@"; do
    b images --format '{{.Name}}:{{.Tag}}' | grep "^localhost/kubeml-$image:" | xargs buildah ${BUILDAH_OPTIONS} rmi >/dev/null
done
b rmi --prune >/dev/null
