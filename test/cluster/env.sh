# Settings and helpers that the scripts of this folder share; sourced. Each setting can be given in the environment.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${KUBEML_TC_STATE:=/var/tmp/kubeml-cluster}" # all that the cluster writes; its last part names its control groups
: "${KUBEML_TC_BIN:=${XDG_CACHE_HOME:-$HOME/.cache}/kubeml-cluster/bin}" # what build.sh makes
images_cache=$(dirname "$KUBEML_TC_BIN")/images # what images.sh keeps
: "${KUBEML_TC_NODES:=1}"        # 0: API server and controllers alone
: "${KUBEML_TC_SPARE:=0}"        # of them, the last ones: for pods that tolerate the taint "spare" alone, without a GPU
: "${KUBEML_TC_CPU_TIMES:=8}"     # each node says that it has so many times this machine's processors
: "${KUBEML_TC_GPUS:=0}"         # GPUs that each node pretends to have
: "${KUBEML_TC_GPU_REPLICAS:=1}" # pods that may share each of them
: "${KUBEML_TC_PROXY_MODE:=iptables}" # of kube-proxy; or nftables
: "${KUBEML_TC_PROMETHEUS:=github.com/prometheus-operator/prometheus-operator@v0.82.2}" # whose kinds test_chart.py takes
export KUBEML_TC_STATE KUBEML_TC_BIN KUBEML_TC_NODES KUBEML_TC_SPARE KUBEML_TC_CPU_TIMES KUBEML_TC_GPUS KUBEML_TC_GPU_REPLICAS KUBEML_TC_PROXY_MODE KUBEML_TC_PROMETHEUS
# Kubernetes and its clients collect garbage for much of the time that the cases take; this machine's memory is no want.
export GOGC=${GOGC:-400}
export PATH=$KUBEML_TC_BIN:$PATH:/usr/sbin:/sbin
state=$KUBEML_TC_STATE pki=$KUBEML_TC_STATE/pki logs=$KUBEML_TC_STATE/log
cgroup=$(basename "$KUBEML_TC_STATE")
api_ip=10.123.0.1         # node0 too; node1 is .2 and so on
service_cidr=10.96.0.0/16 # .0.1 is the API server's Service
dns_ip=10.96.0.10
pod_net=10.244            # node N's pods are in .N.0/24

# start NAME COMMAND...: in the background, with a log and a pid file.
start() {
    local name=$1
    shift
    "$@" >"$logs/$name.log" 2>&1 </dev/null &
    echo $! >"$state/$name.pid"
}

# await SECONDS COMMAND...: until the command succeeds.
await() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "gave up waiting for: $*" >&2; return 1; }
        sleep 0.1
    done
}

kc() { kubectl --kubeconfig "$pki/admin.kubeconfig" "$@"; }
node_ip() { echo "${api_ip%.*}.$(($1 + 1))"; }

# As process 1 of a node: waits for whatever was orphaned to it.
reap() {
    set +e
    while :; do
        sleep 3600 &
        wait $!
    done
}
