"""Present verdicts to people: a chart of windows by stage as SVG, and a page of HTML with the chart and all faults.

Strategy: each topic has a panel, with a strip for each stage and a bar for each window. A bar is as high as the number
of expected messages, and filled as far as they have arrived. Colours show verdicts; a cross marks incomplete windows
for readers who can't tell the colours.

Must not know: where the verdicts come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any, Final

from pylogd.services.audit.judging import Judgement, Verdict
from pylogd.services.audit.markers import window_name

COLOURS: Final[Mapping[Verdict, str]] = {
    Verdict.COMPLETE: "#2e8b57",
    Verdict.INCOMPLETE: "#c0392b",
    Verdict.UNKNOWN: "#d99a1c",
    Verdict.PENDING: "#7f8c9b",
    Verdict.OPEN: "#c9d1d9",
}
_WIDTH: Final = 960
_MARGIN: Final = 120
_STRIP: Final = 46
_BAR: Final = 34
_AXIS: Final = 30
_TITLE: Final = 26
#: The most windows of a chart, which shows the latest ones.
MOST_WINDOWS: Final = 1440


@dataclass(frozen=True, slots=True)
class Row:
    """The verdict on a window of a topic at a stage.

    revision: how often late data has changed the verdict.
    """

    stage: str
    topic: str
    start_ms: int
    judgement: Judgement
    revision: int = 0

    def as_document(self) -> dict[str, Any]:
        """Return the row as a document for JSON and for the terminal."""
        found = self.judgement
        return {
            "topic": self.topic,
            "window": f"{window_name(self.start_ms)}Z",
            "stage": self.stage,
            "reported": found.reported,
            "recovered": found.recovered,
            "received": found.received,
            "missing": found.missing,
            "lost": found.lost,
            "duplicates": found.duplicates,
            "unreported": found.unreported,
            "unstamped": found.unstamped,
            "pending": found.pending,
            "complete": f"{found.share:.2%}",
            "verdict": str(found.verdict),
            "revision": self.revision,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Row:
        """Return the row of a document of `as_document`, which leaves out servers and faults.

        Raises KeyError, TypeError or ValueError for another document.
        """
        received = int(document["received"])
        found = Judgement(
            Verdict(document["verdict"]),
            reported=int(document["reported"]),
            received=received,
            distinct=received - int(document["duplicates"]),
            missing=int(document["missing"]),
            lost=int(document["lost"]),
            unreported=int(document["unreported"]),
            pending=int(document["pending"]),
            recovered=int(document.get("recovered", 0)),  # services of earlier releases do not have this
            unstamped=int(document.get("unstamped", 0)),
        )
        start = datetime.fromisoformat(document["window"])
        return cls(document["stage"], document["topic"], round(start.timestamp() * 1000), found, document["revision"])


def sort_rows(rows: Iterable[Row], stages: Sequence[str]) -> list[Row]:
    """Return rows by topic, window, and stage in the order of `stages`."""
    order = {stage: at for at, stage in enumerate(stages)}
    return sorted(rows, key=lambda row: (row.topic, row.start_ms, order.get(row.stage, len(order)), row.stage))


def as_svg(rows: Sequence[Row], stages: Sequence[str], width_ms: int) -> str:
    """Return the chart.

    width_ms: the length of a window.
    """
    topics = sorted({row.topic for row in rows})
    panel = _TITLE + _STRIP * len(stages) + _AXIS
    height = max(panel * len(topics), _AXIS) + 24
    body = [text for at, topic in enumerate(topics) for text in _panel(rows, topic, stages, width_ms, at * panel)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            'aria-label="Verdicts of the audit, by window and stage" font-family="sans-serif" font-size="12">',
            *body,
            *_legend(height - 10),
            "</svg>",
        ]
    )


def _panel(rows: Sequence[Row], topic: str, stages: Sequence[str], width_ms: int, top: int) -> Iterator[str]:
    mine = [row for row in rows if row.topic == topic]
    last = max(row.start_ms for row in mine)
    first = max(min(row.start_ms for row in mine), last - (MOST_WINDOWS - 1) * width_ms)
    scale = (_WIDTH - _MARGIN - 10) / ((last - first) // width_ms + 1)
    most = max((_wanted(row.judgement) for row in mine), default=0) or 1
    yield f'<text x="4" y="{top + 16}" font-weight="bold" fill="currentColor">{escape(topic)}</text>'
    for at, stage in enumerate(stages):
        base = top + _TITLE + _STRIP * (at + 1) - 4
        yield f'<text x="4" y="{base - 10}" fill="currentColor">{escape(stage)}</text>'
        yield f'<line x1="{_MARGIN}" x2="{_WIDTH - 10}" y1="{base}" y2="{base}" stroke="#999"/>'
        for row in mine:
            if row.stage == stage and row.start_ms >= first:
                x = _MARGIN + (row.start_ms - first) // width_ms * scale
                yield from _bar(row, x, max(scale - 1, 0.5), base, most)
    y = top + _TITLE + _STRIP * len(stages) + 14
    for moment, anchor, x in ((first, "start", _MARGIN), (last, "end", _WIDTH - 10)):
        yield f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{window_name(moment)}Z</text>'


def _bar(row: Row, x: float, width: float, base: int, most: int) -> Iterator[str]:
    found = row.judgement
    colour = COLOURS[found.verdict]
    height = max(_BAR * _wanted(found) / most, 2.0)
    filled = max(height * found.share, 1.0)
    title = ", ".join(f"{name} {value}" for name, value in row.as_document().items() if value)
    yield f"<g><title>{escape(title)}</title>"
    yield _rectangle(x, base - height, width, height, colour, 0.25)
    yield _rectangle(x, base - filled, width, filled, colour, 1)
    if found.verdict is Verdict.INCOMPLETE:
        middle, above = f"{x + width / 2:.1f}", f"{base - height - 1:.1f}"
        yield f'<text x="{middle}" y="{above}" text-anchor="middle" fill="{colour}">&#215;</text>'
    yield "</g>"


def _rectangle(x: float, y: float, width: float, height: float, colour: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" '
        f'fill-opacity="{opacity:g}"/>'
    )


def _legend(y: int) -> Iterator[str]:
    x = _MARGIN
    for verdict in (Verdict.COMPLETE, Verdict.INCOMPLETE, Verdict.UNKNOWN, Verdict.PENDING):
        yield _rectangle(x, y - 9, 10, 10, COLOURS[verdict], 1)
        yield f'<text x="{x + 14}" y="{y}" fill="currentColor">{verdict}</text>'
        x += 110


def _wanted(found: Judgement) -> int:
    return found.distinct + found.missing + found.lost + found.pending


_STYLE: Final = """
body { font: 15px/1.5 sans-serif; margin: 2em auto; max-width: 1000px; padding: 0 1em }
body { color: #1d2733; background: #fff }
table { border-collapse: collapse; width: 100% } th, td { text-align: right; padding: .2em .6em }
th { border-bottom: 1px solid #999 } .text { text-align: left } .verdict { font-weight: bold }
@media (prefers-color-scheme: dark) { body { color: #dde3ea; background: #14191f } }
"""
_COLUMNS: Final = (
    "topic", "window", "stage", "reported", "recovered", "received", "missing", "lost", "duplicates", "unreported",
    "unstamped", "pending", "complete", "verdict", "revision",
)  # fmt: skip


def as_html(rows: Sequence[Row], stages: Sequence[str], width_ms: int, *, title: str = "Audit") -> str:
    """Return a page that needs no other file: a summary, the chart, and every window that is not complete."""
    troubles = [row for row in rows if row.judgement.verdict is not Verdict.COMPLETE]
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        "<h2>By stage</h2>",
        *_table(("topic", "stage", *(str(verdict) for verdict in COLOURS)), _summary(rows, stages)),
        "<h2>Windows</h2>",
        as_svg(rows, stages, width_ms) if rows else "<p>No window has ended yet.</p>",
        f"<h2>Not complete ({len(troubles)})</h2>",
        *_table((*_COLUMNS, "messages"), (_trouble(row) for row in reversed(troubles))),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _summary(rows: Sequence[Row], stages: Sequence[str]) -> Iterator[list[Any]]:
    for topic in sorted({row.topic for row in rows}):
        for stage in stages:
            found = [row.judgement.verdict for row in rows if row.topic == topic and row.stage == stage]
            yield [topic, stage, *(found.count(verdict) for verdict in COLOURS)]


def _trouble(row: Row) -> list[Any]:
    faults = "; ".join(
        f"{fault.kind}: {fault.server}/{fault.producer} {fault.first} to {fault.last}" for fault in row.judgement.faults
    )
    document = row.as_document()
    return [*(document[column] for column in _COLUMNS), faults]


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    text = {"topic", "stage", "window", "verdict", "messages"}
    kinds = ["text" if column in text else "number" for column in columns]
    yield "<table><thead><tr>"
    yield "".join(f'<th class="{kind}">{column}</th>' for kind, column in zip(kinds, columns, strict=True))
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = zip(kinds, row, strict=True)
        yield "<tr>" + "".join(f'<td class="{kind}">{escape(str(each))}</td>' for kind, each in cells) + "</tr>"
    yield "</tbody></table>"
