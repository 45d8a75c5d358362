#!/bin/bash
# A certificate of HOST, which is an address, and of localhost, one of a client, and who signed both: certs.sh FOLDER HOST.
# FOLDER/{ca.crt,server.crt,server.key,client.pem}; left as they are where they are there.
set -eu
mkdir -p "$1"
# sign NAME OPTION...: NAME.csr, to made.crt
sign() {
  openssl x509 -req -in "$1.csr" -CA "${1%/*}/ca.crt" -CAkey "${1%/*}/ca.key" -CAcreateserial -days 3650 \
    -out "${1%/*}/made.crt" "${@:2}"
}
if [ ! -e "$1/server.crt" ]; then
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj "/CN=kubeml test authority" \
    -keyout "$1/ca.key" -out "$1/ca.crt"
  openssl req -newkey rsa:2048 -nodes -subj "/CN=$2" -keyout "$1/server.key" -out "$1/server.csr"
  sign "$1/server" -extfile <(echo "subjectAltName = IP:$2,DNS:localhost")
  mv "$1/made.crt" "$1/server.crt"
fi
if [ ! -e "$1/client.pem" ]; then
  openssl req -newkey rsa:2048 -nodes -subj "/O=kubeml tests/CN=client" -keyout "$1/client.key" -out "$1/client.csr"
  sign "$1/client"
  cat "$1/made.crt" "$1/client.key" >"$1/made.pem"
  mv "$1/made.pem" "$1/client.pem"
fi
