"""The features of Iceberg's specification that a load supports, and those for which a table is refused.

`FEATURES` has all of them, and how a load handles each. `check_features` refuses a table, `partition_values` follows
changed partition specs. The versions that pyiceberg writes were tried out with pyiceberg 0.12.0.
Source: Apache Iceberg table specification, versions 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DateType

from pylogd.lake.tables.checks import UnsupportedFeature
from pylogd.lake.tables.errors import TableError

if TYPE_CHECKING:
    from pylogd.lake.tables.writing import Directory

_ENCRYPTION: Final = "encryption.key-id"
_GC: Final = "gc.enabled"
_WRITTEN_VERSIONS: Final = (1, 2)
_EPOCH: Final = date(1970, 1, 1)
_OF_VALUE: Final = (IdentityTransform, BucketTransform, TruncateTransform, YearTransform, MonthTransform, DayTransform)


@dataclass(frozen=True, slots=True)
class Feature:
    """How a load handles a feature.

    supported: how a load supports it; "" if a table that uses it is refused.
    use: returns where the feature is in use, or ""; takes the table, and the columns that all rows of a file share.
    why: the reason why it is not supported.
    remedy: what the user can do.
    """

    supported: str = ""
    use: Callable[[Table, Sequence[str]], str] | None = None
    why: str = ""
    remedy: str = ""


def _version(table: Table, _: Sequence[str]) -> str:
    version = table.metadata.format_version
    return "" if version in _WRITTEN_VERSIONS else f"format version {version}"


def _encryption(table: Table, _: Sequence[str]) -> str:
    return _ENCRYPTION if _ENCRYPTION in table.metadata.properties else ""


def _defaults(table: Table, _: Sequence[str]) -> str:
    return next((each.name for each in table.schema().fields if each.write_default is not None), "")


def _foreign_partition(table: Table, directories: Sequence[str]) -> str:
    schema = table.schema()
    for part in table.spec().fields:
        if not _is_known(part, schema, directories):
            return f"{part.name} = {part.transform} of {schema.find_column_name(part.source_id)}"
    return ""


#: All features. Features without `use` require nothing of a load.
FEATURES: Final[Mapping[str, Feature]] = {
    "format versions 1 and 2": Feature("pyiceberg writes both"),
    "format version 3 (row lineage, deletion vectors, default values, encryption keys, new types)": Feature(
        use=_version, why="pyiceberg does not write it", remedy="keep tables that pylogd loads at format version 2"
    ),
    _ENCRYPTION: Feature(use=_encryption, why="pyiceberg does not encrypt files", remedy="unset the property"),
    "write-default of a column": Feature(
        use=_defaults, why="new rows would have null there", remedy="drop the column's default"
    ),
    "partition fields of topic, date, hour and timestamp": Feature("new files have the values of the current spec"),
    "partition field of another column": Feature(
        use=_foreign_partition, why="the rows of a file don't have its value in common",
        remedy="drop it (ALTER TABLE ... DROP PARTITION FIELD)",
    ),
    "sort order": Feature("new files say that they are not sorted"),
    "identifier fields": Feature("they have no effect on added rows"),
    "position and equality deletes": Feature("new files have none; --files is refused while files have some"),
    "branches and tags": Feature("loads go to the branch main"),
    "schema.name-mapping.default": Feature("new files have the ids of their columns"),
    "write.format.default": Feature("new files are Parquet, which all readers take"),
    "write.data.path, write.object-storage.enabled": Feature("new files are where the properties say"),
    "write.metadata.metrics": Feature("manifests have the bounds that the properties ask for"),
    "gc.enabled=false": Feature("no file is deleted: --clean is refused, and no snapshot is expired"),
}  # fmt: skip


def check_features(table: Table, where: str, directories: Sequence[str]) -> None:
    """Check that a load supports all features of a table. Raises UnsupportedFeature.

    where: the name of the table in errors.
    directories: the columns that all rows of a file share.
    """
    for name, feature in FEATURES.items():
        used = "" if feature.use is None else feature.use(table, directories)
        if used:
            raise UnsupportedFeature(where, f"{name}: {used}", feature.why, feature.remedy)


def check_deletes_files(table: Table, where: str) -> None:
    """Raise TableError if files of the table must not be deleted."""
    if not deletes_files(table):
        raise TableError(f"the table {where} has {_GC}=false, so none of its files is deleted: unset the property")


def deletes_files(table: Table) -> bool:
    """Return whether files and snapshots of a table may be deleted."""
    return str(table.metadata.properties.get(_GC, "true")).lower() != "false"


def partition_values(directory: Directory, spec: PartitionSpec, schema: Schema) -> list[Any]:
    """Return the values of the fields of a spec, which `check_features` has accepted, for rows of a directory."""
    return [_value(part, directory, schema) for part in spec.fields]


def renamed(table: Table) -> dict[str, str]:
    """Return the present names of renamed columns, by their former names."""
    now = {field.field_id: field.name for field in table.schema().fields}
    return {
        field.name: now[field.field_id]
        for schema in table.metadata.schemas
        for field in schema.fields
        if now.get(field.field_id, field.name) != field.name
    }


def _is_known(part: PartitionField, schema: Schema, directories: Sequence[str]) -> bool:
    """Return whether all rows of a directory have the same value of a partition field."""
    source = schema.find_column_name(part.source_id)
    if isinstance(part.transform, VoidTransform):
        return True
    if source == "timestamp":
        needed = "hour" if isinstance(part.transform, HourTransform) else "date"
        known = isinstance(part.transform, (HourTransform, DayTransform, MonthTransform, YearTransform))
        return known and needed in directories
    return source in directories and isinstance(part.transform, _OF_VALUE)


def _value(part: PartitionField, directory: Directory, schema: Schema) -> Any:
    if isinstance(part.transform, VoidTransform):
        return None
    field = schema.find_field(part.source_id)
    if field.name != "timestamp":
        value, kind = directory[field.name], field.field_type
    elif isinstance(part.transform, HourTransform):
        return (directory["date"] - _EPOCH).days * 24 + directory["hour"]
    else:
        value, kind = directory["date"], DateType()
    if isinstance(value, date):
        value = (value - _EPOCH).days  # the form in which pyiceberg stores dates
    return part.transform.transform(kind)(value)
