"""Values as strings: all writers give the same rows, with valid UTF-8, whatever bytes a record has.

`pylogd load` writes lakes with Spark, and other formats in its tasks; a mirror writes all formats. Here, Spark's part
is a cast that does not look at the bytes, as in Spark; `tests/integration/spark/lake/test_texts.py` has Spark itself.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.lake.spark.reading import _valid
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.opening import open_table
from pylogd.lake.tables.records import RecordRows, as_text
from pylogd.services.mirror.table_load import Slice, TableLoader
from pylogd.services.mirror.target import Checkpoint
from pylogd.wire.records import NewRecord, encode_batch
from tests.tables import read_files
from tests.texts import TEXTS
from tests.unit.lake.tables.cases import DeltaCase, IcebergCase, records

LAYOUT = Layout("hour", "string")
VALUES = list(TEXTS)


def with_values(values: list[bytes | None]) -> pa.RecordBatch:
    batch = records(0, len(values))
    return batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))


def test_text_is_python_s() -> None:
    assert as_text(pa.array(VALUES, pa.binary())).to_pylist() == list(TEXTS.values())


@pytest.mark.parametrize("make", [DeltaCase, IcebergCase])
def test_tasks_of_the_loader(make: type[DeltaCase] | type[IcebergCase], tmp_path: Path) -> None:
    table = make(tmp_path).made(LAYOUT)
    writer = table.staging().writer()  # type: ignore[union-attr]
    writer.write(RecordRows(LAYOUT).convert(with_values(VALUES))[0])
    files = writer.close()
    (path,) = [path for path in tmp_path.rglob("*.parquet") if path.name == Path(files[0].path).name]
    found = pq.ParquetFile(path).read(["value"])
    found.validate(full=True)
    assert found.column("value").to_pylist()[: len(TEXTS)] == list(TEXTS.values())[: found.num_rows]


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
def test_a_mirror(kind: str, tmp_path: Path) -> None:
    name = {"parquet": f"{tmp_path}/lake", "iceberg": f"{tmp_path}/warehouse/demo.t", "delta": f"{tmp_path}/t"}[kind]
    worker = TableLoader(lambda: open_table(f"{kind}:{name}"), LAYOUT)
    worker.open()
    worker.begin(("t", 0), None, 0, bytes(15) + b"1")
    batch = encode_batch([NewRecord(None, value, 1_700_000_000_000, []) for value in VALUES], leader_epoch=1)
    worker.write([Slice(("t", 0), 0, [memoryview(batch)])])
    worker.commit({("t", 0): Checkpoint(bytes(15) + b"1", len(VALUES), 1, len(VALUES), 0)}, at_ms=1)
    table = open_table(f"{kind}:{name}")
    (found,) = read_files(table, table.files())
    found.validate(full=True)
    assert found.sort_by("offset").column("value").to_pylist() == list(TEXTS.values())


def test_rows_of_the_source_for_spark_s_writer() -> None:
    """Spark's cast keeps the bytes. Records that go to the quarantine keep theirs."""
    times = pa.array([None if at == 3 else at for at in range(len(VALUES))], pa.timestamp("us", "UTC"))
    found = _valid(pa.array(VALUES, pa.binary()), times).to_pylist()
    assert found[3] == VALUES[3]
    assert [None if each is None else each.decode() for at, each in enumerate(found) if at != 3] == [
        text for at, text in enumerate(TEXTS.values()) if at != 3
    ]


@given(st.lists(st.none() | st.binary(max_size=8) | st.text(max_size=4).map(str.encode)))
def test_any_bytes_are_the_same_text_in_all_writers(values: list[bytes | None]) -> None:
    array = pa.array(values, pa.binary())
    (rows, _), times = RecordRows(LAYOUT).convert(with_values(values)), pa.array(
        [0] * len(values), pa.timestamp("us", "UTC")
    )  # fmt: skip
    by_spark = _valid(array, times).view(pa.string())
    by_spark.validate(full=True)
    assert by_spark.to_pylist() == rows.column("value").to_pylist() == as_text(array).to_pylist()
