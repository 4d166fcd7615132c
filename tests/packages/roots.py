"""What the programs here share: commands with a bound, Debian root folders by mmdebstrap, wheels without PyPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = CHECKOUT / ".cache" / "packages"
#: As in the Containerfile.
EXTRAS: Final = "tls,oauth,sasl,metrics,mirror,schemas"
#: What images of Debian for containers leave out.
_SLIM: Final = ("doc", "man", "locale", "info", "groff", "lintian")
SUITE: Final = "bookworm"
#: Debian's packages of programs that have other names.
_PACKAGES: Final = {
    "dpkg-deb": "dpkg", "mvn": "maven", "systemd-nspawn": "systemd-container", "unshare": "util-linux",
}  # fmt: skip
_APT: Final = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}


class CommandFailed(Exception):
    """A command ended with an error; the text has the end of its output."""


def run(
    command: Sequence[str | Path], *, seconds: float = 600, folder: Path | None = None, given: str = "",
    environment: Mapping[str, str] | None = None, errors: bool = False,
) -> str:  # fmt: skip
    """Run a command. Return its standard output, with `errors` its standard error too. Raises CommandFailed.

    given: its standard input.
    """
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=seconds, check=False, cwd=folder,
        input=given, env={**os.environ, **(environment or {})}, errors="replace",
    )  # fmt: skip
    if done.returncode:
        words = " ".join(str(word) for word in command)
        raise CommandFailed(f"{words}\nexit status {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + (done.stderr if errors else "")


def require(*programs: str) -> None:
    """Install Debian's packages of programs that are missing.

    End this program with one line if it is not root's, or if a program can't be had.
    """
    if os.geteuid():
        sys.exit("this needs root: it makes root folders of Debian")
    if missing := _missing(programs):
        packages = [_PACKAGES.get(program, program) for program in missing]
        if shutil.which("apt-get") is not None:
            print(f"installing {' '.join(packages)} with apt-get", file=sys.stderr)
            for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
                subprocess.run(["apt-get", "-qq", *command], env=_APT, stdout=subprocess.DEVNULL, check=False)
        if _missing(programs):
            sys.exit(f"missing: {', '.join(missing)} (Debian: apt-get install {' '.join(packages)})")


def _missing(programs: Iterable[str]) -> list[str]:
    return [program for program in programs if shutil.which(program) is None]


def debian_root(name: str, packages: Sequence[str], *, slim: bool = False) -> Path:
    """Return a tar file with a minimal Debian and these packages. It is kept for later runs."""
    made = CACHE / f"{SUITE}-{name}.tar"
    if not made.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _SLIM] if slim else []
        if packages:
            options.append(f"--include={','.join(packages)}")
        partial = made.with_suffix(".partial.tar")
        run(["mmdebstrap", "--variant=minbase", "--quiet", *options, SUITE, partial], seconds=1200)
        partial.rename(made)
    return made


def wheels() -> Path:
    """Build the checkout's wheel, with those of all that it needs. Return their folder."""
    folder = CACHE / "dist"
    run(["sh", CHECKOUT / "packages" / "build-wheels.sh", sys.executable, folder, EXTRAS], seconds=900)
    return folder


def write_hosts(folder: Path) -> None:
    """Give a root folder what Debian's installer and container engines write."""
    (folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")


@contextmanager
def unpacked(tar: Path, folder: Path) -> Iterator[Path]:
    """Unpack a root folder, mount what programs expect, and remove all of it at the end."""
    folder.mkdir(parents=True)
    mounts: list[Path] = []
    try:
        run(["tar", "-xf", tar, "-C", folder])
        for kind, target in (("proc", "proc"), ("devtmpfs", "dev"), ("tmpfs", "run")):
            run(["mount", "-t", kind, kind, folder / target])
            mounts.append(folder / target)
        shutil.copy("/etc/resolv.conf", folder / "etc" / "resolv.conf")
        write_hosts(folder)
        yield folder
    finally:
        for mounted in reversed(mounts):
            run(["umount", "--lazy", mounted])
        shutil.rmtree(folder, ignore_errors=True)
