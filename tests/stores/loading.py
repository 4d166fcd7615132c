"""Load a topic into a lake on a file system with Spark, and compact it meanwhile; then compare lake and log."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pylogd.base.clock import wall_ms
from pylogd.client import Admin, NewTopic
from pylogd.lake.spark.load import LoadPlan, compact, follow, load
from pylogd.lake.spark.opening import open_table
from pylogd.lake.tables.interface import Committed
from pylogd.lake.tables.parquet.table import LakeTable
from pylogd.local.broker import BrokerProcess
from tests.integration.spark.lake.lakes import Row, fill, log_of
from tests.sparks import running_spark
from tests.stores.filesystems import FileSystem

_SET = 200
#: What a load and a compaction set for their own session each; here they share one.
_SESSION = {
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded: rows, and commits by kind."""

    rows: int
    loads: int
    compactions: int
    replaced: int


def load_with_spark(place: FileSystem, messages: int) -> Loaded:
    """Write messages to a topic while they are loaded and the lake is compacted. Raises AssertionError."""
    with tempfile.TemporaryDirectory(prefix="pylogd-stores-") as name:
        folder = Path(name)
        broker = BrokerProcess(folder / "broker", folder / "broker.log")
        try:
            with Admin(broker.address) as admin:
                admin.create_topics([NewTopic("events", 2, 1, {"retention.ms": "-1"})])
            with running_spark(folder / "spark", {**_SESSION, **place.settings}) as spark:
                return _run(spark, f"{place.root}-spark", broker.address, messages)
        finally:
            broker.stop()


def _run(spark: Any, root: str, address: str, messages: int) -> Loaded:
    plan = LoadPlan(address, ("subscribe", "events"))
    stop, failures = threading.Event(), []
    commits: list[Committed] = []

    def keep_loading() -> None:
        try:
            follow(spark, open_table(spark, root), plan, seconds=0.2, on_commit=commits.append, wait=stop.wait)
        except BaseException as error:  # it is raised below
            failures.append(error)

    fill(address, "events", range(_SET))
    load(spark, open_table(spark, root), plan)
    loader = threading.Thread(target=keep_loading)
    loader.start()
    try:
        for begin in range(_SET, messages, _SET):
            fill(address, "events", range(begin, min(begin + _SET, messages)))
            compact(spark, open_table(spark, root))
    finally:
        stop.set()
        loader.join()
    if failures:
        raise failures[0]
    load(spark, open_table(spark, root), plan)
    return _compare(spark, root, address)


def _compare(spark: Any, root: str, address: str) -> Loaded:
    table = open_table(spark, root)
    assert isinstance(table, LakeTable)
    history = list(table.history())
    for commit in (history[0], history[len(history) // 2]):
        count = sum(sum(each.read.read.values()) for each in history if each.number <= commit.number)
        assert len(_rows(spark, table, commit.number)) == count, f"rows as of commit {commit.number}"
    log = log_of(address, "events")
    assert _rows(spark, table, None) == log, "lake and log differ"
    table.expire(older_than_ms=wall_ms(), keep=1)
    assert _rows(spark, open_table(spark, root), None) == log, "lake and log differ after the expiry"
    loads = sum(each.kind == "load" for each in history)
    return Loaded(len(log), loads, len(history) - loads, sum(each.replaced for each in history))


def _rows(spark: Any, table: Any, number: int | None) -> list[Row]:
    paths = [file.path for file in table.files(number)]
    rows = spark.read.parquet(*paths).selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp)")
    found = [Row(*each) for each in rows.collect()]
    return sorted(
        (row._replace(key=_bytes(row.key), value=_bytes(row.value)) for row in found), key=lambda row: row[:2]
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
