#!/bin/sh
# Lays out /image/NAME, the files that image NAME adds to its base: programs, and the closure of the libraries that they load,
# except the C library, which the base has. Libraries are copied as the distribution built them. So the base may be any image
# with the same C library, with or without a package manager.
# collect.sh [BUILT [SOURCE [DESTINATION]]]: where the programs were built, from what, and a folder instead of /. CUDA=1 adds
# function-cuda.
set -eu
out=${1:-/out} src=${2:-/src} to=${3:-}
programs=/usr/lib/kubeml # programs find each other, the module and the SDK from their own folder

# put IMAGE FILE DESTINATION: the file, stripped if this project built it, and the libraries that it loads.
put() {
    mkdir -p "$to/image/$1$(dirname "$3")"
    cp -L "$2" "$to/image/$1$3"
    case $2 in "$out"/*) strip --strip-unneeded "$to/image/$1$3" ;; esac
    for library in $(ldd "$2" | grep -o '/[^ )]*' || true); do
        case $library in
        */ld-linux* | */libc.so* | */libm.so* | */libdl.so* | */libpthread.so* | */librt.so* | */libresolv.so*) continue ;;
        esac
        # /lib is a link to usr/lib. A directory of that name in a layer would replace the link.
        place=$to/image/$1/usr/$(echo "${library#/}" | sed 's,^usr/,,')
        [ -e "$place" ] || install -D -m 0755 "$(readlink -f "$library")" "$place"
    done
}

# What every image needs that reaches a store: the driver, and certificates for its connections.
base() {
    install -D /etc/ssl/certs/ca-certificates.crt "$to/image/$1/etc/ssl/certs/ca-certificates.crt"
    for object in "$out"/lib/*mongo*.so; do
        [ ! -e "$object" ] || put "$1" "$object" "$programs/lib/$(basename "$object")"
    done
}

base controller
put controller "$out"/bin/kubeml-controller $programs/bin/kubeml-controller
put controller "$out"/bin/kubeml-function $programs/bin/kubeml-function # the controller asks it once for the zoo's models

put builder "$out"/bin/kubeml-builder $programs/bin/kubeml-builder
put builder "$out"/bin/kubeml-function $programs/bin/kubeml-function # asks compiled functions which samples they take
mkdir -p "$to/image/builder$programs/include"
cp "$src"/function-runtime/include/*.h "$to/image/builder$programs/include/"

base ps
put ps "$out"/bin/kubeml-ps $programs/bin/kubeml-ps
put ps "$out"/lib/kubeml-redis.so $programs/lib/kubeml-redis.so
put ps "$(command -v redis-server)" /usr/bin/redis-server

base function
put function "$out"/bin/kubeml-function $programs/bin/kubeml-function

# The CUDA engine, if asked for, with NVIDIA's libraries beside it, where it looks first. cuDNN loads its parts and cuBLAS itself, and
# the engine loads NCCL. Parts of cuDNN that compile at run time are left out: the engine never uses them.
if [ -n "${CUDA:-}" ]; then
    base function-cuda
    put function-cuda "$out"/bin/kubeml-function $programs/bin/kubeml-function
    mkdir -p "$to/image/function-cuda$programs/lib"
    engine=$out/lib/kubeml-cuda.so
    install -m 0755 "$engine" "$to/image/function-cuda$programs/lib/"
    strip --strip-unneeded "$to/image/function-cuda$programs/lib/kubeml-cuda.so"
    # The libraries may lie apart: CUDA in a folder of its own, cuDNN and NCCL among the distribution's, or each in a Python wheel.
    folders=$(
        readelf -d "$engine" | sed -n 's/.*R[UN]*PATH.*\[\(.*\)\].*/\1/p' | tr : '\n'
        ldd "$engine" | grep -o '/[^ )]*' | xargs -n 1 dirname | sort -u
    )
    for library in libcudart libcublas libcublasLt libcudnn libcudnn_ops libcudnn_cnn libcudnn_graph libcudnn_heuristic \
        libcudnn_engines_precompiled libnccl; do
        found=$(for folder in $folders; do ls "$folder/$library".so.* 2>/dev/null || :; done | head -1)
        [ -n "$found" ] || { echo "images: no $library.so in any folder of the engine's libraries:" $folders >&2; exit 1; }
        install -m 0755 "$(readlink -f "$found")" "$to/image/function-cuda$programs/lib/$(basename "$found")"
    done
fi

put cli "$out"/bin/kubeml /usr/bin/kubeml

# The largest files of each image, for docs/guides/images.md.
for image in "$to"/image/*; do
    echo "$(basename "$image") $(du -sm "$image" | cut -f1) MiB"
    find "$image" -type f -printf '    %k KiB %f\n' | sort -rn | head -6
done
