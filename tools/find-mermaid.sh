#!/bin/sh
# Find the script of Mermaid, which draws the diagrams of the documentation site in the reader's browser. If
# .cache/mermaid does not have it, download its package from npm, compare its checksum, and unpack the script. Print its
# path. If it can't be had, print one line on standard error; exit status 1.
#
# Usage: sh tools/find-mermaid.sh
set -eu

cd "$(dirname "$0")/.."
version=12.3.0
integrity=4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw==
folder=$PWD/.cache/mermaid
script=$folder/mermaid-$version.min.js

fail() {
    echo "make: the site's diagrams need mermaid $version: $1" >&2
    exit 1
}

if [ ! -s "$script" ]; then
    command -v npm >/dev/null 2>&1 || fail "install npm (Debian: apt-get install npm)"
    mkdir -p "$folder"
    archive=$folder/mermaid-$version.tgz
    npm pack --silent --pack-destination "$folder" "mermaid@$version" >/dev/null 2>&1 || fail "npm pack failed"
    found=$(openssl dgst -sha512 -binary "$archive" | openssl base64 -A)
    [ "$found" = "$integrity" ] || fail "its checksum is $found"
    tar -xzf "$archive" -C "$folder" package/dist/mermaid.min.js || fail "the package has no dist/mermaid.min.js"
    mv "$folder/package/dist/mermaid.min.js" "$script"
    rm -rf "$archive" "$folder/package"
fi
echo "$script"
