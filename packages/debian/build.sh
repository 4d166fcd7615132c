#!/bin/sh
# build.sh WHEELS FOLDER [EXTRAS]: build pylogd_VERSION_ARCH.deb into FOLDER, on the Debian that it is for.
#
# WHEELS has pylogd's wheel, and those of what it needs if PIP_NO_INDEX=1 is set (packages/build-wheels.sh makes both).
# The package has an environment of its own in /opt/pylogd, for Debian's python3; nothing else of the system's Python is
# touched. Needs python3-venv and dpkg-deb.
set -eu
wheels=$(cd "$1" && pwd)
mkdir -p "$2"
target=$(cd "$2" && pwd)
extras=${3:-tls,oauth,sasl,metrics,mirror,schemas}
cd "$(dirname "$0")/../.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
home=$root/opt/pylogd
mkdir -p "$root/opt"
python3 -m venv "$work/pip"
python3 -m venv --without-pip "$home"
"$work/pip/bin/pip" --python "$home/bin/python" install --quiet --no-cache-dir --no-compile --find-links "$wheels" \
    "pylogd-broker[$extras] @ file://$(ls "$wheels"/pylogd_broker-*.whl)"
version=$("$home/bin/python" -c 'import pylogd; print(pylogd.__version__)')
# The environment was made in $root and will be in /: name it where it will be.
grep -rlI "$root/opt/pylogd" "$home/bin" "$home/pyvenv.cfg" | xargs sed -i "s#$root/opt/pylogd#/opt/pylogd#g"
# These name the folder of the build, or have checksums of files that did.
find "$home" -name direct_url.json -delete
find "$home" -name RECORD -exec sed -i '/^\.\.\/\.\.\/\.\.\/bin\//d; /direct_url\.json/d' {} +
find "$home" -name __pycache__ -prune -exec rm -rf {} +
# The services can't write to /opt, so their modules are compiled here.
"$home/bin/python" -m compileall -q --invalidation-mode unchecked-hash -s "$root" "$home/lib"

install -d "$root/usr/bin" "$root/lib/systemd/system" "$root/etc/pylogd" "$root/usr/share/doc/pylogd/docs/releases" "$root/DEBIAN"
ln -s /opt/pylogd/bin/pylogd "$root/usr/bin/pylogd"
install -m 644 etc/*.service "$root/lib/systemd/system/"
install -m 644 etc/pylogd.toml "$root/etc/pylogd/"
install -m 644 README.md CHANGELOG.md etc/*.yml "$root/usr/share/doc/pylogd/"
install -m 644 docs/*.md "$root/usr/share/doc/pylogd/docs/"
install -m 644 docs/releases/*.md "$root/usr/share/doc/pylogd/docs/releases/"
install -m 644 packages/debian/copyright "$root/usr/share/doc/pylogd/copyright"
install -m 755 packages/debian/postinst packages/debian/prerm packages/debian/postrm "$root/DEBIAN/"
echo /etc/pylogd/pylogd.toml >"$root/DEBIAN/conffiles"
python=$("$home/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("$home/bin/python" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
arch=$(dpkg --print-architecture)
sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@PYTHON@/$python/; s/@NEXT@/$next/" \
    -e "s/@SIZE@/$(du -sk "$root" | cut -f1)/" packages/debian/control >"$root/DEBIAN/control"
(cd "$root" && find opt usr lib etc -type f | LC_ALL=C sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"
dpkg-deb --root-owner-group -Zzstd --build "$root" "$target/pylogd_${version}_${arch}.deb" >/dev/null
echo "$target/pylogd_${version}_${arch}.deb"
