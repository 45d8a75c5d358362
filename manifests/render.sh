#!/bin/bash
# Renders the chart to standard output, for kubectl apply instead of Helm: render.sh >kubeml.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
cat <<'Y'
# KubeML as one file beside its CRDs, rendered from charts/kubeml by `make manifests`. The namespace and the Secrets outlive the
# file, so they are made before it, once:
#
#   kubectl create namespace kubeml
#   kubectl label namespace kubeml pod-security.kubernetes.io/enforce=restricted
#   password=$(openssl rand -hex 32)
#   kubectl -n kubeml create secret generic kubeml-pool --from-literal=token=$(openssl rand -hex 32)
#   kubectl -n kubeml create secret generic kubeml-builder --from-literal=token=$(openssl rand -hex 32)
#   kubectl -n kubeml create secret generic kubeml-token --from-literal=token=$(openssl rand -hex 32)
#   kubectl -n kubeml create secret generic kubeml-store --from-literal=password=$password \
#     --from-literal=uri="mongodb://kubeml:$password@kubeml-mongodb:27017/kubeml?authSource=admin"
#   kubectl apply -f charts/kubeml/crds -f manifests/kubeml.yaml
#
# The file names the images as `make images` does. With those of `make images PREFIX=registry.example/kubeml/` the last command is
# sed 's|localhost/kubeml-|registry.example/kubeml/kubeml-|' manifests/kubeml.yaml | kubectl apply -f charts/kubeml/crds -f -
#
# To take it away, with the pods of running jobs. MongoDB's claim, the Secrets, and the CRDs with their objects stay:
#
#   kubectl delete -f manifests/kubeml.yaml
#   kubectl -n kubeml delete pods -l kubeml.dev/install=kubeml
Y
"${HELM:-helm}" template kubeml charts/kubeml --namespace kubeml --kube-version 1.34.0 --no-hooks \
    --set secrets.make=false | sed '/helm.sh\/chart:/d; s/\(managed-by: \)Helm/\1kubectl/' |
    python3 -c '
import re, sys
# Helm adds the namespace when it installs. kubectl takes it from the object.
for part in sys.stdin.read().split("\n---\n"):
    part = part.removeprefix("---\n")
    if not re.search(r"^kind:", part, re.M):
        continue
    if not re.search(r"^kind: ClusterRole.*$", part, re.M):
        part = re.sub(r"^metadata:\n  name: (.*)$", r"metadata:\n  name: \1\n  namespace: kubeml", part, count=1, flags=re.M)
    print("---\n" + part.rstrip("\n"))
'
