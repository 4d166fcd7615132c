#!/bin/sh
# Find promtool, for the tests of the alert rules: on the PATH, or in .cache/promtool. If it is not there, download
# Debian's package prometheus with apt-get and unpack it there; nothing is installed, so no server starts. Print what was
# found. If there is none, print one line on standard error; exit status 1.
#
# Usage: sh tools/find-promtool.sh
set -eu

cd "$(dirname "$0")/.."
folder=.cache/promtool

find_promtool() {
    PATH="$PATH:$PWD/$folder/usr/bin" command -v promtool
}

fail() {
    echo "make: the tests of the alert rules need promtool: $1" >&2
    exit 1
}

download() { # apt-get may have no lists yet; only root can get them
    apt-get download prometheus || { [ "$(id -u)" -eq 0 ] && apt-get update && apt-get download prometheus; }
}

if ! promtool=$(find_promtool); then
    if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
        fail "install it (Debian: apt-get install prometheus)"
    fi
    echo "make: downloading Debian's package prometheus to $folder, for promtool"
    mkdir -p "$folder"
    (cd "$folder" && rm -f prometheus_*.deb && download && dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb) \
        >/dev/null 2>&1 || fail "apt-get download prometheus failed (as root, run apt-get update first)"
    promtool=$(find_promtool) || fail "it was downloaded, but is not in $folder/usr/bin"
fi
echo "make: $("$promtool" --version 2>&1 | head -n 1) ($promtool)"
