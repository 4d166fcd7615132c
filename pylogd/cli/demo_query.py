"""The part of `pylogd demo` that asks the lake without Spark: a query by DuckDB, and a chart of its answer.

Must not know: brokers, Spark.
"""

# ruff: noqa: PLC0415 - DuckDB and matplotlib are imported when they are used
from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

Counts = dict[tuple[str, int], list[int]]  # carrier, hour -> flights, cancelled, minutes of delay of the others

_QUERY: Final = """\
SELECT event ->> '$.carrier' AS carrier, CAST(event ->> '$.hour' AS INT) AS hour, count(*) AS flights,
       count(*) FILTER (event ->> '$.dep_delay' IS NULL) AS cancelled,
       coalesce(sum(CAST(event ->> '$.dep_delay' AS INT)), 0) AS minutes_late
FROM (SELECT CAST(decode(value) AS JSON) AS event FROM read_parquet('{files}'))
GROUP BY ALL"""


def query(lake: Path, topic: str, say: Callable[[str], None]) -> Counts | None:
    """Count flights and delays in a lake's files, and show the query. Return None if DuckDB is not installed."""
    if importlib.util.find_spec("duckdb") is None:
        say("duckdb    not run: pip install duckdb")
        return None
    import duckdb

    text = _QUERY.format(files=f"{lake}/topic={topic}/*.parquet")
    began = time.monotonic()
    with duckdb.connect() as connection:
        rows = connection.execute(text).fetchall()
    say(f"duckdb    counted delays by carrier and hour in the lake ({time.monotonic() - began:.1f} s):")
    for line in text.splitlines():
        say(f"          {line}")
    return {(carrier, hour): list(counts) for carrier, hour, *counts in rows}


def draw(counts: Counts, picture: Path | None, say: Callable[[str], None]) -> None:
    """Draw the delays into a PNG or SVG file (by default a temporary file) if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        say("chart     not drawn: pip install 'pylogd-broker[plot]'")
        return
    picture = picture or _new_picture()
    _draw(counts, picture)
    say(f"chart     drawn: {picture}")


def _new_picture() -> Path:
    handle, path = tempfile.mkstemp(prefix="pylogd-demo-", suffix=".svg")
    os.close(handle)
    return Path(path)


def _draw(counts: Counts, picture: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    for axes, at, name in zip(both, (1, 0), ("scheduled hour", "carrier"), strict=True):
        late = _late(counts, at)
        axes.bar([str(each) for each in late], list(late.values()))
        axes.set_xlabel(name)
    both[0].set_ylabel("minutes late on average")
    figure.suptitle("Departures from New York's airports in 2013")
    figure.savefig(picture)
    plt.close(figure)


def _late(counts: Counts, at: int) -> Mapping[str | int, float]:
    """Return the average delay in minutes by one part of the key: 0 for the carrier, 1 for the hour."""
    sums: dict[Any, list[int]] = {}
    for key, (flights, cancelled, minutes) in counts.items():
        found = sums.setdefault(key[at], [0, 0])
        found[0] += flights - cancelled
        found[1] += minutes
    return {name: minutes / flew for name, (flew, minutes) in sorted(sums.items()) if flew}
