"""A table that a route of a mirror and `pylogd load` fill in turns: the position of one is that of the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylogd.lake.tables.opening import open_table
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import Command, documents, fill
from tests.mirrors import MirrorProcess, until, write_table_file

pytestmark = pytest.mark.timeout(600)


def mirrored(folder: Path, bootstrap: str, topic: str, table: str, offsets: int) -> None:
    """Run a mirror until the table has so many offsets."""
    process = MirrorProcess(write_table_file(folder, bootstrap, table, topic), folder / "mirror.log")
    try:
        process.wait()
        until(lambda: sum(open_table(table).position.offsets.values()) >= offsets, f"{offsets} offsets", process.log)
        assert process.stop() == 0, process.log()
    finally:
        process.kill()


def rows(spark: Any, table: str) -> list[tuple[Any, ...]]:
    """The rows as Spark reads them, sorted."""
    files = [file.path for file in open_table(table).files()]
    lake = spark.read.option("basePath", table.removeprefix("parquet:")).parquet(*files)
    columns = lake.select("partition", "offset", "timestampType", "key", "value", "headers", "date", "hour").collect()
    return sorted((tuple(row) for row in columns), key=lambda row: row[:2])


def test_a_route_and_the_loader_take_turns_at_a_lake(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    table = f"parquet:{tmp_path}/lake"
    fill(broker.address, topic, range(100))
    mirrored(tmp_path, broker.address, topic, table, 100)
    fill(broker.address, topic, range(100, 150))
    (loaded,) = documents(run("load", topic, "--table", table, "--json"))
    assert (loaded["rows"], loaded["offsets"]) == (50, 50)
    fill(broker.address, topic, range(150, 180))
    mirrored(tmp_path, broker.address, topic, table, 180)
    assert "nothing to do" in run("load", topic, "--table", table).stderr
    before = rows(spark, table)
    assert len(before) == 180 and len({row[:2] for row in before}) == 180
    files = len(open_table(table).files())
    assert run("load", "--table", table, "--compact").exit_code == 0
    assert len(open_table(table).files()) < files and rows(spark, table) == before
