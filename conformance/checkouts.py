"""Suites that a project publishes only in its repository, not in its packages: they need a checkout of it.

The checkouts are in one folder, `.cache/conformance/checkouts`, or that of the variable PYLOGD_CHECKOUTS. Each has the
name of its repository. One that is not there is fetched from GitHub; where that is not possible, the suite is reported
as missing, with the command that makes the checkout from any other copy.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from conformance import checks
from conformance.checks import CACHE, Missing

#: Longest time of a download.
_SECONDS = 300.0


def checkout(repository: str, tag: str) -> Path:
    """Return the checkout of a repository `owner/name` at a tag. It is fetched if it is not there.

    Raises Missing if it can't be fetched, or if one is there that is at another tag.
    """
    folder = Path(os.environ.get("PYLOGD_CHECKOUTS", CACHE / "checkouts")) / repository.split("/")[1]
    if not (folder / ".git").exists():
        _fetch(repository, tag, folder)
    tags = checks.run(["git", "tag", "--points-at", "HEAD"], seconds=60, folder=folder)
    if tag not in tags.stdout.split():
        raise Missing(f"{folder} is not at {tag}; move it away, and it is fetched anew")
    return folder


def _fetch(repository: str, tag: str, folder: Path) -> None:
    """Make a checkout: the whole or nothing."""
    url = f"https://github.com/{repository}"
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    clone = [checks.tool("git", "git"), "clone", "--quiet", "--depth", "1", "--branch", tag]
    done = checks.run([*clone, url, str(partial)], seconds=_SECONDS, environment={"GIT_TERMINAL_PROMPT": "0"})
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise Missing(
            f"its tests are only in its repository, and {url} can't be fetched ({checks.last_line(done.stderr)}); "
            f"with a copy of it: git clone --branch {tag} COPY {folder}"
        )
    partial.rename(folder)
