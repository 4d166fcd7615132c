"""Tables that other programs have changed: columns of both formats, and the features of Iceberg."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from pylogd.lake.tables.checks import UnsupportedFeature
from pylogd.lake.tables.delta import features as delta
from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.iceberg import features as iceberg
from pylogd.lake.tables.position import LoadRange
from tests.unit.lake.tables.cases import Case, DeltaCase, IcebergCase, records
from tests.unit.lake.tables.changed import T0, change_schema, field, loads, refuses

ROOT = Path(__file__).parents[4]


@pytest.fixture
def delta_case(tmp_path: Path) -> DeltaCase:
    case = DeltaCase(tmp_path)
    case.load(case.made(), 3, invalid=[1])
    return case


@pytest.fixture
def iceberg_case(tmp_path: Path) -> IcebergCase:
    case = IcebergCase(tmp_path)
    case.load(case.made(), 3, invalid=[1])
    return case


@pytest.fixture(params=["delta", "iceberg"])
def case(request: pytest.FixtureRequest) -> Case:
    return request.getfixturevalue(f"{request.param}_case")  # type: ignore[no-any-return]


# Columns --------------------------------------------------------------------------------------------------------------

FOREIGN_ARROW = pa.schema(
    [
        pa.field("a", pa.int8()), pa.field("b", pa.int16()), pa.field("c", pa.decimal128(9, 2)),
        pa.field("d", pa.timestamp("us")), pa.field("e", pa.list_(pa.struct([pa.field("x", pa.date32())]))),
        pa.field("f", pa.map_(pa.string(), pa.float32())), pa.field("g", pa.bool_()), pa.field("h", pa.string()),
    ]
)  # fmt: skip
FOREIGN_ICEBERG: list[IcebergType] = [
    BinaryType(), BooleanType(), DateType(), DecimalType(9, 2), DoubleType(), FixedType(3), FloatType(), IntegerType(),
    LongType(), StringType(), TimestampType(), TimestamptzType(), TimeType(), UUIDType(),
    ListType(100, IntegerType(), element_required=True), MapType(101, StringType(), 102, LongType()),
    StructType(NestedField(103, "x", IntegerType(), required=True)),
]  # fmt: skip


def add_columns(case: Case) -> list[str]:
    if isinstance(case, DeltaCase):
        for suffix in ("", "_quarantine"):
            case.loaded(suffix).alter.add_columns(list(Schema.from_arrow(FOREIGN_ARROW).fields))
        return list(FOREIGN_ARROW.names)
    assert isinstance(case, IcebergCase)
    for suffix in ("", "_quarantine"):
        with case.loaded(suffix).update_schema() as update:
            for at, kind in enumerate(FOREIGN_ICEBERG):
                update.add_column(f"c{at}", kind)
    return [f"c{at}" for at in range(len(FOREIGN_ICEBERG))]


def test_columns_of_any_type_that_others_add_are_null(case: Case) -> None:
    names = add_columns(case)
    loads(case)
    rows = case.read().sort_by("offset")
    assert all(rows.column(name).null_count == 4 for name in names)
    assert rows.column("key").to_pylist() == [b"key 0", b"key 2", b"key 0", b"key 2"]


def test_a_column_that_others_add_while_files_are_written(case: Case) -> None:
    table = case.open()
    staged = case.stage(table, records(3, 6, invalid=[4]))
    add_columns(case)
    table.commit(table.position, LoadRange({T0: 3}, {T0: 6}, {"t": "aa"}), *staged, at_ms=1)
    assert case.offsets() == [0, 2, 3, 5]


@pytest.mark.parametrize("suffix", ["", "_quarantine"])
def test_a_column_that_others_rename_in_iceberg(iceberg_case: IcebergCase, suffix: str) -> None:
    with iceberg_case.loaded(suffix).update_schema() as update:
        update.rename_column("value", "payload")
    if suffix:
        with pytest.raises(TableError, match=r"the column 'value' .*_quarantine was renamed to 'payload'"):
            iceberg_case.load(iceberg_case.open(), 6, invalid=[4])
        return
    refuses(iceberg_case, TableError, "the column 'value'", "was renamed to 'payload'", "rename it back")
    with iceberg_case.loaded().update_schema() as update:
        update.rename_column("payload", "value")
    loads(iceberg_case)


def test_a_column_that_others_drop(iceberg_case: IcebergCase) -> None:
    with iceberg_case.loaded().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("headers")
    refuses(iceberg_case, TableError, "the column 'headers'", "is missing")


def test_a_column_that_others_rename_while_files_are_written(iceberg_case: IcebergCase) -> None:
    table = iceberg_case.open()
    staged = iceberg_case.stage(table, records(3, 6))
    with iceberg_case.loaded().update_schema() as update:
        update.rename_column("value", "payload")
    with pytest.raises(TableError, match="renamed to 'payload'"):
        table.commit(table.position, LoadRange({T0: 3}, {T0: 6}, {"t": "aa"}), *staged, at_ms=1)
    assert iceberg_case.offsets() == [0, 2]


def test_a_column_that_others_widen(iceberg_case: IcebergCase) -> None:
    with iceberg_case.loaded().update_schema() as update:
        update.update_column("partition", LongType())
    loads(iceberg_case)


def test_a_column_whose_type_others_change(iceberg_case: IcebergCase) -> None:
    with iceberg_case.loaded().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("value")
    with iceberg_case.loaded().update_schema() as update:
        update.add_column("value", LongType())
    refuses(iceberg_case, TableError, "the column 'value'", "has the type int64 now")


def test_columns_that_must_not_be_null(case: Case) -> None:
    if isinstance(case, IcebergCase):
        with case.loaded().update_schema(allow_incompatible_changes=True) as update:
            update.update_column("key", required=True)
    else:
        change_schema(case, lambda fields: field(fields, "key").update(nullable=False))
    refuses(case, TableError, "the column 'key'", "NOT NULL")


# Iceberg --------------------------------------------------------------------------------------------------------------

SPECS: dict[str, list[tuple[str, Any]]] = {
    "nothing": [],
    "hours without topics": [("timestamp", HourTransform())],
    "months": [("topic", IdentityTransform()), ("timestamp", MonthTransform())],
    "years and days": [("timestamp", YearTransform()), ("topic", TruncateTransform(1))],
    "days": [("timestamp", DayTransform())],
    "buckets": [("topic", BucketTransform(4)), ("hour", BucketTransform(3))],
    "date and hour": [("date", IdentityTransform()), ("hour", IdentityTransform())],
    "months of the date": [("date", MonthTransform())],
}


def evolve_spec(case: IcebergCase, parts: list[tuple[str, Any]]) -> None:
    table = case.loaded()
    with table.update_spec() as update:
        for each in table.spec().fields:
            update.remove_field(each.name)
    with case.loaded().update_spec() as update:
        for at, (source, transform) in enumerate(parts):
            update.add_field(source, transform, f"part{at}")


@pytest.mark.parametrize("name", SPECS)
def test_partition_specs_that_others_change(iceberg_case: IcebergCase, name: str) -> None:
    """New files have the values that a writer of the format computes for their rows."""
    evolve_spec(iceberg_case, SPECS[name])
    loads(iceberg_case)
    table = iceberg_case.loaded()
    rows = table.scan(row_filter="offset >= 3").to_arrow()
    assert rows.num_rows == 2
    new = [task.file for task in table.scan().plan_files() if task.file.spec_id == table.spec().spec_id]
    schema, spec = table.schema(), table.spec()
    expected = set()
    for row in rows.to_pylist():
        values = []
        for part in spec.fields:
            column = schema.find_field(part.source_id)
            value = row[column.name]
            if column.name == "timestamp":
                value = int(value.timestamp()) * 1_000_000
            elif column.name == "date":
                value = value.toordinal() - 719_163
            values.append(part.transform.transform(column.field_type)(value))
        expected.add(tuple(values))
    assert {tuple(file.partition[at] for at in range(len(spec.fields))) for file in new} == expected


@pytest.mark.parametrize(
    ("source", "transform"), [("key", BucketTransform(4)), ("offset", TruncateTransform(2)),
                              ("partition", IdentityTransform()), ("timestamp", BucketTransform(3))]
)  # fmt: skip
def test_partition_specs_that_are_not_supported(iceberg_case: IcebergCase, source: str, transform: Any) -> None:
    with iceberg_case.loaded().update_spec() as update:
        update.add_field(source, transform, "extra")
    refuses(iceberg_case, UnsupportedFeature, "partition field", f"extra = {transform} of {source}")


def test_a_partition_spec_that_is_changed_while_files_are_written(iceberg_case: IcebergCase) -> None:
    table = iceberg_case.open()
    staged = iceberg_case.stage(table, records(3, 6))
    evolve_spec(iceberg_case, SPECS["months"])
    with pytest.raises(CommitConflict, match="partition spec"):
        table.commit(table.position, LoadRange({T0: 3}, {T0: 6}, {"t": "aa"}), *staged, at_ms=1)
    iceberg_case.load(iceberg_case.open(), 6)
    assert iceberg_case.offsets() == [0, 2, 3, 4, 5]


def test_properties_sort_orders_identifiers_branches(iceberg_case: IcebergCase) -> None:
    table = iceberg_case.loaded()
    with table.transaction() as transaction:
        transaction.set_properties(
            {
                "write.object-storage.enabled": "true", "write.data.path": str(iceberg_case.directory / "elsewhere"),
                "write.format.default": "orc", "write.metadata.metrics.default": "none",
            }
        )  # fmt: skip
    with table.update_sort_order() as order:
        order.asc("offset", IdentityTransform())
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "audit").create_tag(
        snapshot.snapshot_id, "v1"
    ).commit()
    loads(iceberg_case)
    loaded = iceberg_case.loaded()
    assert loaded.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 2
    assert list((iceberg_case.directory / "elsewhere").rglob("pylogd-*.parquet"))


def test_encryption_is_refused(iceberg_case: IcebergCase) -> None:
    with iceberg_case.loaded().transaction() as transaction:
        transaction.set_properties({"encryption.key-id": "k1"})
    refuses(iceberg_case, UnsupportedFeature, "encryption.key-id", "unset")


def edit_metadata(case: IcebergCase, change: Any) -> None:
    """Change the metadata of a table as a program of a newer version does."""
    loaded = case.loaded()
    path = Path(loaded.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    change(document)
    new = path.with_name("99999-foreign.metadata.json")
    new.write_text(json.dumps(document))
    with sqlite3.connect(case.directory / "warehouse" / "catalog.db") as database:
        database.execute(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'flights'", (new.as_uri(),)
        )


def test_format_version_3_is_refused(iceberg_case: IcebergCase) -> None:
    edit_metadata(iceberg_case, lambda found: found.update({"format-version": 3, "next-row-id": 10}))
    refuses(iceberg_case, UnsupportedFeature, "format version 3 (row lineage, deletion vectors", "format version 2")


def test_format_version_1(tmp_path: Path) -> None:
    case = IcebergCase(tmp_path)
    case.made()
    edit_metadata(
        case, lambda found: found.update({"format-version": 1, "schema": found["schemas"][0], "partition-spec": []})
    )
    case.load(case.open(), 3, invalid=[1])
    loads(case)
    assert case.loaded().format_version == 1


def test_defaults_are_refused(iceberg_case: IcebergCase) -> None:
    with iceberg_case.loaded().update_schema() as update:
        update.add_column("more", IntegerType())
    edit_metadata(iceberg_case, lambda found: found["schemas"][-1]["fields"][-1].update({"write-default": 7}))
    refuses(iceberg_case, UnsupportedFeature, "write-default of a column: more")


def test_delete_files(iceberg_case: IcebergCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg writes none, so the plan of a scan is given one."""
    from pyiceberg.table import DataScan  # noqa: PLC0415

    plan = DataScan.plan_files

    def with_deletes(self: Any) -> Any:
        for task in plan(self):
            task.delete_files.add(cast("Any", "delete.parquet"))
            yield task

    loads(iceberg_case)
    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(TableError, match="rows that delete files delete"):
        iceberg_case.open().files()


def test_files_are_kept_where_they_must_be(iceberg_case: IcebergCase) -> None:
    with iceberg_case.loaded().transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    with pytest.raises(TableError, match=r"gc\.enabled=false"):
        iceberg_case.open().clean(0)
    loads(iceberg_case)


# Documents ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "features"), [("Features of Delta", delta.FEATURES), ("Features of Iceberg", iceberg.FEATURES)]
)
def test_the_document_names_all_features(title: str, features: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "tables.md").read_text()
    part = text.partition(f"### {title}\n")[2].partition("\n#")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
    found = {name.strip().strip("`"): does.strip() for name, does in rows}
    assert found == {
        name: f"supported: {feature.supported}" if feature.supported else f"refused{_when(feature)}: {feature.why}"
        for name, feature in features.items()
    }


def _when(feature: Any) -> str:
    return " while in use" if feature.use else ""
