"""The features of Delta's protocol that a load supports, and those for which a table is refused.

Strategy: `FEATURES` has all names of the protocol. A table's protocol may allow a feature that is not in use (writer
versions 2 to 6 allow several at once). So a feature whose use shows in the schema or the settings is refused only if it
is in use. A feature that `FEATURES` does not have is refused by its name.
Source: PROTOCOL.md of delta-io/delta, "Valid Feature Names in Table Features" and "Requirements for Writers". The
features of tables to which deltalake commits were tried out with deltalake 1.6.6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deltalake import DeltaTable

from pylogd.lake.tables.checks import UnsupportedFeature

_CONSTRAINT: Final = "delta.constraints."
_MAPPING: Final = "delta.columnMapping.mode"
_LEAVE: Final = "drop the feature (ALTER TABLE ... DROP FEATURE {name})"
_LEAVE_ANY: Final = "drop the feature with the program that turned it on"
_NOT_COMMITTED: Final = "deltalake does not commit to tables with it"
#: The features that each version of the protocol before 7 allows in addition to the version before it.
_OF_VERSION: Final[Mapping[int, tuple[str, ...]]] = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
_BY_NAME: Final = 7
#: Deltalake's message for a feature that it can't read.
_UNREADABLE: Final = re.compile(r"Feature '(\w[\w-]*)'|catalog-managed table")


@dataclass(frozen=True, slots=True)
class Facts:
    """A table's settings, and its fields including nested ones, in the form of Delta's log."""

    settings: Mapping[str, str]
    fields: tuple[Mapping[str, Any], ...]

    def with_metadata(self, key: str) -> str:
        """Return the names of the fields whose metadata has a key; "" if there is none."""
        return ", ".join(str(each["name"]) for each in self.fields if key in each.get("metadata", {}))

    def of_type(self, kind: str) -> str:
        """Return the names of the fields of a type."""
        return ", ".join(str(each["name"]) for each in self.fields if each["type"] == kind)


Use = Callable[[Facts], str]


@dataclass(frozen=True, slots=True)
class Feature:
    """How a load handles a feature.

    supported: how a load supports it; "" if the table is refused while the feature is in use.
    use: returns where the feature is in use, for the message, or ""; None if every table that lists it uses it.
    why: the reason why it is not supported.
    remedy: what the user can do, with {name} for the feature and {use} for the result of `use`.
    """

    supported: str = ""
    use: Use | None = None
    why: str = _NOT_COMMITTED
    remedy: str = _LEAVE


def _constraints(facts: Facts) -> str:
    return ", ".join(each.removeprefix(_CONSTRAINT) for each in facts.settings if each.startswith(_CONSTRAINT))


def _mapped(facts: Facts) -> str:
    mode = facts.settings.get(_MAPPING, "none")
    return "" if mode == "none" else f"{_MAPPING}={mode}"


FEATURES: Final[Mapping[str, Feature]] = {
    "appendOnly": Feature("loads only add rows"),
    "invariants": Feature(
        use=lambda facts: facts.with_metadata("delta.invariants"),
        why="the SQL of a column's invariant is not evaluated",
        remedy="remove delta.invariants from the columns {use}",
    ),
    "checkConstraints": Feature(
        use=_constraints, why="the SQL of CHECK constraints is not evaluated",
        remedy="remove the constraints {use} (ALTER TABLE ... DROP CONSTRAINT)",
    ),
    "generatedColumns": Feature(
        use=lambda facts: facts.with_metadata("delta.generationExpression"),
        why="the SQL of generated columns is not evaluated", remedy="drop the columns {use}",
    ),
    "allowColumnDefaults": Feature(),
    "changeDataFeed": Feature("readers take the changes of added files from the files themselves"),
    "columnMapping": Feature(
        use=_mapped, why="files would need the physical names of columns",
        remedy="rename columns back and set delta.columnMapping.mode to none",
    ),
    "identityColumns": Feature(),
    "deletionVectors": Feature("new files have none; --files, --compact and --clean are refused while files have some"),
    "rowTracking": Feature(),
    "timestampNtz": Feature("columns of this type are written"),
    "domainMetadata": Feature(),
    "v2Checkpoint": Feature("deltalake reads both kinds of checkpoints, and writes classic ones"),
    "catalogManaged": Feature(why="commits have to go through a catalog"),
    "catalogOwned-preview": Feature(why="commits have to go through a catalog"),
    "icebergCompatV1": Feature(),
    "icebergCompatV2": Feature(),
    "icebergCompatV3": Feature(),
    "icebergWriterCompatV1": Feature(),
    "icebergWriterCompatV3": Feature(),
    "clustering": Feature(),
    "vacuumProtocolCheck": Feature(),
    "inCommitTimestamp": Feature(),
    "typeWidening": Feature(),
    "typeWidening-preview": Feature(),
    "variantType": Feature(
        use=lambda facts: facts.of_type("variant"), why="values of the type variant are not written",
        remedy="drop the columns {use}",
    ),
    "variantType-preview": Feature(
        use=lambda facts: facts.of_type("variant"), why="values of the type variant are not written",
        remedy="drop the columns {use}",
    ),
    "variantShredding": Feature(),
    "variantShredding-preview": Feature(),
    "materializePartitionColumns": Feature(),
    "checkpointProtection": Feature(),
    "collations-preview": Feature(),
}  # fmt: skip


def check_features(table: DeltaTable, where: str) -> None:
    """Check that a load supports all features of a table. Raises UnsupportedFeature.

    where: names the table.
    """
    protocol = table.protocol()
    if protocol.min_writer_version > _BY_NAME:
        version = protocol.min_writer_version
        raise UnsupportedFeature(
            where, f"writer version {version}", f"it is newer than {_BY_NAME}", "take a newer version of pylogd"
        )
    facts = Facts(table.metadata().configuration, tuple(_fields(json.loads(table.schema().to_json()))))
    named = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    implied = {
        name for version, names in _OF_VERSION.items() if version <= protocol.min_writer_version for name in names
    }
    for name in sorted(named | (implied if protocol.min_writer_version < _BY_NAME else set())):
        feature = FEATURES.get(name) or Feature(why="it is not known to this version")
        used = name if feature.use is None else feature.use(facts)
        if used and not feature.supported:
            raise UnsupportedFeature(where, name, feature.why, feature.remedy.format(name=name, use=used))


def unreadable(where: str, error: Exception) -> UnsupportedFeature | None:
    """Return the error for a table with a feature that deltalake can't read; None if its error has another cause."""
    found = _UNREADABLE.search(str(error))
    if found is None:
        return None
    return UnsupportedFeature(where, found[1] or "catalogManaged", f"deltalake can't read it ({error})", _LEAVE_ANY)


def _fields(kind: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of a type, in the form of Delta's log, including nested ones."""
    if isinstance(kind, Mapping):
        for field in kind.get("fields", ()):
            yield field
            yield from _fields(field["type"])
        for inner in ("elementType", "keyType", "valueType"):
            yield from _fields(kind.get(inner))
