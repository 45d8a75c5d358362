#!/bin/bash
# Ends the cluster; or, with N, node N alone, as a machine that loses its power: of its last words none gets out. No
# process, mount, interface or control group is left.
set -u
. "$(dirname "$0")/env.sh"

end() {
    local outer inner
    read -r outer inner <"$state/node$1.ns" || return
    # A number may have gone to another process since.
    if [ "$(tr '\0' ' ' 2>/dev/null <"/proc/$inner/cmdline")" = "bash $here/init.sh $1 " ]; then
        kill -9 "$inner"
        await 20 [ ! -e "/proc/$outer" ]
    fi
    # As a machine that starts anew has none: kubelet spends seconds on each that it finds.
    for c in /sys/fs/cgroup/*/"$cgroup/node$1"; do
        [ ! -d "$c" ] || find "$c" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    rm "$state/node$1.ns"
}

if [ $# = 1 ]; then
    read -r _ first <"$state/node0.ns"
    nsenter -t "$first" --net ip link del "w$1" # both ends of it
    end "$1"
    exit
fi
for f in "$state"/node*.ns; do
    [ -e "$f" ] || continue
    n=${f##*/node}
    end "${n%.ns}"
done
for c in /sys/fs/cgroup/*/"$cgroup"; do
    [ ! -d "$c" ] || await 20 sh -c "find '$c' -depth -type d -exec rmdir {} + ; [ ! -d '$c' ]"
done
[ -e "$state/.kubeml-cluster" ] || exit 0
# Its name is free at once; to give back the disk's blocks takes a minute and more, and nobody waits for that.
gone=$(mktemp -d "$state-gone.XXXXXX") && mv "$state" "$gone" || exit
setsid rm -rf --one-file-system "$gone" >/dev/null 2>&1 </dev/null &
