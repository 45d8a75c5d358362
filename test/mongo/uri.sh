#!/bin/bash
# Prints the URI of a server for tests: uri.sh [users | open | tls]
# That is MONGODB_URI where it is set (for "users" alone), or a mongod that is on PATH, or a stand-in, which all tests
# of this user share and which ends by itself a minute after the last of them. "users" has users, and its URI names one who may
# do all; "tls" as well, behind TLS; "open" has none. 77 and a reason: there is no such server.
set -eu
. "$(dirname "$0")/env.sh"
kind=${1:-users}
if [ -n "${MONGODB_URI:-}" ]; then
  [ "$kind" = users ] || { echo "MONGODB_URI names the one server of these tests"; exit 77; }
  echo "$MONGODB_URI"
  exit 0
fi
if ! real_mongod >/dev/null; then
  command -v java >/dev/null || { echo "no MONGODB_URI, no mongod, and no java for the stand-in"; exit 77; }
  [ -e "$KUBEML_MONGO_CACHE/built" ] ||
    { echo "no MONGODB_URI, no mongod, and the stand-in is not built (make mongo-stand-in)"; exit 77; }
fi
mkdir -p "$KUBEML_MONGO_CACHE"
exec 9>"$KUBEML_MONGO_CACHE/lock"
flock 9

root=root:stand-in tls= user=root:stand-in@ options='?authSource=admin'
case $kind in
  users) ;;
  open) root= user= options= ;;
  tls)
    command -v openssl >/dev/null || { echo "no openssl for a certificate"; exit 77; }
    tls=$KUBEML_MONGO_CACHE/certificates
    "$here/certs.sh" "$tls" 127.0.0.1 >/dev/null 2>&1
    options="$options&tls=true&tlsCAFile=$tls/ca.crt&tlsCertificateKeyFile=$tls/client.pem"
    ;;
  *) echo "uri.sh: there is no kind $kind" >&2; exit 2 ;;
esac
pid= port=
read -r pid port 2>/dev/null <"$KUBEML_MONGO_CACHE/server-$kind" || true
# From now on it waits for the one who is told of it (may-end.sh, which takes the same lock).
touch -c "$KUBEML_MONGO_CACHE/server-$kind"
# It may have ended, and another program have its port.
grep -q "MongoServerMain\|mongod.py" "/proc/$pid/cmdline" 2>/dev/null || port=
if [ -z "$port" ] || ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  rm -f "$KUBEML_MONGO_CACHE/server-$kind"
  said=$(mktemp -u "$KUBEML_MONGO_CACHE/said.XXXXXX")
  mkfifo "$said"
  MONGO_MAY_END="'$here/may-end.sh' '$KUBEML_MONGO_CACHE/server-$kind' 60" MONGO_ROOT=$root MONGO_TLS=$tls \
    setsid "$here/run.sh" 127.0.0.1 0 60 >"$said" 2>/dev/null </dev/null 9>&- &
  pid=$!
  read -r -t 60 line <"$said" || line=
  rm -f "$said"
  case $line in
    "listening on "*) port=${line##*:} ;;
    *) echo "neither a mongod nor the stand-in for it started"; exit 77 ;;
  esac
  echo "$pid $port" >"$KUBEML_MONGO_CACHE/server-$kind"
fi
echo "mongodb://${user}127.0.0.1:$port/$options"
