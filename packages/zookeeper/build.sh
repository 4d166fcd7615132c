#!/bin/sh
# build.sh PYTHON FOLDER: build the wheel of pylogd-zookeeper into FOLDER. Maven brings the jars from Maven Central; they
# must have the checksums in jars.sha256.
set -eu
python=$1
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
mkdir -p "$2"
target=$(cd "$2" && pwd)
cd "$(dirname "$0")"
command -v mvn >/dev/null || { echo "build.sh: mvn is missing (Debian: apt-get install maven)" >&2; exit 1; }
jars=pylogd_zookeeper/jars
rm -rf "$jars" build ./*.egg-info
mvn -q -B -f pom.xml dependency:copy-dependencies -DoutputDirectory="$jars" -DincludeScope=runtime
(cd "$jars" && LC_ALL=C sha256sum *.jar) >jars.found
if ! cmp -s jars.sha256 jars.found; then
    echo "build.sh: the jars are not those of jars.sha256:" >&2
    diff jars.sha256 jars.found >&2
    exit 1
fi
rm -f jars.found
# The same sources make the same wheel.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800}
export SOURCE_DATE_EPOCH
find pylogd_zookeeper -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$target" .
rm -rf build ./*.egg-info
