#!/bin/bash
# Makes the cluster's keys, certificates and kubeconfig files in $KUBEML_TC_STATE/pki.
set -euo pipefail
. "$(dirname "$0")/env.sh"
mkdir -p "$pki"
cd "$pki"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" 2>/dev/null; }

authority() {
    key "$1"
    openssl req -x509 -new -key "$1.key" -days 365 -subj "/CN=$1" -out "$1.crt" \
        -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
}

# cert NAME SUBJECT AUTHORITY [SUBJECT-ALT-NAMES]
cert() {
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    {
        echo "extendedKeyUsage=clientAuth,serverAuth"
        [ -z "${4-}" ] || echo "subjectAltName=$4"
    } >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA "$3.crt" -CAkey "$3.key" -CAcreateserial \
        -days 365 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
    rm "$1.csr" "$1.ext"
}

# client NAME SUBJECT [SUBJECT-ALT-NAMES]: a certificate and the kubeconfig that carries it.
client() {
    cert "$1" "$2" ca "${3-}"
    cat >"$1.kubeconfig" <<Y
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: "https://$api_ip:6443", certificate-authority-data: "$(base64 -w0 ca.crt)"}
users:
- name: $1
  user: {client-certificate-data: "$(base64 -w0 "$1.crt")", client-key-data: "$(base64 -w0 "$1.key")"}
contexts:
- {name: test, context: {cluster: test, user: $1}}
current-context: test
Y
}

authority ca
authority front-proxy-ca
names=DNS:localhost,IP:127.0.0.1,IP:$api_ip,IP:${service_cidr%.0/*}.1
for name in kubernetes{,.default,.default.svc,.default.svc.cluster.local}; do names+=,DNS:$name; done
cert apiserver /CN=kube-apiserver ca "$names"
cert apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client ca
cert front-proxy /CN=front-proxy-client front-proxy-ca
client admin /O=system:masters/CN=admin
client controller-manager /CN=system:kube-controller-manager
client scheduler /CN=system:kube-scheduler
client proxy /CN=system:kube-proxy
for ((i = 0; i < KUBEML_TC_NODES; i++)); do
    client "node$i" "/O=system:nodes/CN=system:node:node$i" "DNS:node$i,IP:$(node_ip $i)"
done
openssl genrsa -out sa.key 2048 2>/dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
chmod 600 ./*.key ./*.kubeconfig
