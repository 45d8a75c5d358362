#!/bin/bash
# Fetches the stand-in's libraries and compiles it, once. 77: what it needs is not here.
set -eu
. "$(dirname "$0")/env.sh"
built=$KUBEML_MONGO_CACHE/built
[ ! -e "$built" ] || exit 0
for program in mvn javac flock; do
  command -v $program >/dev/null || { echo "mongo stand-in: no $program here"; exit 77; }
done
mkdir -p "$KUBEML_MONGO_CACHE"
exec 9>"$KUBEML_MONGO_CACHE/lock"
flock 9
[ ! -e "$built" ] || exit 0
work=$KUBEML_MONGO_CACHE/classes
mkdir -p "$work"
# What it writes to stdout, if only the end of a colour, would come before the line that tells of the server.
mvn -q -B -f "$here/pom.xml" -DoutputDirectory="$work" -DincludeScope=runtime dependency:copy-dependencies >&2 9>&- ||
  { echo "mongo stand-in: its libraries could not be fetched"; exit 77; }
javac -cp "$work/*" -d "$work" "$here"/*.java
touch "$built"
