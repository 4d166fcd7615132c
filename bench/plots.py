"""Charts as SVG, without a library, so that the files have readable diffs: bars, percentiles, values over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, LEFT, BAR, GAP = 760, 190, 18, 14
OWN, OTHER = "#2b6cb0", "#a0aec0"


class Bar(NamedTuple):
    """A peer's bar. low, high: the ends of the value's interval, drawn as a line, if it has one."""

    peer: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None


def bars(title: str, unit: str, blocks: Sequence[tuple[str, Sequence[Bar]]], own: str) -> str:
    """Return a chart with a block of horizontal bars for each experiment, each with its scale; `own` is coloured."""
    y = 52
    lines: list[str] = []
    for name, block in blocks:
        lines.append(f'<text x="8" y="{y}" font-weight="bold">{escape(name)}</text>')
        y += 8
        highest = max((bar.value if bar.high is None else bar.high for bar in block), default=0) or 1
        for bar in block:
            lines += _bar(bar, y, (WIDTH - LEFT - 120) / highest, OWN if bar.peer.startswith(own) else OTHER)
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


def _bar(bar: Bar, y: int, scale: float, colour: str) -> list[str]:
    width = max(round(scale * bar.value, 1), 1)
    lines = [
        f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(bar.peer)}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR - 3}" fill="{colour}"/>',
    ]
    end = width
    if bar.low is not None and bar.high is not None:
        low, end = round(scale * bar.low, 1), max(width, round(scale * bar.high, 1))
        lines.append(f'<path d="M{LEFT + low} {y + 7.5}h{round(end - low, 1)}" stroke="#1a202c" stroke-width="1.5"/>')
    return [*lines, f'<text x="{LEFT + end + 6}" y="{y + 13}">{escape(bar.text)}</text>']


#: Colours of lines, told apart by people who are colour-blind too.
COLOURS = ("#2b6cb0", "#dd6b20", "#38a169", "#805ad5", "#718096", "#b83280")
_PLOT_HEIGHT, _PLOT_LEFT, _PLOT_TOP, _TICKS = 190, 70, 58, 4
_MOST_POINTS = 400

Line = tuple[str, Sequence[tuple[float, float]]]  # the name, and pairs of seconds and value


def curves(
    title: str,
    unit: str,
    lines: Sequence[Line],
    logarithmic: bool = False,
    events: Sequence[tuple[float, str]] = (),
) -> str:
    """Return a chart of values over seconds, with a coloured line for each series. Missing values are bridged.

    events: what happened, by the second: each is a vertical line with a name.
    """
    times = [time for _, points in lines for time, _ in points] or [0.0]
    begin, end = min(times), max(times)
    marks = [(begin + (end - begin) * step / _TICKS, f"{begin + (end - begin) * step / _TICKS:,.0f}")
             for step in range(_TICKS + 1)]  # fmt: skip
    return _chart(title, f"{unit}, over seconds", lines, marks, logarithmic, events)


def growth(title: str, unit: str, over: str, lines: Sequence[Line]) -> str:
    """Return a chart of costs that grow with a size, both on logarithmic scales: a straight line is a power.

    lines: the name of each, and pairs of size and cost. over: what the size is of.
    """
    sizes = sorted({size for _, points in lines for size, _ in points})
    marks = [(math.log(size), f"{size:,.0f}") for size in sizes]
    scaled = [(name, [(math.log(size), cost) for size, cost in points]) for name, points in lines]
    return _chart(title, f"{unit}, over {over}, both logarithmic", scaled, marks, True)


def _chart(
    title: str, axes: str, lines: Sequence[Line], marks: Sequence[tuple[float, str]], logarithmic: bool,
    events: Sequence[tuple[float, str]] = (),
) -> str:  # fmt: skip
    """Return a chart. marks: positions on the horizontal axis, with their texts. events: see `curves`."""
    lines = [(name, [point for point in points if point[1] > 0 or not logarithmic]) for name, points in lines]
    times = [at for at, _ in marks] or [0.0]
    values = [value for _, points in lines for _, value in points] or [1.0]
    low, high = (min(values), max(*values, min(values) * 1.01)) if logarithmic else (0.0, max(values) or 1.0)
    begin, width, end = min(times), WIDTH - _PLOT_LEFT - 20, max(times)

    def x(time: float) -> float:
        return round(_PLOT_LEFT + width * (time - begin) / ((end - begin) or 1), 1)

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return round(_PLOT_TOP + _PLOT_HEIGHT * (1 - share), 1)

    drawn = [
        f'<text x="8" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{WIDTH - 8}" y="22" text-anchor="end">{escape(axes)}</text>',
    ]
    for step in range(_TICKS + 1):
        share = step / _TICKS
        value = low * (high / low) ** share if logarithmic else high * share
        drawn += [
            f'<path d="M{_PLOT_LEFT} {y(value)}H{WIDTH - 20}" stroke="#e2e8f0"/>',
            f'<text x="{_PLOT_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:,.3g}</text>',
        ]
    drawn += [
        f'<text x="{x(at)}" y="{_PLOT_TOP + _PLOT_HEIGHT + 18}" text-anchor="middle">{text}</text>'
        for at, text in marks
    ]
    drawn += [line for at, name in events for line in _event(x(at), name)]
    drawn += _named_lines(
        [(name, " ".join(f"{x(at)},{y(value)}" for at, value in _thinned(points))) for name, points in lines]
    )
    height = _PLOT_TOP + _PLOT_HEIGHT + 30
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
    background = f'font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head + background, *drawn, "</svg>", ""])


def _event(x: float, name: str) -> list[str]:
    """Return the vertical line of what happened at a time, with its name along it."""
    text = f'font-size="8" fill="#718096" transform="rotate(-90 {x - 2} {_PLOT_TOP + 4})" text-anchor="end"'
    return [
        f'<path d="M{x} {_PLOT_TOP}v{_PLOT_HEIGHT}" stroke="#a0aec0" stroke-dasharray="2 3"/>',
        f'<text x="{x - 2}" y="{_PLOT_TOP + 4}" {text}>{escape(name)}</text>',
    ]


def _named_lines(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of a chart, given by their points, with their names above it."""
    left, letter = _PLOT_LEFT, 7
    if left + sum(36 + letter * len(name) for name, _ in lines) > WIDTH + 20:
        left, letter = 8, 6
    drawn = []
    for (name, path), colour in zip(lines, COLOURS, strict=False):
        drawn += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<rect x="{left}" y="36" width="12" height="4" fill="{colour}"/>',
            f'<text x="{left + 16}" y="43">{escape(name)}</text>',
        ]
        left += 36 + letter * len(name)
    return drawn


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most `_MOST_POINTS` points: of each stretch its highest, so that peaks stay."""
    stride = -(-len(points) // _MOST_POINTS) or 1
    return [max(points[at : at + stride], key=lambda point: point[1]) for at in range(0, len(points), stride)]


class Percentiles(NamedTuple):
    """A peer's line: for each percentile its value, and the ends of the value's interval, if it has one."""

    peer: str
    values: Sequence[tuple[float, float | None, float | None]]


_ROW_HEIGHT, _ROW_TOP = 170, 34
_SHIFT = 3.0  # pixels between the points of neighbouring peers, so that intervals can be told apart


def percentiles(title: str, unit: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[Percentiles]]]) -> str:
    """Return a chart for each row: percentiles from left to right, values upwards on a logarithmic scale.

    names: of the percentiles. Each peer has a line through its values, and a vertical one for each interval.
    """
    peers = list(dict.fromkeys(line.peer for _, lines in rows for line in lines))
    colours = dict(zip(peers, COLOURS * (1 + len(peers) // len(COLOURS)), strict=False))
    drawn, left = [f'<text x="8" y="22" font-size="15">{escape(title)}</text>'], 8
    for peer in peers:
        drawn += [
            f'<rect x="{left}" y="36" width="12" height="4" fill="{colours[peer]}"/>',
            f'<text x="{left + 16}" y="43">{escape(peer)}</text>',
        ]
        left += 36 + 7 * len(peer)
    for number, (name, lines) in enumerate(rows):
        top = _PLOT_TOP + number * (_ROW_HEIGHT + _ROW_TOP + 24)
        drawn += _percentile_row(name, unit, names, lines, top, colours)
    height = _PLOT_TOP + len(rows) * (_ROW_HEIGHT + _ROW_TOP + 24)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
    background = f'font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head + background, *drawn, "</svg>", ""])


def _percentile_row(
    name: str, unit: str, names: Sequence[str], lines: Sequence[Percentiles], top: int, colours: Mapping[str, str]
) -> list[str]:
    every = [end for line in lines for ends in line.values for end in ends if end] or [1.0]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    high += high == low
    step = (WIDTH - _PLOT_LEFT - 60) / max(len(names) - 1, 1)
    top += _ROW_TOP

    def y(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return round(top + _ROW_HEIGHT * (1 - share), 1)

    drawn = [f'<text x="8" y="{top - 12}" font-weight="bold">{escape(name)}</text>',
             f'<text x="{WIDTH - 8}" y="{top - 12}" text-anchor="end">{escape(unit)}</text>']  # fmt: skip
    for power in range(low, high + 1):
        drawn += [
            f'<path d="M{_PLOT_LEFT} {y(10.0**power)}H{WIDTH - 20}" stroke="#e2e8f0"/>',
            f'<text x="{_PLOT_LEFT - 6}" y="{y(10.0**power) + 4}" text-anchor="end">{10.0**power:,g}</text>',
        ]
    for at, percentile in enumerate(names):
        x = round(_PLOT_LEFT + 20 + at * step, 1)
        drawn.append(f'<text x="{x}" y="{top + _ROW_HEIGHT + 16}" text-anchor="middle">{escape(percentile)}</text>')
    for number, line in enumerate(lines):
        shift = (number - (len(lines) - 1) / 2) * _SHIFT
        points = [(round(_PLOT_LEFT + 20 + at * step + shift, 1), ends) for at, ends in enumerate(line.values)]
        path = " ".join(f"{x},{y(value)}" for x, (value, _, _) in points)
        colour = colours[line.peer]
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        drawn += [f'<circle cx="{x}" cy="{y(value)}" r="2.5" fill="{colour}"/>' for x, (value, _, _) in points]
        drawn += [
            f'<path d="M{x} {y(least)}V{y(most)}" stroke="{colour}" stroke-width="1.5"/>'
            for x, (_, least, most) in points
            if least and most
        ]
    return drawn
