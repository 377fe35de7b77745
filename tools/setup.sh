#!/bin/sh
# Installs what building and testing tandem needs on Debian (as root, or through sudo), and nothing when all of it is there.
set -e
packages="build-essential pkg-config libuv1-dev libnanomsg-dev libprotobuf-c-dev protobuf-c-compiler libopenblas-dev libpcre2-dev
libutf8proc-dev libjansson-dev libinih-dev libhttp-parser-dev libxxhash-dev uthash-dev libedit-dev libcmocka-dev procps curl"
missing=
for p in $packages; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
sudo=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || { echo "setup: these packages are missing and need root to install:$missing" >&2; exit 1; }
	sudo=sudo
fi
echo "setup: installing$missing"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
