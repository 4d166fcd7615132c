"""Real messages for rows about compression: the flights that `pylogd demo` publishes, as JSON."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from bench.compiling import PROGRAMS
from pylogd.cli.demo_events import flights

#: How many flights are sent, again and again, and the average size of one, about.
FLIGHTS = 50_000
SIZE = 300


def flights_file(folder: Path = PROGRAMS) -> Path:
    """Return a file with a flight in each line; the first call writes it."""
    path = folder / "flights.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(b"".join(event.value + b"\n" for event in islice(flights(), FLIGHTS)))
        partial.replace(path)
    return path
