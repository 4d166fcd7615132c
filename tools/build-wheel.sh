#!/bin/sh
# build-wheel.sh PYTHON FOLDER: build the checkout's wheel into FOLDER, which then contains only that wheel.
# build/ is removed first: setuptools would take modules from it that the checkout no longer has.
set -eu
rm -rf build "$2"
"$1" -m pip wheel --quiet --no-deps --wheel-dir "$2" .
rm -rf build
