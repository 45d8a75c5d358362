#!/bin/bash
# Makes a small root directory from this machine's programs and the libraries
# they load: mkroot.sh DIR PROGRAM... Programs land under their own paths;
# SRC=DEST puts one elsewhere.
set -eu
root=$1; shift
mkdir -p "$root"/{bin,etc,lib64,tmp,usr/bin,usr/lib,var/tmp}
chmod 1777 "$root/tmp" "$root/var/tmp"
printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    install -D /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
libs() { ldd "$1" 2>/dev/null | grep -o '/[^ )]*' || true; }
for p in "$@"; do
    src=${p%%=*} dest=${p#*=}
    [ "${src#/}" != "$src" ] || src=$(command -v "$src")
    [ "$p" != "${p#*=}" ] || dest=$src
    [ "${dest#/}" != "$dest" ] || dest=$src
    install -D "$src" "$root$dest"
    libs "$src"
done | sort -u >"$root/.libs"
# What glibc loads by name at run time.
for l in libnss_files.so.2 libnss_dns.so.2 libresolv.so.2; do
    [ ! -e /lib/x86_64-linux-gnu/$l ] || echo /lib/x86_64-linux-gnu/$l
done >>"$root/.libs"
while read -r l; do [ -e "$root$l" ] || install -D "$l" "$root$l"; done <"$root/.libs"
rm "$root/.libs"
[ -e "$root/bin/sh" ] || ln -s bash "$root/bin/sh"
