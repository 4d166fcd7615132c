"""Pages of results that a program writes, with notes that people add."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Where the notes begin. Everything from this line on is kept when the page is written again.
NOTES: Final = "## Notes"


def write_page(path: Path, lines: Sequence[str]) -> None:
    """Write a page as Markdown. Of one that is there, the notes stay."""
    text = "\n".join(lines).rstrip("\n") + "\n"
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if NOTES in before:
        text += "\n" + "\n".join(before[before.index(NOTES) :]) + "\n"
    path.write_text(text, encoding="utf-8")
