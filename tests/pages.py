"""Pages of results that a program writes, with notes that people add."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Where the notes begin. Everything from this line on is kept when the page is written again: say there of which run
#: they are.
NOTES: Final = "## Notes"


def write_page(path: Path, lines: Sequence[str]) -> None:
    """Write a page as Markdown. Of one that is there, the notes stay."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if NOTES in before:
        text += "\n" + "\n".join(before[before.index(NOTES) :]) + "\n"
    path.write_text(text, encoding="utf-8")


def commit_id() -> str:
    """Return the short id of the commit that is checked out; "unknown" without git, or outside of a repository."""
    command = ["git", "log", "-1", "--format=%h"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def circumstances() -> str:
    """Return when, at which commit, and on what something is measured, for a page of results."""
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit_id()}, {os.cpu_count()} processors "
        f"with a load of {os.getloadavg()[2]:.1f} on average over 15 minutes."
    )
