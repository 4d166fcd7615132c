#!/bin/sh
# Find Java 17 or newer, for the tests with real ZooKeeper and Spark: $JAVA_HOME's, the one on the PATH, or one below
# /usr/lib/jvm. If there is none, root installs Debian's headless runtime with apt-get. Print the path. If there is no
# Java, print one line on standard error and exit with status 1.
#
# Usage: sh tools/find-java.sh
set -eu

NEEDED=17

major() { # print the major version of a java command, 0 if it is not Java
    "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p;1q' | grep . || echo 0
}

find_java() {
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        if [ -n "$java" ] && [ -x "$java" ] && [ "$(major "$java")" -ge $NEEDED ]; then
            echo "$java"
            return 0
        fi
    done
    return 1
}

fail() {
    echo "make: Spark, and the tests with a real ZooKeeper, need Java $NEEDED or newer: $1" >&2
    exit 1
}

if ! java=$(find_java); then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        fail "install a runtime (Debian: apt-get install default-jre-headless) or set JAVA_HOME"
    fi
    echo "make: installing Java with apt-get (default-jre-headless)"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends default-jre-headless; } >/dev/null 2>&1 ||
        fail "apt-get install default-jre-headless failed"
    java=$(find_java) || fail "the system's default-jre-headless is older than $NEEDED; install a newer Java and set JAVA_HOME"
fi
echo "make: Java $(major "$java") ($java)"
