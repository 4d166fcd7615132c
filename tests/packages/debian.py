"""Build the Debian package, install it in a booted Debian, use it, and write DEBIAN.md: `make debian`.

Strategy: the package is built in a root folder of Debian, twice, and both must be the same bytes. Then another root
folder is booted with systemd-nspawn; a unit in it runs debian_check.sh and powers it off.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.packages.roots import (
    CACHE,
    CHECKOUT,
    SUITE,
    CommandFailed,
    debian_root,
    require,
    run,
    unpacked,
    wheels,
    write_hosts,
)
from tests.pages import circumstances, write_page

_UNIT: Final = """\
[Unit]
Description=the check of pylogd's package
After=basic.target dbus.service
Wants=dbus.service
[Service]
Type=oneshot
ExecStart=/check.sh
StandardOutput=append:/check.out
StandardError=append:/check.out
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
"""
_PASSED: Final = "PASSED"


def build(folder: Path, epoch: str) -> Path:
    """Build the package in a Debian that has nothing else. Return its path. epoch: the time of all files in it."""
    with unpacked(debian_root("build", ("python3", "python3-venv", "binutils")), folder / "root") as root:
        source = root / "source"
        for name in ("packages", "etc", "docs"):
            shutil.copytree(CHECKOUT / name, source / name)
        for name in ("README.md", "CHANGELOG.md"):
            shutil.copy(CHECKOUT / name, source)
        shutil.copytree(wheels(), root / "wheels")
        command = ["env", "PIP_NO_INDEX=1", f"SOURCE_DATE_EPOCH={epoch}", "sh", "/source/packages/debian/build.sh"]
        run(["chroot", root, *command, "/wheels", "/out"], seconds=900)
        (made,) = (root / "out").glob("*.deb")
        return Path(shutil.copy(made, folder / made.name))


def check(package: Path, folder: Path) -> list[str]:
    """Boot a Debian and run the check in it. Return its lines. Raises CommandFailed."""
    tar = debian_root("systemd", ("python3", "systemd", "systemd-sysv", "dbus", "procps"))
    folder.mkdir()
    try:
        run(["tar", "-xf", tar, "-C", folder])
        write_hosts(folder)
        shutil.copy(package, folder / "pylogd.deb")
        shutil.copy(Path(__file__).with_name("debian_check.sh"), folder / "check.sh")
        (folder / "check.sh").chmod(0o755)
        units = folder / "etc" / "systemd" / "system"
        (units / "check.service").write_text(_UNIT)
        (units / "multi-user.target.wants").mkdir(exist_ok=True)
        (units / "multi-user.target.wants" / "check.service").symlink_to("/etc/systemd/system/check.service")
        boot = ["systemd-nspawn", "--quiet", "--private-network", "--boot", "--console=pipe", "-D", str(folder)]
        if not Path("/run/systemd/system").exists():  # the container stays in this process's unit
            boot += ["--register=no", "--keep-unit"]
        console = run(boot, seconds=900, errors=True)
        found = folder / "check.out"
        said = found.read_text() if found.exists() else console
        lines = said.splitlines()
        if _PASSED not in lines:  # systemd may add a line about its own end
            raise CommandFailed(said)
        return [line for line in lines if line.startswith("- ")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="the page to write")
    parser.add_argument("--package", type=Path, help="check this package only; build none, write nothing")
    options = parser.parse_args()
    require("mmdebstrap", "systemd-nspawn", "dpkg-deb")
    if options.package:
        with tempfile.TemporaryDirectory(prefix="pylogd-debian-") as name:
            print("\n".join(check(options.package, Path(name) / "booted")))
        return 0
    with tempfile.TemporaryDirectory(prefix="pylogd-debian-") as name:
        folders = [Path(name) / part for part in ("first", "second")]
        packages = []
        epoch = run(["git", "log", "-1", "--format=%ct"], folder=CHECKOUT).strip()
        for folder in folders:
            folder.mkdir()
            packages.append(build(folder, epoch))
        digests = [hashlib.sha256(package.read_bytes()).hexdigest() for package in packages]
        size = packages[0].stat().st_size
        shutil.copy(packages[0], CACHE)
        shown = check(packages[0], Path(name) / "booted")
    same = len(set(digests)) == 1
    lines = [
        "# The Debian package", "", "Written by `make debian`.", "", circumstances(), "",
        f"Built for Debian {SUITE}, {size / 1e6:.1f} MB; installed in a Debian booted by systemd-nspawn.", "",
        f"- built twice: {'the same bytes' if same else 'DIFFERENT bytes'}, SHA-256 {digests[0][:16]}...",
        *shown,
    ]  # fmt: skip
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
