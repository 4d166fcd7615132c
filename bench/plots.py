"""Bar charts as SVG, without a library, so that the files have readable diffs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, LEFT, BAR, GAP = 760, 190, 18, 14
OWN, OTHER = "#2b6cb0", "#a0aec0"

Bar = tuple[str, float, str]  # the peer, the value, the value as text


def bars(title: str, unit: str, blocks: Sequence[tuple[str, Sequence[Bar]]], own: str) -> str:
    """Return a chart with a block of horizontal bars for each experiment, each with its scale; `own` is coloured."""
    y = 52
    lines: list[str] = []
    for name, block in blocks:
        lines.append(f'<text x="8" y="{y}" font-weight="bold">{escape(name)}</text>')
        y += 8
        highest = max((value for _, value, _ in block), default=0) or 1
        for peer, value, text in block:
            width = max(round((WIDTH - LEFT - 120) * value / highest, 1), 1)
            colour = OWN if peer.startswith(own) else OTHER
            lines += [
                f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(peer)}</text>',
                f'<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR - 3}" fill="{colour}"/>',
                f'<text x="{LEFT + width + 6}" y="{y + 13}">{escape(text)}</text>',
            ]
            y += BAR
        y += GAP + 12
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" ',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{y}" fill="white"/>',
        f'<text x="8" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{WIDTH - 8}" y="22" text-anchor="end">{escape(unit)}</text>',
    ]
    return "\n".join([*head, *lines, "</svg>", ""])
