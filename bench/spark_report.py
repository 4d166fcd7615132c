"""Write bench/SPARK.md from the results of `bench.spark`."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.spark_batches import PER_BATCH, UNIX, median

TARGET_RATE, TARGET_RATIO, TARGET_LOAD, TARGET_MEGABYTES = 1_500_000, 0.8, 400_000, 500
_QUERIES = {
    "count": ("To a count", f"Targets: {TARGET_RATE:,} rows/s, {TARGET_RATIO} of Spark's own."),
    "lengths": ("To the sum of the values' lengths", "So that every value is looked at; no target."),
    "compressed": ("The same, of a topic compressed with zstd", "No target."),
    "sink": ("Into a topic", "Target: more than Spark's own."),
}
_NAMES = {
    "pylogd": "pylogd",
    "kafka": "Spark's own Kafka source",
    "kafka tuned": "Spark's own, fetches of 4 MiB, `max.poll.records` 20,000",
}
_SINKS = {"pylogd": "pylogd", "kafka": "Spark's own Kafka sink"}
_BATCH_SOURCES = {
    "pylogd": "pylogd, a task for each partition",
    "pylogd grouped": f"pylogd, two tasks (`minRecordsPerTask` {PER_BATCH // 2:,})",
    "kafka": "Spark's own Kafka source",
}
_SESSIONS = {"tcp": "TCP, Spark's default", "unix": f"Unix sockets, `{UNIX}=true`"}
_SPARK = ("jvm", "python")
_HEAD = "| source | median, rows/s | best | slowest | CPU s for 1 M rows: broker | JVM | Python |"
_LINE = "| --- | --: | --: | --: | --: | --: | --: |"


def report(found: Mapping[str, Any]) -> str:
    """Return the text of the page, without the measures that have no results."""
    lines = [
        "# Spark over pylogd",
        "",
        "Written by `make bench-spark` (`python -m bench spark`): messages of 200 bytes in 2 partitions of one broker, "
        f"Spark on `local[2]` in a warm session, both on one machine of {os.cpu_count()} cores.",
        *_headline(found),
    ]
    for name, (title, targets) in _QUERIES.items():
        if name in found:
            lines += ["", f"## {title}", "", *_sources(found[name], _SINKS if name == "sink" else _NAMES)]
            lines += ["", targets, *_ratios(found[name])]
    if "batches" in found:
        lines += ["", "## Small micro-batches", "", *_batches(found["batches"])]
    if "load" in found:
        lines += ["", "## Into a lake of Parquet files, zstd", "", *_load(found["load"])]
    if "memory" in found:
        lines += ["", "## Memory of Spark's Python processes", "", *_memory(found["memory"])]
    return "\n".join(lines) + "\n"


def _headline(found: Mapping[str, Any]) -> list[str]:
    """Return the processor time of Spark for each query, beside that of Spark's own sources."""
    rows = []
    for name, (title, _) in _QUERIES.items():
        if "kafka" not in found.get(name, {}):
            continue
        ours = _spent(found[name]["pylogd"])
        cells = [title, f"{statistics.median(ours):.2f}"]
        for other in ("kafka", "kafka tuned"):
            if other in found[name]:
                theirs = _spent(found[name][other])
                cells += [f"{statistics.median(theirs):.2f}", _interval(theirs, ours)]
            else:
                cells += ["", ""]
        rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return []
    return [
        "",
        "## Processor time: seconds of a core for a million rows",
        "",
        "What Spark's JVM and its Python processes use together. The ratio says how many times as much Spark's own "
        "uses: the median of the turns, with the least and the greatest.",
        "",
        "| | pylogd | Spark's own | ratio | tuned | ratio |",
        "| --- | --: | --: | --: | --: | --: |",
        *rows,
    ]


def _spent(rounds: Mapping[str, Any]) -> list[float]:
    return [sum(turn[kind] for kind in _SPARK) for turn in rounds["cpu"]]


def _interval(these: Sequence[float], those: Sequence[float]) -> str:
    """Return the ratio of two series, turn by turn: its median, least and greatest."""
    turns = [this / that for this, that in zip(these, those, strict=True)]
    return f"{statistics.median(turns):.2f} ({min(turns):.2f} to {max(turns):.2f})"


def _sources(measure: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    rows = [_row(title, measure[name]) for name, title in names.items() if name in measure]
    return [f"{measure['rows']:,} rows, {len(measure['pylogd']['rates'])} rounds by turns.", "", _HEAD, _LINE, *rows]


def _row(title: str, rounds: Mapping[str, Any]) -> str:
    rates = rounds["rates"]
    cpu = (f"{statistics.median(each[kind] for each in rounds['cpu']):.2f}" for kind in ("broker", *_SPARK))
    cells = (f"{statistics.median(rates):,.0f}", f"{max(rates):,}", f"{min(rates):,}", *cpu)
    return f"| {title} | {' | '.join(cells)} |"


def _ratios(measure: Mapping[str, Any]) -> list[str]:
    if "kafka" not in measure:
        return ["Spark's own source was not to be had."]
    ours = measure["pylogd"]["rates"]
    named = {"kafka": "Spark's own", "kafka tuned": "the tuned one"}
    texts = [f"{_interval(ours, measure[name]['rates'])} of {text}" for name, text in named.items() if name in measure]
    return [f"Rows per second, pylogd's by the other's, turn by turn: {', '.join(texts)}."]


def _batches(measure: Mapping[str, Any]) -> list[str]:
    lines = [
        f"A stream reads {measure['partitions']} partitions in micro-batches of {measure['rows']:,} records, each as "
        "soon as the last one has ended, and writes to nowhere. Milliseconds from planning to the commit of the "
        "offsets, as Spark reports them; processor time in milliseconds for a micro-batch.",
        "",
        "| the JVM and its Python workers talk over | source | median, ms | 95th percentile | CPU: JVM | Python "
        "| pylogd by Spark's own |",
        "| --- | --- | --: | --: | --: | --: | --: |",
    ]
    for kind, title in _SESSIONS.items():
        for name, rounds in measure.get(kind, {}).items():
            every = [ms for each in rounds for ms in each["ms"]]
            cpu = [f"{statistics.median(each['cpu_ms'][of] for each in rounds):.0f}" for of in _SPARK]
            medians = [statistics.median(each["ms"]) for each in rounds]
            other = measure[kind].get("kafka") if name != "kafka" else None
            ratio = _interval(medians, [statistics.median(each["ms"]) for each in other]) if other else ""
            cells = (
                title,
                _BATCH_SOURCES[name],
                f"{median(rounds):.0f}",
                f"{statistics.quantiles(every, n=20)[-1]:.0f}",
                *cpu,
                ratio,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "Target: less than Spark's own."]


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
