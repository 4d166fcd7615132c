"""Render the pages' templates, with filters for numbers, sizes and times.

Strategy: Jinja with autoescape, so that data of a cluster is text and never markup. Templates are compiled when they
are first used; an unknown name in a template is an error, not an empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_UNKNOWN: Final = Markup('<span class="unknown" title="not known">?</span>')
_WIDTH, _HEIGHT = 120, 28
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_THOUSANDS: Final = ("", "k", "M", "G")


def size(value: float | None) -> str:
    """Return bytes with a binary unit."""
    if value is None or value < 0:
        return _UNKNOWN
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def number(value: float | None) -> str:
    """Return an integer with thousands separators."""
    return _UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a number per second in a short form."""
    if value is None:
        return _UNKNOWN
    for unit in _THOUSANDS:
        if value < 1000 or unit == _THOUSANDS[-1]:
            return f"{value:.0f}{unit}/s" if value >= 10 or value == 0 else f"{value:.1f}{unit}/s"
        value /= 1000
    raise AssertionError


def duration(value: float | None) -> str:
    """Return seconds in a form for users."""
    if value is None:
        return _UNKNOWN
    if value < 1:
        return "0 s" if value == 0 else "< 1 s"
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172_800 else f"{value / 86_400:.1f} d"


def when(value: int | None) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601 in UTC."""
    if value is None or value < 0:
        return _UNKNOWN
    try:
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return str(value)


def known(value: Any) -> Any:
    """Return a value, or the sign for an unknown value."""
    return _UNKNOWN if value is None else value


def sparkline(values: Iterable[float], label: str) -> Markup:
    """Return a small chart as SVG.

    label: a description for users who can't see it.
    """
    points = [float(value) for value in values]
    if len(points) < 2:
        return Markup('<span class="unknown">…</span>')
    highest = max(points) or 1.0
    step = _WIDTH / (len(points) - 1)
    line = " ".join(f"{at * step:.1f},{_HEIGHT - 1 - (_HEIGHT - 2) * value / highest:.1f}"
                    for at, value in enumerate(points))  # fmt: skip
    template = Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<polyline points="{line}"/></svg>'
    )
    return template.format(w=_WIDTH, h=_HEIGHT, label=label, line=line)


def path(*parts: object) -> str:
    """Return a path of these parts, each quoted."""
    return "".join("/" + quote(str(part), safe="") for part in parts)


def query(**values: object) -> str:
    """Return the query of a link, without empty values."""
    given = {name: value for name, value in values.items() if value not in (None, "", False)}
    return "?" + urlencode(given) if given else "?"


class Renderer:
    """The templates of the package."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("pylogd.services.console"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        filters: Sequence[Any] = (size, number, rate, duration, when, known)
        self._environment.filters.update({each.__name__: each for each in filters})
        self._environment.globals.update(path=path, query=query, sparkline=sparkline)

    def render(self, template: str, values: dict[str, Any]) -> bytes:
        """Return a page."""
        return self._environment.get_template(template).render(values).encode()
