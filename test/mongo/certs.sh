#!/bin/bash
# A certificate of HOST, which is an address, and of localhost, and who signed it: certs.sh FOLDER HOST.
# FOLDER/{ca.crt,server.crt,server.key}; left as they are where they are there.
set -eu
[ ! -e "$1/server.crt" ] || exit 0
mkdir -p "$1"
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=kubeml test authority" \
  -keyout "$1/ca.key" -out "$1/ca.crt"
openssl req -newkey rsa:2048 -nodes -subj "/CN=$2" -keyout "$1/server.key" -out "$1/server.csr"
openssl x509 -req -in "$1/server.csr" -CA "$1/ca.crt" -CAkey "$1/ca.key" -CAcreateserial -days 3650 \
  -extfile <(echo "subjectAltName = IP:$2,DNS:localhost") -out "$1/made.crt"
mv "$1/made.crt" "$1/server.crt"
