#!/bin/sh
# reproducible.sh PYTHON: build the release of the last commit in two clones in different folders, with different umasks
# and time zones. Fail if a file differs.
set -eu
python=$1
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet . "$work/one"
git clone --quiet . "$work/another-folder"
(cd "$work/one" && umask 022 && TZ=UTC sh packages/release.sh "$python" "$work/first" >/dev/null)
(cd "$work/another-folder" && umask 077 && TZ=Asia/Tokyo sh packages/release.sh "$python" "$work/second" >/dev/null)
cat "$work/first/SHA256SUMS"
cmp "$work/first/SHA256SUMS" "$work/second/SHA256SUMS"
echo "reproducible.sh: both builds are the same, byte for byte"
