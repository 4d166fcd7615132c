"""Lay out tables as text. Widths count columns on a terminal, where some characters take two."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

_GAP: Final = "  "
#: The gap between columns if lines would otherwise be too long for the terminal.
_NARROW_GAP: Final = " "
#: Columns are not made narrower than this, so that a table may be wider than a very narrow terminal.
_NARROWEST: Final = 6


def layout(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table: first the heading, then the rows. No line ends with spaces.

    columns: the headings; `>` before a heading aligns the column to the right.
    width: the most characters of a line; None for no limit. If needed, columns are closer to each other, and long cells
    are continued on further lines.
    """
    names = [column.removeprefix(">") for column in columns]
    right = [column.startswith(">") for column in columns]
    widths = [_length(name) for name in names]
    for row in rows:
        for index, cell in enumerate(row):
            widths[index] = max(widths[index], _length(cell))
    gap = _GAP
    if width is not None:
        gaps = len(widths) - 1
        gap = _GAP if sum(widths) + len(_GAP) * gaps <= width else _NARROW_GAP
        widths = _fit(widths, width - len(gap) * gaps)
    lines = []
    for row in (names, *rows):
        pieces = [_pieces(cell, most) for cell, most in zip(row, widths, strict=True)]
        for parts in zip_longest(*pieces, fillvalue=""):
            cells = map(_aligned, parts, widths, right)
            lines.append(gap.join(cells).rstrip())
    return lines


def _fit(widths: list[int], most: int) -> list[int]:
    """Return widths with the sum `most`, if possible, by making the widest columns narrower."""
    found = list(widths)
    while (excess := sum(found) - most) > 0:
        widest = max(found)
        if widest <= _NARROWEST:
            break
        second = max((one for one in found if one < widest), default=0)
        many = [index for index, one in enumerate(found) if one == widest]
        less = max(1, min(widest - max(second, _NARROWEST), -(-excess // len(many))))
        for index in many:
            found[index] -= less
    return found


def _length(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - only for characters that may take two columns

    return cell_len(text)


def _pieces(text: str, width: int) -> list[str]:
    """Return a cell's text in pieces of at most `width`."""
    if _length(text) <= width:
        return [text]
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)]
    from rich.cells import chop_cells  # noqa: PLC0415

    return chop_cells(text, width)


def _aligned(text: str, width: int, right: bool) -> str:
    space = " " * (width - _length(text))
    return space + text if right else text + space
