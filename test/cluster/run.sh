#!/bin/bash
# make check-cluster: builds the cluster's programs (once), starts a cluster, runs test_*.py of this folder, takes the
# cluster down: run.sh [PATTERN...]. With KUBECONFIG set it is that cluster that the cases run on, and none is started.
# What the machine lacks is said, with status 77: nothing was tested then.
#
# To work on a case:
#   export KUBEML_TC_STATE=/var/tmp/tc-mine           # a cluster of your own; several run side by side
#   KUBEML_TC_KEEP=1 test/cluster/run.sh PATTERN...   # leaves it up, or goes on with the one that is up
#   test/cluster/in.sh kubectl get pods -A            # looks into it; in.sh -n 1 enters node1
#   test/cluster/down.sh                              # ends it
# The images are built by each run from the working tree (images.sh: about 20 s after a change, two minutes the first
# time) and loaded where a case asks for them. KUBEML_TC_IMAGES=FOLDER takes FOLDER/{controller,builder,ps,function-cpu}.tar as
# they are. Settings of the cluster (nodes, GPUs): env.sh. A cluster that is kept does not change them.
set -uo pipefail
unset_state=${KUBEML_TC_STATE:-}
# What the cases want: two nodes, a third one that may be lost, and a GPU that four may share.
: "${KUBEML_TC_NODES:=3}" "${KUBEML_TC_SPARE:=1}" "${KUBEML_TC_GPUS:=1}" "${KUBEML_TC_GPU_REPLICAS:=4}"
: "${KUBEML_TC_LANES:=3}" # cases beside each other: they wait for Kubernetes most of the time
. "$(dirname "$0")/env.sh"
root=$(cd "$here/../.." && pwd)
leave_out() {
    echo "cluster: left out: $*"
    exit 77
}
finish() {
    [ -z "${images:-}" ] || { kill "$images" && wait "$images"; } 2>/dev/null
    [ -z "${KUBEML_TC_KEEP:-}" ] || return 0
    "$here/down.sh"
    rm -rf "$state-images"
}
# running KEEP: a cluster that an earlier run kept.
running() {
    local outer
    [ -n "$1" ] && [ -e "$state/node0.ready" ] && read -r outer _ <"$state/node0.ns" && [ -e "/proc/$outer" ]
}
: "${CC:=gcc}"

if [ -z "${KUBECONFIG:-}" ]; then
    [ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ] || leave_out "it needs root, for namespaces and containers"
    unshare --net --mount --pid true 2>/dev/null || leave_out "this machine allows no namespaces"
    for program in containerd runc ctr nft iptables ip nsenter openssl curl "${CC%% *}" /usr/lib/cni/ptp; do
        command -v "$program" >/dev/null || leave_out "no $program; see: scripts/install-packages cluster"
    done
    command -v go >/dev/null || [ -e "$KUBEML_TC_BIN/source" ] || leave_out "no go, version 1.24 or later"
    [ -n "$unset_state" ] || export KUBEML_TC_STATE=/var/tmp/kubeml-cluster-$$
    state=$KUBEML_TC_STATE
    "$here/build.sh" || { [ $? = 1 ] && leave_out "the cluster's programs could not be built"; exit 1; }
    trap finish EXIT
    # Beside the cluster's start, which waits more than it computes.
    images=
    if [ -z "${KUBEML_TC_IMAGES:-}" ]; then
        if command -v buildah >/dev/null && command -v debootstrap >/dev/null; then
            export KUBEML_TC_IMAGES=$state-images
            "$here/images.sh" "$KUBEML_TC_IMAGES" &
            images=$!
        else
            echo "cluster: no buildah or no debootstrap for the images; see: scripts/install-packages cluster"
        fi
    fi
    # Here, because there is no way out of the cluster's network; without it a case is left out, and says so.
    "$root/test/mongo/build.sh" || [ $? = 77 ] || exit 1
    ! command -v go >/dev/null || (cd / && timeout 60 go mod download "$KUBEML_TC_PROMETHEUS") >/dev/null 2>&1 || true
    running "${KUBEML_TC_KEEP:-}" || "$here/up.sh" || exit 1
    [ -z "$images" ] || wait "$images" || [ $? = 77 ] || exit 1
    images=
else
    command -v kubectl >/dev/null && command -v helm >/dev/null || leave_out "no kubectl or no helm"
fi
# In the cluster's network, and otherwise on this machine.
inside=()
if [ -z "${KUBECONFIG:-}" ]; then
    read -r _ node <"$state/node0.ns"
    inside=(nsenter -t "$node" --net)
    export KUBEML_TC_INSIDE=1
fi
program=("$root/test/run.py" --cluster -j "$KUBEML_TC_LANES")
[ -z "${KUBEML_TC_BENCH:-}" ] || program=("$here/bench.py") # make bench-cluster
"${inside[@]}" "${PYTHON:-/usr/bin/python3}" "${program[@]}" "$@"
status=$?
# The release that cases share goes with our cluster, and by itself from somebody's.
[ -z "${KUBECONFIG:-}" ] || [ -n "${KUBEML_TC_KEEP:-}" ] || "${PYTHON:-/usr/bin/python3}" "$here/release.py" down
exit $status
