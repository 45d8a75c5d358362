#!/bin/bash
# Serves MongoDB's wire protocol in the foreground, by a mongod that is on PATH (mongod.py) or by the stand-in:
# run.sh HOST PORT [IDLE_SECONDS [FILE]]
set -eu
. "$(dirname "$0")/env.sh"
if mongod=$(real_mongod); then
  exec /usr/bin/python3 "$here/mongod.py" "$mongod" "$1" "$2" "${3:-0}" ${4:+"$4"}
fi
[ -e "$KUBEML_MONGO_CACHE/built" ] || "$here/build.sh"
exec java $MONGO_JVM "-Xmx$MONGO_HEAP" -Dorg.slf4j.simpleLogger.defaultLogLevel=error \
  -cp "$KUBEML_MONGO_CACHE/classes:$KUBEML_MONGO_CACHE/classes/*" MongoServerMain "$1" "$2" "${@:3}" $([ $# -gt 2 ] || echo 0)
