#!/bin/bash
# Serves MongoDB's wire protocol in the foreground: run.sh HOST PORT [IDLE_SECONDS [FILE]]
set -eu
. "$(dirname "$0")/env.sh"
[ -e "$KUBEML_MONGO_CACHE/built" ] || "$here/build.sh"
exec java "-Xmx$MONGO_HEAP" -Dorg.slf4j.simpleLogger.defaultLogLevel=error \
  -cp "$KUBEML_MONGO_CACHE/classes:$KUBEML_MONGO_CACHE/classes/*" MongoServerMain "$1" "$2" "${@:3}" $([ $# -gt 2 ] || echo 0)
