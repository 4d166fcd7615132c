"""Each feature of Delta's protocol: it is supported, or the table is refused by the feature's name.

Other programs are stood in for by deltalake, and by hand-written commits where it does not have the feature.
"""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pylogd.lake.tables.checks import UnsupportedFeature
from pylogd.lake.tables.delta import features as delta
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.position import LoadRange
from tests.unit.lake.tables.cases import Case, DeltaCase, records
from tests.unit.lake.tables.changed import T0, change_schema, field, loads, metadata, refuses, write_commit


@pytest.fixture
def delta_case(tmp_path: Path) -> DeltaCase:
    case = DeltaCase(tmp_path)
    case.load(case.made(), 3, invalid=[1])
    return case


def set_property(case: Case, name: str, value: str) -> None:
    action = metadata(case)
    action["metaData"]["configuration"][name] = value
    write_commit(case, action)


def map_columns(case: Case) -> None:
    """Turn on column mapping by names, which stay the same."""
    action = metadata(case)
    schema = json.loads(action["metaData"]["schemaString"])

    def name(fields: list[dict[str, Any]], numbers: Any) -> None:
        for each in fields:
            each["metadata"] = {
                "delta.columnMapping.id": next(numbers),
                "delta.columnMapping.physicalName": each["name"],
            }
            inner = each["type"]
            if isinstance(inner, dict):
                name(inner.get("fields") or inner.get("elementType", {}).get("fields", []), numbers)

    numbers = iter(range(1, 100))
    name(schema["fields"], numbers)
    action["metaData"]["schemaString"] = json.dumps(schema)
    action["metaData"]["configuration"].update(
        {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(next(numbers))}
    )
    write_commit(case, action)


def foreign(name: str, kind: str, **more: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": more}


#: How features are used that may be allowed without being used.
USES: dict[str, Any] = {
    "invariants": lambda case: change_schema(
        case, lambda fields: field(fields, "offset")["metadata"].update({"delta.invariants": "{}"})
    ),
    "checkConstraints": lambda case: set_property(case, "delta.constraints.young", "offset < 5"),
    "generatedColumns": lambda case: change_schema(
        case, lambda fields: fields.append(foreign("twice", "long", **{"delta.generationExpression": "offset * 2"}))
    ),
    "columnMapping": map_columns,
    "variantType": lambda case: change_schema(case, lambda fields: fields.append(foreign("v", "variant"))),
    "variantType-preview": lambda case: change_schema(case, lambda fields: fields.append(foreign("v", "variant"))),
}
#: Features of readers too. The first ones can't be read at all.
UNREADABLE = ("catalogManaged", "catalogOwned-preview")
OF_READERS = (
    *UNREADABLE, "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview",
    "v2Checkpoint", "vacuumProtocolCheck", "variantType", "variantType-preview", "variantShredding",
    "variantShredding-preview",
)  # fmt: skip


def turn_on(case: Case, name: str) -> None:
    readers = [name] if name in OF_READERS else []
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": [name]}
    write_commit(case, {"protocol": protocol})


def test_all_features_that_are_seen_in_use_are_tried() -> None:
    assert set(USES) == {name for name, feature in delta.FEATURES.items() if feature.use}


@pytest.mark.parametrize("name", delta.FEATURES)
def test_each_feature_of_delta(delta_case: DeltaCase, name: str) -> None:
    feature = delta.FEATURES[name]
    turn_on(delta_case, name)
    if feature.supported:
        loads(delta_case)
    elif name in UNREADABLE:
        with pytest.raises(UnsupportedFeature, match="catalogManaged"):
            delta_case.open()
    elif name in USES:
        delta_case.load(delta_case.open(), 3)
        USES[name](delta_case)
        refuses(delta_case, UnsupportedFeature, name)
    else:
        refuses(delta_case, UnsupportedFeature, name, "DROP FEATURE")


@pytest.mark.parametrize("is_of_readers", [False, True])
def test_a_feature_of_delta_that_is_not_known(delta_case: DeltaCase, is_of_readers: bool) -> None:
    readers = ["teleport"] if is_of_readers else []
    write_commit(
        delta_case,
        {"protocol": {
            "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": ["teleport"],
        }},
    )  # fmt: skip
    if is_of_readers:
        with pytest.raises(UnsupportedFeature, match="teleport"):
            delta_case.open()
    else:
        refuses(delta_case, UnsupportedFeature, "teleport")


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_writer_versions_of_delta_that_allow_features_without_their_use(delta_case: DeltaCase, version: int) -> None:
    write_commit(delta_case, {"protocol": {"minReaderVersion": 2 if version == 5 else 1, "minWriterVersion": version}})
    loads(delta_case)


def test_a_constraint_that_the_library_adds(delta_case: DeltaCase) -> None:
    """As it was found: rows that violate it were committed."""
    delta_case.loaded().alter.add_constraint({"young": '"offset" < 5'})
    refuses(delta_case, UnsupportedFeature, "checkConstraints", "young", "DROP CONSTRAINT")
    delta_case.loaded().alter.drop_constraint("young")
    loads(delta_case)


def test_a_constraint_that_is_added_while_files_are_written(delta_case: DeltaCase) -> None:
    table = delta_case.open()
    staged = delta_case.stage(table, records(3, 6))
    delta_case.loaded().alter.add_constraint({"young": '"offset" < 5'})
    with pytest.raises(UnsupportedFeature, match="checkConstraints"):
        table.commit(table.position, LoadRange({T0: 3}, {T0: 6}, {"t": "aa"}), *staged, at_ms=1)
    assert delta_case.offsets() == [0, 2]


def test_a_constraint_of_the_quarantine(delta_case: DeltaCase) -> None:
    delta_case.loaded("_quarantine").alter.add_constraint({"some": "reason is not null"})
    with pytest.raises(UnsupportedFeature, match=r"_quarantine.*checkConstraints"):
        delta_case.load(delta_case.open(), 6, invalid=[4])
    assert delta_case.offsets() == [0, 2]


def z85(data: bytes) -> str:
    mine = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    theirs = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    return base64.b85encode(data + bytes(-len(data) % 4)).translate(bytes.maketrans(mine, theirs)).decode()


def test_deletion_vectors(delta_case: DeltaCase) -> None:
    """Loads go on; readers of files alone, compaction and vacuum would bring deleted rows back."""
    turn_on(delta_case, "deletionVectors")
    action = next(
        json.loads(line)["add"]
        for path in sorted((delta_case.directory / "flights" / "_delta_log").glob("*.json"))
        for line in path.read_text().splitlines()
        if '"add"' in line
    )
    bitmap = struct.pack("<IQIIIHHIH", 1_681_511_377, 1, 0, 12_346, 1, 0, 0, 16, 0)  # row 0, as a Roaring bitmap
    vector = {"storageType": "i", "pathOrInlineDv": z85(bitmap), "sizeInBytes": len(bitmap), "cardinality": 1}
    write_commit(
        delta_case,
        {"remove": {"path": action["path"], "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**action, "deletionVector": vector}},
    )
    table = delta_case.open()
    delta_case.load(table, 6)
    for use in (table.files, lambda: table.clean(0), lambda: table.compact(1 << 20, lambda *_: [], at_ms=1)):
        with pytest.raises(TableError, match=r"1 files of the Delta table .* deletion vectors delete"):
            use()


def test_transactions_that_expire_do_not_hide_the_position(delta_case: DeltaCase) -> None:
    delta_case.loaded().alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 0 seconds"})
    loads(delta_case)


def test_partition_columns_that_others_change(delta_case: DeltaCase) -> None:
    action = metadata(delta_case)
    action["metaData"]["partitionColumns"] = ["topic"]
    log = delta_case.directory / "flights" / "_delta_log"
    added = [
        json.loads(line) for path in log.glob("*.json") for line in path.read_text().splitlines() if '"add"' in line
    ]
    removed = [{"path": each["add"]["path"], "dataChange": True, "deletionTimestamp": 1} for each in added]
    write_commit(delta_case, *({"remove": each} for each in removed))
    write_commit(delta_case, action)
    refuses(delta_case, TableError, "is partitioned by topic now")
