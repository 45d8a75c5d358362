# Where the stand-in for MongoDB is kept: built once, outside of the build folder, a folder for each of its versions.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${KUBEML_MONGO_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/kubeml/mongo-stand-in-$(cat "$here"/*.java "$here/pom.xml" | cksum | cut -d' ' -f1)}"
: "${MONGO_HEAP:=1g}"
: "${MONGO_JVM=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC}" # for short lives on few cores; empty for a bench
# A real server that is on PATH, where Python has the client that makes its first user: it goes before the stand-in.
real_mongod() {
  command -v mongod && /usr/bin/python3 -c 'import pymongo' 2>/dev/null
}
