#!/bin/bash
# May the server that nobody has asked for long end? may-end.sh NAME IDLE_SECONDS: 1: no, somebody was told of it (NAME,
# which uri.sh touches) and is on the way. Otherwise its name is gone, so that the next one is not sent to it.
set -u
exec 9>"$(dirname "$1")/lock" && flock 9 || exit 0
[ ! -e "$1" ] || [ $(($(date +%s) - $(stat -c %Y "$1"))) -gt "$2" ] || exit 1
rm -f "$1"
exit 0
