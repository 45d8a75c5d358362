#!/bin/bash
# Builds the cluster's programs into $KUBEML_TC_BIN: kube (all that runs in it, of Kubernetes, etcd and the stand-ins of
# kube/), its links, kubectl and helm. What is there already and up to date is left alone. Needs Go, and its module proxy
# the first time.
set -euo pipefail
. "$(dirname "$0")/env.sh"

mkdir -p "$KUBEML_TC_BIN"
# One at a time: whoever comes while another builds waits for it and finds it done.
exec 9>"$KUBEML_TC_BIN/lock"
flock 9
source_digest=$(cat "$here"/kube/* "$0" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$KUBEML_TC_BIN/source" 2>/dev/null)" = "$source_digest" ] && [ -x "$KUBEML_TC_BIN/helm" ]; then
    exit 0
fi

# The compiler takes an eighth less of processor time without collecting garbage and without what a debugger would read.
export CGO_ENABLED=0 GOGC=off GOMEMLIMIT=4GiB GOFLAGS=-gcflags=all=-dwarf=false

# The version that `kubectl version` and a chart's kubeVersion see.
cd "$here/kube"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
set_version=""
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    set_version+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    set_version+=" -X $package.gitTreeState=clean -X $package.gitCommit=unknown"
    set_version+=" -X $package.buildDate=1970-01-01T00:00:00Z"
done
echo "building the test cluster's programs (minutes the first time)"
go build -buildvcs=false -trimpath -ldflags "-s -w$set_version" -o "$KUBEML_TC_BIN/kube.new" .
mv "$KUBEML_TC_BIN/kube.new" "$KUBEML_TC_BIN/kube"
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet coredns fake-gpu netpol; do
    ln -sf kube "$KUBEML_TC_BIN/$name"
done
# program NAME PACKAGE LDFLAGS: one of its own, since cases start it a thousand times and kube takes long to start. It
# compiles against packages that are compiled already, the larger part of it.
program() {
    go build -buildvcs=false -trimpath -ldflags "-s -w$3" -o "$KUBEML_TC_BIN/$1.new" "$2"
    mv "$KUBEML_TC_BIN/$1.new" "$KUBEML_TC_BIN/$1"
}
program kubectl k8s.io/kubernetes/cmd/kubectl "$set_version"
helm=$(go list -m -f '{{.Version}}' helm.sh/helm/v3)
program helm helm.sh/helm/v3/cmd/helm " -X helm.sh/helm/v3/internal/version.version=$helm"
echo "$source_digest" >"$KUBEML_TC_BIN/source"
