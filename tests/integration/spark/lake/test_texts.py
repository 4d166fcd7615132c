"""Values as strings: `pylogd load` and a mirror give the same rows in all formats, whatever bytes records have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pylogd.client import Admin, Producer
from pylogd.lake.spark.load import LoadPlan, load
from pylogd.lake.tables.interface import DataFile, Table
from pylogd.lake.tables.opening import open_table
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import START_MS, Command
from tests.mirrors import MirrorProcess, until, write_table_file
from tests.tables import path_of
from tests.texts import TEXTS

pytestmark = pytest.mark.timeout(600)
INVALID_MS = 1 << 60


def rows(table: Table, files: Sequence[DataFile], columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of files as DuckDB reads them, which refuses strings that are not UTF-8."""
    paths = [path_of(table, file).removeprefix("file:") for file in files]
    query = f'SELECT "offset", {columns} FROM read_parquet({paths!r}, hive_partitioning = false) ORDER BY "offset"'
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def test_all_writers_give_the_same_rows(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic, 1)
    with Admin(broker.address) as admin:
        admin.alter_configs("topic", topic, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    with Producer(broker.address, linger_ms=1000) as producer:
        for at, value in enumerate(TEXTS):
            headers = [("né", value), ("n", None)] if at % 2 else []
            producer.send(topic, value, key=value, headers=headers, timestamp=START_MS + at)
        producer.send(topic, b"\xff", key=None, timestamp=INVALID_MS)
    count = len(TEXTS) + 1
    found: dict[str, str] = {}
    for kind, name in (("parquet", "lake"), ("iceberg", "warehouse/demo.flights"), ("delta", "flights")):
        loaded, mirrored, here = (f"{kind}:{tmp_path}/{folder}/{name}" for folder in ("loaded", "mirrored", "here"))
        done = run("load", topic, "--table", loaded, "--value", "string")
        assert done.exit_code == 0, done.output
        assert load(None, open_table(here), LoadPlan(broker.address, ("subscribe", topic), value="string"))
        process = MirrorProcess(
            write_table_file(tmp_path, broker.address, mirrored, topic, 'value = "string"\n'), tmp_path / f"{kind}.log"
        )
        try:
            process.wait()
            until(lambda: sum(open_table(mirrored).position.offsets.values()) >= count, kind, process.log)  # noqa: B023
            assert process.stop() == 0, process.log()
        finally:
            process.kill()
        found |= {f"{kind} by load": loaded, f"{kind} by mirror": mirrored, f"{kind} by load without Spark": here}
    tables = {name: open_table(location) for name, location in found.items()}
    columns = "epoch_us(timestamp), timestampType, key, value, headers"
    answers = {name: rows(table, table.files(), columns) for name, table in tables.items()}
    expected = answers["parquet by mirror"]
    assert [(row[3], row[4]) for row in expected] == list(TEXTS.items())
    for name, answer in answers.items():
        assert answer == expected, name
    for name, table in tables.items():
        found_there = rows(table, table.quarantined(), "timestampMs, key, value, headers")
        assert found_there == [(len(TEXTS), INVALID_MS, None, b"\xff", None)], name
