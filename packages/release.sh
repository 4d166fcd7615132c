#!/bin/sh
# release.sh PYTHON FOLDER [KEY]: build what a release has into FOLDER: wheel and source of pylogd-broker, the list of what
# it contains (SBOM, CycloneDX) and SHA256SUMS. With KEY, an SSH private key, SHA256SUMS is signed: SHA256SUMS.sig.
#
# The same commit makes the same bytes (SOURCE_DATE_EPOCH, packages/build-wheels.sh). Wheels for other systems are built
# by cibuildwheel, whose settings are in pyproject.toml; put them into FOLDER before signing.
set -eu
python=$1 folder=$2 key=${3:-}
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
umask 022
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
sh packages/build-wheels.sh "$python" "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash packages/clean-source.sh "$work/source"
(cd "$work/source" && "$python" -m build --sdist --outdir "$work/sdist" . >/dev/null 2>&1)
# setuptools writes the time of the build into the archive.
mkdir "$work/unpacked"
tar -xzf "$work"/sdist/*.tar.gz -C "$work/unpacked"
(cd "$work/unpacked" && tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX -cf - -- *) |
    gzip -9 -n >"$folder/$(basename "$work"/sdist/*.tar.gz)"
# The SBOM is of an environment that has the wheel and what it requires, nothing else.
"$python" -m venv --without-pip "$work/environment"
"$python" -m pip --python "$work/environment/bin/python" install --quiet --no-compile "$folder"/pylogd_broker-*.whl
find "$work/environment" -name direct_url.json -delete # the folder of the build
version=$("$work/environment/bin/python" -c 'import pylogd; print(pylogd.__version__)')
printf '[project]\nname = "pylogd-broker"\nversion = "%s"\n' "$version" >"$work/pyproject.toml"
"$python" -m cyclonedx_py environment --output-reproducible --mc-type application --pyproject "$work/pyproject.toml" \
    --output-file "$folder/pylogd_broker.cdx.json" "$work/environment/bin/python" 2>/dev/null
(cd "$folder" && rm -f SHA256SUMS SHA256SUMS.sig && LC_ALL=C sha256sum -- *.whl *.tar.gz *.json >"$work/sums" &&
    mv "$work/sums" SHA256SUMS)
if [ -n "$key" ]; then
    ssh-keygen -q -Y sign -f "$key" -n pylogd-release "$folder/SHA256SUMS"
fi
ls "$folder"
