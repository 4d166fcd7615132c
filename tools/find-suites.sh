#!/bin/sh
# Find the programs of other projects that the suites of `make conformance` use. Root installs Debian's packages of those
# that are missing with apt-get. Print one line on standard error for what can't be had: the suites that need it then
# have the result "missing".
#
# Usage: sh tools/find-suites.sh
set -eu

wanted="kcat:kcat node:nodejs npm:npm go:golang-go java:default-jdk-headless javac:default-jdk-headless mvn:maven
krb5kdc:krb5-kdc kadmin.local:krb5-admin-server krb5-config:libkrb5-dev"

missing=""
for pair in $wanted; do
    PATH="$PATH:/usr/sbin" command -v "${pair%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
ls /usr/lib/*/sasl2/libgssapiv2.so* >/dev/null 2>&1 || missing="$missing libsasl2-modules-gssapi-mit"

if [ -n "$missing" ]; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "make: some suites will be missing; they need$missing (Debian: apt-get install$missing)" >&2
        exit 0
    fi
    echo "make: installing$missing with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    { apt-get update && apt-get install -y --no-install-recommends $missing; } >/dev/null 2>&1 ||
        echo "make: some suites will be missing: apt-get install$missing failed" >&2
fi
