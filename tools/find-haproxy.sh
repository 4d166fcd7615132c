#!/bin/sh
# Find HAProxy, for the tests with a load balancer: on the PATH, or in /usr/sbin. If it is not there, install Debian's with
# apt-get, as root only. Print what was found. If there is none, print one line on standard error; exit status 1.
#
# Usage: sh tools/find-haproxy.sh
set -eu

find_haproxy() {
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v haproxy
}

fail() {
    echo "make: the tests with a load balancer need HAProxy: $1" >&2
    exit 1
}

if ! haproxy=$(find_haproxy); then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        fail "install it (Debian: apt-get install haproxy)"
    fi
    echo "make: installing HAProxy with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends haproxy; } >/dev/null 2>&1 ||
        fail "apt-get install haproxy failed"
    haproxy=$(find_haproxy) || fail "it is installed, but not on the PATH"
fi
echo "make: $("$haproxy" -v | head -n 1) ($haproxy)"
