#!/bin/bash
# Runs a command inside the cluster, with KUBECONFIG set: in.sh kubectl get pods; in.sh -n 1 ctr -n k8s.io images ls
set -euo pipefail
folder=$PWD n=0
if [ "${1-}" = -n ]; then
    n=$2
    shift 2
fi
. "$(dirname "$0")/env.sh"
read -r _ inner <"$state/node$n.ns"
export KUBECONFIG=$pki/admin.kubeconfig
exec nsenter -t "$inner" --net --mount --pid --ipc --uts --wd="$folder" "$@"
