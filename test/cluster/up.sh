#!/bin/bash
# Starts the cluster and waits until it can run pods; down.sh ends it. With N, starts node N again after `down.sh N`,
# as a machine that has its power back. A node is a set of namespaces (network,
# mount, PID, IPC, UTS) with init.sh as its process 1: nothing is opened on the machine's own network, and the
# end of process 1 ends all of it.
set -euo pipefail
. "$(dirname "$0")/env.sh"

fail() {
    echo "the cluster did not come up; its logs are in $logs" >&2
    tail -n 5 "$logs"/*.log >&2
    exit 1
}

# Control groups of version 1 are one tree a controller, and a new cpuset is empty until it is given processors.
make_cgroups() {
    local c f
    for c in /sys/fs/cgroup/*/; do
        [ "${c%unified/}" = "$c" ] && [ -e "$c/cgroup.procs" ] || continue
        mkdir -p "$c$cgroup/node$1"
    done
    [ -d /sys/fs/cgroup/cpuset ] || return 0
    for c in "$cgroup" "$cgroup/node$1"; do
        for f in cpuset.cpus cpuset.mems; do
            cat "/sys/fs/cgroup/cpuset/$f" >"/sys/fs/cgroup/cpuset/$c/$f"
        done
    done
}

# machine N: node N's namespaces; their outer and inner process go to nodeN.ns.
machine() {
    local i outer inner=
    make_cgroups "$1"
    setsid unshare --net --mount --pid --ipc --uts --fork --kill-child --mount-proc \
        bash "$here/init.sh" "$1" </dev/null >"$logs/node$1-init.log" 2>&1 &
    outer=$!
    for ((i = 0; i < 200; i++)); do
        inner=$(tr -d ' ' <"/proc/$outer/task/$outer/children") && [ -n "$inner" ] && break
        sleep 0.05
    done
    [ -n "$inner" ] || fail
    echo "$outer $inner" >"$state/node$1.ns"
}

# Up, or ended before it was.
decided() {
    local outer
    [ -e "$state/node$1.ready" ] || ! read -r outer _ <"$state/node$1.ns" || [ ! -e "/proc/$outer" ]
}
started() { { await 300 decided "$1" && [ -e "$state/node$1.ready" ]; } || fail; }

# The API server does, or node 0 has ended.
answers() { [ -e "$state/api.ready" ] || decided 0; }

# Network alone is entered, so that a PID means the same as here.
connect() {
    local first other
    read -r _ first <"$state/node0.ns"
    read -r _ other <"$state/node$1.ns"
    nsenter -t "$first" --net sh -ec "
        ip link add w$1 type veth peer name eth0 netns $other
        ip link set w$1 master node0 up
        ip route replace $pod_net.$1.0/24 via $(node_ip "$1")"
}

if [ $# = 1 ]; then
    rm -rf --one-file-system "$state/node$1/run" "$state/node$1.ready" # a machine's /run does not outlive it
    machine "$1"
    connect "$1"
    started "$1"
    exit
fi
"$here/build.sh"
if [ -e "$state" ]; then
    [ -e "$state/.kubeml-cluster" ] || { echo "$state is not a cluster's folder" >&2; exit 1; }
    "$here/down.sh"
fi
mkdir -p "$logs"
touch "$state/.kubeml-cluster"
"$here/certs.sh"

"$here/pause.sh" "$state/pause.tar"
machine 0
{ await 300 answers && [ -e "$state/api.ready" ]; } || fail
for ((n = 1; n < KUBEML_TC_NODES; n++)); do
    machine $n
    connect $n
done
for ((n = 0; n == 0 || n < KUBEML_TC_NODES; n++)); do started $n; done
echo "the test cluster is up: $here/in.sh kubectl get nodes"
