"""Write bench/SPARK.md from the results of `bench.spark`."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from typing import Any

TARGET_RATE, TARGET_RATIO, TARGET_LOAD, TARGET_MEGABYTES = 1_500_000, 0.8, 400_000, 500
_QUERIES = {
    "count": ("To a count", f"Targets: {TARGET_RATE:,} rows/s, {TARGET_RATIO} of Spark's own."),
    "lengths": ("To the sum of the values' lengths", "So that every value is looked at; no target."),
}
_NAMES = {"pylogd": "pylogd", "kafka": "Spark's own Kafka source"}
_HEAD = "| source | median, rows/s | best | slowest | CPU s for 1 M rows: broker | JVM | Python |"
_LINE = "| --- | --: | --: | --: | --: | --: | --: |"


def report(found: Mapping[str, Any]) -> str:
    """Return the text of the page, without the measures that have no results."""
    lines = [
        "# Spark over pylogd",
        "",
        "Written by `make bench-spark` (`python -m bench.spark`): messages of 200 bytes in 2 partitions of one broker, "
        f"Spark on `local[2]` in a warm session, both on one machine of {os.cpu_count()} cores.",
    ]
    for name, (title, targets) in _QUERIES.items():
        if name in found:
            lines += ["", f"## {title}", "", *_sources(found[name]), "", f"{targets} {_ratio(found[name])}"]
    if "load" in found:
        lines += ["", "## Into a lake of Parquet files, zstd", "", *_load(found["load"])]
    if "memory" in found:
        lines += ["", "## Memory of Spark's Python processes", "", *_memory(found["memory"])]
    return "\n".join(lines) + "\n"


def _sources(measure: Mapping[str, Any]) -> list[str]:
    rows = [_row(title, measure[name]) for name, title in _NAMES.items() if name in measure]
    return [f"{measure['rows']:,} rows, {len(measure['pylogd']['rates'])} rounds by turns.", "", _HEAD, _LINE, *rows]


def _row(title: str, rounds: Mapping[str, Any]) -> str:
    rates = rounds["rates"]
    cpu = (f"{statistics.median(each[kind] for each in rounds['cpu']):.2f}" for kind in ("broker", "jvm", "python"))
    cells = (f"{statistics.median(rates):,.0f}", f"{max(rates):,}", f"{min(rates):,}", *cpu)
    return f"| {title} | {' | '.join(cells)} |"


def _ratio(measure: Mapping[str, Any]) -> str:
    if "kafka" not in measure:
        return "Spark's own source was not to be had."
    turns = [ours / theirs for ours, theirs in zip(measure["pylogd"]["rates"], measure["kafka"]["rates"], strict=True)]
    return (
        f"pylogd by Spark's own, turn by turn: median {statistics.median(turns):.2f}, from {min(turns):.2f} to "
        f"{max(turns):.2f}."
    )


def _load(measure: Mapping[str, Any]) -> list[str]:
    return [
        f"{measure['rows']:,} events in JSON over 6 hours, `pylogd load`'s own path from a new lake to its commit; "
        f"{measure['parquet_bytes'] / measure['rows']:.0f} bytes a row in the files.",
        "",
        _HEAD,
        _LINE,
        _row("pylogd", measure["pylogd"]),
        "",
        f"Target: {TARGET_LOAD:,} rows/s.",
    ]


def _memory(measure: Mapping[str, Any]) -> list[str]:
    return [
        f"One task counts {measure['megabytes']:,} MB of values of 1,000 bytes in one partition. The highest resident "
        "size of any Python process of Spark's meanwhile:",
        "",
        "| backlog | MB |",
        "| --- | --: |",
        f"| not compressed | {measure['plain'] / 1e6:,.0f} |",
        f"| zeros, compressed by zstd to a few MB | {measure['squeezed'] / 1e6:,.0f} |",
        "",
        f"Target: less than {TARGET_MEGABYTES} MB whatever the backlog.",
    ]
