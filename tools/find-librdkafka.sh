#!/bin/sh
# Find a C compiler and librdkafka's headers, for the clients of the benchmarks. If they are not there, root installs
# Debian's packages with apt-get. If they can't be had, print one line on standard error; exit status 1.
#
# Usage: sh tools/find-librdkafka.sh
set -eu

packages="gcc libc6-dev librdkafka-dev"

compiles() {
    compiler=$(command -v cc || command -v gcc) && echo '#include <librdkafka/rdkafka.h>' | "$compiler" -E - >/dev/null 2>&1
}

fail() {
    echo "make: the benchmarks need a C compiler and librdkafka's headers: $1" >&2
    exit 1
}

if ! compiles; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        fail "install them (Debian: apt-get install $packages)"
    fi
    echo "make: installing $packages with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    { apt-get update && apt-get install -y --no-install-recommends $packages; } >/dev/null 2>&1 ||
        fail "apt-get install $packages failed"
    compiles || fail "they are installed, but librdkafka/rdkafka.h is not found"
fi
