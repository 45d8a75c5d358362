#!/bin/sh
# Lays out /image/NAME, the files that image NAME adds to its base: programs, and the closure of libraries that they
# load but for the C library, which the base has. Libraries are copied as the distribution built them, so that the
# base may be any image with the same C library, with or without a package manager.
# collect.sh [BUILT [SOURCE [DESTINATION]]]: where the programs were built, what from, and what stands for /. CUDA=1:
# function-cuda too.
set -eu
out=${1:-/out} src=${2:-/src} to=${3:-}
programs=/usr/lib/kubeml # programs find each other, the module and the SDK from their own folder

# put IMAGE FILE DESTINATION: the file, stripped if it is ours, and what it loads.
put() {
    mkdir -p "$to/image/$1$(dirname "$3")"
    cp -L "$2" "$to/image/$1$3"
    case $2 in "$out"/*) strip --strip-unneeded "$to/image/$1$3" ;; esac
    for library in $(ldd "$2" | grep -o '/[^ )]*' || true); do
        case $library in
        */ld-linux* | */libc.so* | */libm.so* | */libdl.so* | */libpthread.so* | */librt.so* | */libresolv.so*) continue ;;
        esac
        # /lib is a link to usr/lib, which a directory of an image's layer must not replace.
        place=$to/image/$1/usr/$(echo "${library#/}" | sed 's,^usr/,,')
        [ -e "$place" ] || install -D -m 0755 "$(readlink -f "$library")" "$place"
    done
}

# Every program's image can reach a store; certificates for its connections.
base() {
    install -D /etc/ssl/certs/ca-certificates.crt "$to/image/$1/etc/ssl/certs/ca-certificates.crt"
    for object in "$out"/lib/*mongo*.so; do
        [ ! -e "$object" ] || put "$1" "$object" "$programs/lib/$(basename "$object")"
    done
}

base controller
put controller "$out"/bin/kubeml-controller $programs/bin/kubeml-controller
put controller "$out"/bin/kubeml-function $programs/bin/kubeml-function # asked once for the zoo's models

put builder "$out"/bin/kubeml-builder $programs/bin/kubeml-builder
put builder "$out"/bin/kubeml-function $programs/bin/kubeml-function # asks what was compiled which samples it takes
mkdir -p "$to/image/builder$programs/include"
cp "$src"/function-runtime/include/*.h "$to/image/builder$programs/include/"

base ps
put ps "$out"/bin/kubeml-ps $programs/bin/kubeml-ps
put ps "$out"/lib/kubeml-redis.so $programs/lib/kubeml-redis.so
put ps "$(command -v redis-server)" /usr/bin/redis-server

base function
put function "$out"/bin/kubeml-function $programs/bin/kubeml-function

# The CUDA engine, where it is asked for, and NVIDIA's libraries beside it, where it looks first: cuDNN loads its parts itself, and
# cuBLAS with them, and the engine NCCL. Parts that compile at run time are left out: the engine takes none of their ways.
if [ -n "${CUDA:-}" ]; then
    base function-cuda
    put function-cuda "$out"/bin/kubeml-function $programs/bin/kubeml-function
    mkdir -p "$to/image/function-cuda$programs/lib"
    engine=$out/lib/kubeml-cuda.so
    install -m 0755 "$engine" "$to/image/function-cuda$programs/lib/"
    strip --strip-unneeded "$to/image/function-cuda$programs/lib/kubeml-cuda.so"
    # They may lie apart: CUDA in its own folder, cuDNN and NCCL among the distribution's libraries, or each in a wheel of Python's.
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

# What is large, for docs/guides/images.md.
for image in "$to"/image/*; do
    echo "$(basename "$image") $(du -sm "$image" | cut -f1) MiB"
    find "$image" -type f -printf '    %k KiB %f\n' | sort -rn | head -6
done
