#!/bin/sh
# build-wheels.sh PYTHON FOLDER [EXTRAS]: build the checkout's wheel into FOLDER, and with EXTRAS (such as tls,metrics)
# the wheels of everything that it needs with them, for installations without PyPI. The same commit makes the same
# bytes: SOURCE_DATE_EPOCH, by default the time of the commit, is the time of all files in the wheel.
set -eu
python=$1 folder=$2 extras=${3:-}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash packages/clean-source.sh "$work/source"
# Debuggers' symbols would name the folder of the build.
CFLAGS="${CFLAGS:-} -g0 -ffile-prefix-map=$work/source=."
export CFLAGS
umask 022
rm -f "$folder"/pylogd_broker-*.whl
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$work/source"
if [ -n "$extras" ]; then
    "$python" -m pip wheel --quiet --wheel-dir "$folder" --find-links "$folder" \
        "pylogd-broker[$extras] @ file://$(ls "$folder"/pylogd_broker-*.whl)"
fi
