"""Pages of results that a program writes, with notes that people add; and results as JSON."""

from __future__ import annotations

import json
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


def json_text(value: object, indent: str = "") -> str:
    """Return a value as JSON: lists and objects with others in them have a line for each, others one for the whole."""
    deeper = indent + " "
    match value:
        case dict() if any(isinstance(one, dict | list | tuple) and one for one in value.values()):
            lines = [f"{deeper}{json.dumps(str(key))}: {json_text(one, deeper)}" for key, one in value.items()]
            text = "{\n" + ",\n".join(lines) + f"\n{indent}}}"
        case list() | tuple() if any(isinstance(one, dict | list | tuple) and one for one in value):
            text = "[\n" + ",\n".join(deeper + json_text(one, deeper) for one in value) + f"\n{indent}]"
        case _:
            text = json.dumps(value)
    return text if indent else text + "\n"


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
