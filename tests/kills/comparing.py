"""Compare a lake with the log: it has every offset of every partition once, with the same bytes in all columns.

Strategy: both are read without Spark, the log by the client's columns, the lake's Parquet files by pyarrow, and
compared by partition as Arrow tables. The files in the lake's directories have to be exactly those of its commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pylogd.client import Consumer
from pylogd.tables.parquet.lake import Lake

_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
_SHOWN = 5


class LakeFault(AssertionError):
    """The lake differs from the log."""


class LocalFiles:
    """`lake.Files` on a local directory, to read a lake without a JVM. Changes raise LakeFault."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, directory: str) -> list[str]:
        place = self._root / directory
        return sorted(path.name for path in place.iterdir()) if place.is_dir() else []

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def write(self, path: str, data: bytes) -> None:
        raise LakeFault(f"the last commit was not completed: {path} has yet to be written")

    def move(self, source: str, target: str) -> bool:
        raise LakeFault(f"the last commit was not completed: {source} has yet to be moved")

    def delete(self, path: str) -> None:
        raise LakeFault(f"the lake was not cleaned up: {path} has yet to be deleted")


def compare(address: str, topic: str, root: Path) -> int:
    """Compare lake and log. Return the number of records. Raises LakeFault on a difference."""
    files = _files(root, topic)
    with Consumer(address, auto_offset_reset="none", prefetch=False) as consumer:
        places = [(place[0], place[1]) for place in consumer.partitions(topic)]
        ends = {(place[0], place[1]): end for place, end in consumer.end_offsets(places).items()}
        recorded = Lake(LocalFiles(root)).offsets
        if recorded != ends:
            raise LakeFault(f"the commits end with {recorded}, the log with {ends}")
        count = 0
        for place in places:
            log = _log(consumer, place, ends[place])
            _same(place, log, _lake(files, place[1]))
            count += log.num_rows
    return count


def check_history(root: Path) -> int:
    """Check the commits of a log without gaps: each begins at the end of the one before and has all rows in between,
    and a compaction has as many rows as it replaces. Return the number of commits.
    """
    offsets: dict[tuple[str, str], int] = {}
    rows: dict[str, int] = {}
    number = 0
    for path in sorted((root / "_pylogd/commits").glob("*.json")):
        document = json.loads(path.read_bytes())
        number += 1
        if document["number"] != number:
            raise LakeFault(f"{path.name} is commit {document['number']}; expected {number}")
        read = {(t, p): n for t, each in document["read"].items() for p, n in each.items()}
        now = {(t, p): n for t, each in document["offsets"].items() for p, n in each.items()}
        for place, end in now.items():
            if end - offsets.get(place, 0) != read.get(place, 0):
                raise LakeFault(
                    f"commit {number}: {place} from {offsets.get(place, 0)} to {end}, {read.get(place)} read"
                )
        added = {each["path"]: each["rows"] for each in document["added"]}
        gone = sum(rows.pop(name) for name in document["removed"])
        if sum(added.values()) - gone != sum(read.values()):
            raise LakeFault(
                f"commit {number}: {sum(added.values())} rows for {sum(read.values())} offsets and {gone} old"
            )
        rows.update(added)
        offsets = now
    return number


def _files(root: Path, topic: str) -> list[Path]:
    """Return the data files in the topic's directories."""
    found = {path for path in root.rglob("*.parquet") if "_pylogd" not in path.parts}
    named = {root / path for path in Lake(LocalFiles(root)).files()}
    if found != named:
        raise LakeFault(f"not of any commit: {_some(found - named)}; missing files of commits: {_some(named - found)}")
    return sorted(path for path in found if path.is_relative_to(root / f"topic={topic}"))


def _log(consumer: Consumer, place: tuple[str, int], end: int) -> pa.Table:
    consumer.assign({place: 0})
    batches: list[pa.RecordBatch] = []
    while consumer.position(place) < end:
        batches += [columns for _, columns in consumer.poll_columns(1.0, headers=True)]
    return _plain(pa.Table.from_batches(batches).select(_COLUMNS))


def _lake(files: Iterable[Path], partition: int) -> pa.Table:
    tables = []
    for path in files:
        table = pq.read_table(path, partitioning=None)
        table = table.filter(pc.equal(table.column("partition"), partition))
        _check_directory(path, table)
        tables.append(_plain(table.select(_COLUMNS)))
    return pa.concat_tables(tables).sort_by("offset")


def _check_directory(path: Path, table: pa.Table) -> None:
    """Check that all time stamps of a file are of the hour in its path."""
    labels = dict(part.split("=", 1) for part in path.parts if "=" in part)
    hours = pc.strftime(table.column("timestamp").cast(pa.timestamp("ms", "UTC")), "%Y-%m-%d %H")
    for found in pc.unique(hours).to_pylist():
        if found != f"{labels['date']} {labels['hour']}":
            raise LakeFault(f"{path} has a record of {found}")


def _plain(table: pa.Table) -> pa.Table:
    """Convert a table to common column types, with null for an empty list of headers."""
    headers = table.column("headers").cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    filled = pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers)
    types = {"timestamp": pa.timestamp("ms", "UTC"), "timestampType": pa.int32(), "offset": pa.int64()}
    columns = [filled if name == "headers" else table.column(name) for name in _COLUMNS]
    return pa.table(
        [column.cast(types.get(name, column.type)) for name, column in zip(_COLUMNS, columns, strict=True)], _COLUMNS
    )


def _same(place: tuple[str, int], log: pa.Table, lake: pa.Table) -> None:
    if log.equals(lake):
        return
    wanted, found = log.column("offset"), lake.column("offset")
    lost = wanted.filter(pc.invert(pc.is_in(wanted, found)))
    extra = found.filter(pc.invert(pc.is_in(found, wanted)))
    counts = pc.value_counts(found)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(lost) or len(extra) or len(twice):
        raise LakeFault(
            f"{place}: {len(lost)} offsets are not in the lake ({_some(lost.to_pylist())}), {len(twice)} are there "
            f"more than once ({_some(twice.to_pylist())}), {len(extra)} are not in the log ({_some(extra.to_pylist())})"
        )
    for name in _COLUMNS:
        if not log.column(name).equals(lake.column(name)):
            at = next(at for at in range(log.num_rows) if log.column(name)[at] != lake.column(name)[at])
            raise LakeFault(
                f"{place} offset {wanted[at]}: {name} is {lake.column(name)[at]}, not {log.column(name)[at]}"
            )
    raise LakeFault(f"{place}: schemas differ: {log.schema} and {lake.schema}")


def _some(found: Iterable[Any]) -> str:
    return ", ".join(str(each) for each in sorted(found)[:_SHOWN]) or "none"
