"""Compare a lake with the log, and a log with its copy on another cluster, row by row.

A lake has every offset of every partition once, with the same bytes in all columns. Each partition of a copy has the
same rows in the same order; its offsets may have gaps.

Strategy: all are read without Spark, logs by the client's columns, the lake's Parquet files by pyarrow, and compared by
partition as Arrow tables. The files in the lake's directories have to be exactly those of its commits.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pylogd.client import Consumer, TopicPartition
from pylogd.lake.tables.parquet.files import COMMITS, Files
from pylogd.lake.tables.parquet.lake import Lake
from tests.kills.lakes import RoundLake
from tests.kills.writer import PARTITIONS, SET, START_MS, STEP_MS

Isolation = Literal["uncommitted", "committed"]
_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
_SHOWN = 5


class LakeFault(AssertionError):
    """The lake differs from the log."""


class FinishedLake:
    """The files of a lake in which nothing is left to be completed or deleted. Changes raise LakeFault."""

    def __init__(self, files: Files) -> None:
        self.threads = files.threads
        self.names, self.read, self.exists = files.names, files.read, files.exists

    def create(self, path: str, data: bytes) -> bool:
        raise LakeFault(f"the last commit was not completed: {path} has yet to be written")

    def move(self, source: str, target: str) -> bool:
        raise LakeFault(f"the last commit was not completed: {source} has yet to be moved")

    def delete(self, path: str) -> None:
        raise LakeFault(f"the lake was not cleaned up: {path} has yet to be deleted")


def compare(address: str, topic: str, lake: RoundLake, isolation: Isolation = "uncommitted") -> int:
    """Compare lake and log. Return the number of records. Raises LakeFault on a difference.

    isolation: which records of the log the lake has to have.
    """
    paths = _paths(lake, topic)
    with Consumer(address, auto_offset_reset="none", prefetch=False, isolation=isolation) as consumer:
        places = [(place[0], place[1]) for place in consumer.partitions(topic)]
        ends = {(place[0], place[1]): end for place, end in consumer.end_offsets(places).items()}
        recorded = Lake(FinishedLake(lake.files)).offsets
        if recorded != ends:
            raise LakeFault(f"the commits end with {recorded}, the log with {ends}")
        count = 0
        for place in places:
            log = read_log(consumer, place, ends[place])
            _same(place, log, _lake(lake.files, paths, place[1]))
            count += log.num_rows
    return count


def compare_copy(source: str, target: str, topic: str, messages: int) -> int:
    """Compare the log that a `Writer` has written with its copy. Return the number of rows. Raises LakeFault.

    source, target: addresses of the clusters. messages: how many the writer was to write.
    """
    count = 0
    with reader_of(source) as original, reader_of(target) as copy:
        for partition in range(PARTITIONS):
            place = TopicPartition(topic, partition)
            log = read_log(original, place, original.end_offsets([place])[place])
            _check_sent(place, log, messages)
            check_same_rows(place, log, read_log(copy, place, copy.end_offsets([place])[place]))
            count += log.num_rows
    return count


def reader_of(address: str) -> Consumer:
    """Return a consumer of committed records for `read_log`."""
    return Consumer(address, auto_offset_reset="none", prefetch=False, isolation="committed")


def _check_sent(place: tuple[str, int], log: pa.Table, messages: int) -> None:
    """Check that a partition has its share of a writer's messages once and in order; time stamps have their numbers."""
    numbers = np.arange(messages)
    wanted = START_MS + STEP_MS * numbers[numbers // SET % PARTITIONS == place[1]]
    found = log.column("timestamp").cast(pa.int64()).to_numpy()
    if not np.array_equal(found, wanted):
        same = min(len(found), len(wanted))
        at = next((int(at) for at in np.flatnonzero(found[:same] != wanted[:same])), same)
        raise LakeFault(
            f"{place}: {len(wanted)} messages were sent, {len(found)} are there; row {at} is the first wrong"
        )


def check_same_rows(place: tuple[str, int], log: pa.Table, copy: pa.Table) -> None:
    """Check that a copy has the rows of the log, in order."""
    log, copy = log.drop_columns(["offset"]), copy.drop_columns(["offset"])
    if log.equals(copy):
        return
    same = min(log.num_rows, copy.num_rows)
    at = next((at for at in range(same) if log.slice(at, 1).to_pylist() != copy.slice(at, 1).to_pylist()), same)
    rows = [each.slice(at, 1).to_pylist() for each in (log, copy)]
    raise LakeFault(
        f"{place}: {log.num_rows} rows and {copy.num_rows} in the copy; row {at} is {rows[0]} and {rows[1]}"
    )


def check_history(lake: RoundLake, *, gaps: bool = False) -> int:
    """Check the commits: each begins at the end of the one before and has all rows in between, and a compaction has as
    many rows as it replaces. Return the number of commits.

    gaps: whether the log may have offsets without a row, as those of aborted transactions and of markers.
    """
    offsets: dict[tuple[str, str], int] = {}
    rows: dict[str, int] = {}
    number = 0
    for name in lake.files.names(COMMITS):
        if not name.endswith(".json"):
            continue
        document = json.loads(lake.files.read(f"{COMMITS}/{name}"))
        number += 1
        if document["number"] != number:
            raise LakeFault(f"{name} is commit {document['number']}; expected {number}")
        read = {(t, p): n for t, each in document["read"].items() for p, n in each.items()}
        now = {(t, p): n for t, each in document["offsets"].items() for p, n in each.items()}
        for place, end in now.items():
            if end - offsets.get(place, 0) != read.get(place, 0):
                raise LakeFault(
                    f"commit {number}: {place} from {offsets.get(place, 0)} to {end}, {read.get(place)} read"
                )
        added = {each["path"]: each["rows"] for each in document["added"]}
        gone = sum(rows.pop(name) for name in document["removed"])
        more = sum(added.values()) - gone
        if more > sum(read.values()) if gaps and read else more != sum(read.values()):
            raise LakeFault(
                f"commit {number}: {sum(added.values())} rows for {sum(read.values())} offsets and {gone} old"
            )
        rows.update(added)
        offsets = now
    return number


def _paths(lake: RoundLake, topic: str) -> list[str]:
    """Return the data files in the topic's directories."""
    found, named = lake.data(), set(Lake(FinishedLake(lake.files)).files())
    if found != named if lake.exact else not named <= found:
        raise LakeFault(f"not of any commit: {_some(found - named)}; missing files of commits: {_some(named - found)}")
    return sorted(path for path in named if path.startswith(f"topic={topic}/"))


def read_log(consumer: Consumer, place: tuple[str, int], end: int) -> pa.Table:
    """Return the records of a partition up to an offset, with common column types. There has to be one."""
    consumer.assign({place: 0})
    batches: list[pa.RecordBatch] = []
    while consumer.position(place) < end:
        batches += [columns for _, columns in consumer.poll_columns(1.0, headers=True)]
    return _plain(pa.Table.from_batches(batches).select(_COLUMNS))


def _lake(files: Files, paths: Iterable[str], partition: int) -> pa.Table:
    tables = []
    for path in paths:
        table = pq.read_table(io.BytesIO(files.read(path)), partitioning=None)
        table = table.filter(pc.equal(table.column("partition"), partition))
        _check_directory(path, table)
        tables.append(_plain(table.select(_COLUMNS)))
    return pa.concat_tables(tables).sort_by("offset")


def _check_directory(path: str, table: pa.Table) -> None:
    """Check that all time stamps of a file are of the hour in its path."""
    labels = dict(part.split("=", 1) for part in path.split("/") if "=" in part)
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
