#!/bin/bash
# Process 1 of a node: init.sh N. up.sh starts it, nothing else should.
set -euo pipefail
. "$(dirname "$0")/env.sh"
n=$1 name=node$1 ip=$(node_ip "$1")
# As if it had a machine of its own: an API server that shares the cores fairly with each pod and test answers late.
echo -5 2>/dev/null >/proc/self/autogroup || true
hostname "$name"
ip link set lo up
if [ "$n" = 0 ]; then
    # A bridge stands in for a network card where the kernel has no dummy devices, and takes the other nodes in.
    ip link add node0 type bridge
    ip addr add "$ip/24" dev node0
    ip link set node0 up
    ip route add default via "${api_ip%.*}.254"
else
    await 30 ip link show eth0
    ip addr add "$ip/24" dev eth0
    ip link set eth0 up
    ip route add default via "$api_ip"
    for ((other = 1; other < KUBEML_TC_NODES; other++)); do
        [ $other = "$n" ] || ip route add "$pod_net.$other.0/24" via "$(node_ip $other)"
    done
fi
sysctl -qw net.ipv4.ip_forward=1
if [ "$n" = 0 ]; then . "$here/control-plane.sh"; fi
if [ "$KUBEML_TC_NODES" -gt 0 ]; then . "$here/node.sh"; fi
touch "$state/$name.ready"
reap
