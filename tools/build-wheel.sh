#!/bin/sh
# build-wheel.sh PYTHON FOLDER: builds the checkout's wheel into FOLDER, which then holds that wheel alone.
# build/ goes first: setuptools would carry modules that the checkout no longer has from there into the wheel.
set -eu
rm -rf build "$2"
"$1" -m pip wheel --quiet --no-deps --wheel-dir "$2" .
rm -rf build
