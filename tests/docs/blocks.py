"""The fenced code blocks of README.md and docs/*.md, which tests run: see `tests/docs/kinds.py`.

Prose is not looked at. A block begins and ends with a line of three backticks, which may be indented (in a list), and
names its language, so that readers see it in colours and tests know what it is.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"( *)```(.*)")


@dataclass(frozen=True, slots=True)
class Block:
    """One code block. page: its path in the checkout; line: the number of its first line; text: without the fences."""

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line without what follows several spaces, such as a comment: tables name it so."""
        return self.text.partition("\n")[0].partition("  ")[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the documents for readers: README.md and docs/*.md."""
    return ["README.md", *sorted(str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("docs/*.md"))]


def blocks_in(page: str, text: str) -> list[Block]:
    """Return the blocks of a page, in order. Raises ValueError if the last one does not end."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            continue
        if opened is None:
            opened = number + 1, fence[2].strip()
            continue
        start, language = opened
        body = textwrap.dedent("\n".join(lines[start:number]))
        found.append(Block(page, start + 1, language, body + "\n"))
        opened = None
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: the block does not end")
    return found


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page of the checkout, in order."""
    return blocks_in(page, CHECKOUT.joinpath(page).read_text("utf-8"))


def all_blocks() -> list[Block]:
    """Return the blocks of all pages."""
    return [block for page in pages() for block in blocks_of(page)]
