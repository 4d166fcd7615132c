"""The registry's state: schemas by id, subjects and their versions, compatibility levels, modes.

Strategy: the state is the result of applying all records of one topic in order, so every process that reads the topic
has the same state. A change is computed here as the records that make it; the caller writes them to the topic, and the
change takes effect when they are read back. Keys and values have the format of Confluent's registry, whose topic can be
taken over.

Rules:
- An id belongs to one schema for ever, whichever subjects use it. When a version is deleted permanently, the largest id
  given so far is written too, because compaction removes the version's own record.
- A record that can't be decoded is skipped, and ids that are found in it are not given to other schemas.
- Deleting a version hides it; deleting it permanently (`permanent`) removes a hidden version.
- Versions of a subject are numbered from 1. Clients choose ids and versions only in mode IMPORT.
- A schema is compared with earlier ones outside of the registry (`comparison`), because that can take long.
Must not know: HTTP, brokers.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pylogd.schemas.errors import (
    ConfigNotFound,
    InvalidSchema,
    InvalidVersion,
    ModeNotFound,
    OperationNotPermitted,
    ReferenceExists,
    RegistryError,
    SchemaNotFound,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
)
from pylogd.schemas.modes import Mode
from pylogd.schemas.parsing import AVRO, Comparison, Compatibility, Reference, Schema, definitions

_log = logging.getLogger(__name__)

LATEST = "latest"
MAX_NUMBER = 2**31 - 1  # the largest version and the largest id: messages have four bytes for it
_TAKEOVER = "WRITER"
_IDS = re.compile(rb'"id"\s*:\s*(\d{1,10})(?!\d)')


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject. `deleted`: whether it is soft-deleted."""

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the version as JSON, as in the API and in the topic."""
        document: dict[str, Any] = {
            "subject": self.subject,
            "version": self.version,
            "id": self.id,
            "schemaType": AVRO,
            "schema": self.schema.text,
        }
        if self.schema.references:
            document["references"] = [reference.as_json() for reference in self.schema.references]
        return document


class NotCompared(Exception):
    """A schema can't be registered before `comparison` has found it compatible."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        super().__init__("the schema was not compared with the subject's present versions")


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record to be written to the topic, in JSON. A value of None deletes the key."""

    key: bytes
    value: bytes | None


class Registry:
    """The state described above. Methods that change something return the records to write, and change nothing yet.

    `level`: the compatibility level where none was set.
    """

    def __init__(self, level: Compatibility = Compatibility.BACKWARD) -> None:
        self._subjects: dict[str, dict[int, Version]] = {}
        self._by_id: dict[int, Schema] = {}
        self._ids: dict[tuple[str, tuple[Reference, ...]], int] = {}
        self._levels: dict[str | None, Compatibility] = {}
        self._modes: dict[str | None, Mode] = {}
        self._used: dict[str, int] = {}  # the largest version so far, by subject
        self._default = level
        self._last_id = 0

    # Reading the topic ---------------------------------------------------------------------------------------------

    def apply(self, key: bytes | None, value: bytes | None, offset: int = -1) -> None:
        """Apply the topic's next record, which is at `offset`. A record that can't be decoded is logged and skipped."""
        try:
            self._apply(key, value, offset)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, RegistryError) as error:
            for found in _IDS.findall(value or b""):
                if int(found) < MAX_NUMBER:
                    self._last_id = max(self._last_id, int(found))
            _log.warning(
                "skipping the record at offset %d of the schemas topic, which can't be decoded: key %.200r: %s",
                offset, key, str(error) or type(error).__name__,
            )  # fmt: skip

    def _apply(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        name = json.loads(key or b"")
        kind = name["keytype"]
        document = None if value is None else json.loads(value)
        subject = name.get("subject")
        if not isinstance(subject, str | None) or (subject is None and kind in ("SCHEMA", "DELETE_SUBJECT")):
            raise ValueError("the subject is not a string")
        if kind == "SCHEMA":
            self._apply_schema(subject or "", int(name["version"]), document, offset)
        elif kind == "CONFIG":
            self._apply_level(subject, document)
        elif kind == "MODE":
            self._apply_mode(subject, document)
        elif kind == "DELETE_SUBJECT" and document is not None:
            for version in list(self._subjects.get(subject or "", {}).values()):
                if version.version <= int(document["version"]):
                    self._put(replace(version, deleted=True))
        elif kind == "NOOP":
            self._last_id = max(self._last_id, int((document or {}).get("lastId", 0)))
        elif kind not in ("DELETE_SUBJECT", "CLEAR_SUBJECT", _TAKEOVER):
            raise ValueError(f"unknown key type {kind!r}")

    def _apply_schema(self, subject: str, number: int, document: Mapping[str, Any] | None, offset: int) -> None:
        if document is None:
            self._subjects.get(subject, {}).pop(number, None)
            if not self._subjects.get(subject, True):
                del self._subjects[subject]
            return
        references = tuple(
            Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
            for each in document.get("references") or ()
        )
        schema = Schema(str(document["schema"]), references)
        version = Version(subject, number, int(document["id"]), schema, bool(document.get("deleted")))
        named = self._by_id.get(version.id)
        if named is not None and named.identity != schema.identity:
            _log.error(
                "the record at offset %d of the schemas topic gives id %d to a second schema (%s version %d); id %d "
                "keeps the first. Another program writes to the topic without coordinating with this registry: stop it",
                offset, version.id, subject, number, version.id,
            )  # fmt: skip
        self._put(version)

    def _put(self, version: Version) -> None:
        identity = version.schema.identity
        self._subjects.setdefault(version.subject, {})[version.version] = version
        self._used[version.subject] = max(self._used.get(version.subject, 0), version.version)
        self._by_id.setdefault(version.id, version.schema)
        self._last_id = max(self._last_id, version.id)
        self._ids.setdefault(identity, version.id)

    def _apply_level(self, subject: str | None, document: Mapping[str, Any] | None) -> None:
        if document is None:
            self._levels.pop(subject, None)
        else:
            self._levels[subject] = Compatibility.named(document["compatibilityLevel"])

    def _apply_mode(self, subject: str | None, document: Mapping[str, Any] | None) -> None:
        if document is None:
            self._modes.pop(subject, None)
        else:
            self._modes[subject] = Mode.named(document["mode"])

    # Look-ups ------------------------------------------------------------------------------------------------------

    def subjects(self, *, deleted: bool = False, prefix: str = "") -> list[str]:
        """Return the names of all subjects, sorted; with `deleted`, also of deleted ones."""
        return sorted(
            name
            for name, versions in self._subjects.items()
            if name.startswith(prefix) and (deleted or any(not version.deleted for version in versions.values()))
        )

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the subject's versions, ascending. Raises SubjectNotFound if it has none."""
        found = [at for at, version in self._subjects.get(subject, {}).items() if deleted or not version.deleted]
        if not found:
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        return sorted(found)

    def version(self, subject: str, which: str, *, deleted: bool = False) -> Version:
        """Return a version by its number, or the last one for "latest" or "-1".

        Raises SubjectNotFound, VersionNotFound or InvalidVersion.
        """
        if which in (LATEST, "-1"):
            last = self.versions(subject, deleted=deleted)[-1]
            return self._subjects[subject][last]
        if not which.isascii() or not which.isdigit() or not 0 < int(which) <= MAX_NUMBER:
            raise InvalidVersion(
                f"The specified version '{which}' is not a valid version id: a number from 1 on, or \"{LATEST}\"."
            )
        known = self.versions(subject, deleted=deleted)
        if int(which) not in known:
            raise VersionNotFound(f"Version {which} not found.")
        return self._subjects[subject][int(which)]

    def by_id(self, schema_id: int) -> Schema:
        """Return the schema with an id. Raises SchemaNotFound."""
        schema = self._by_id.get(schema_id)
        if schema is None:
            raise SchemaNotFound(f"Schema {schema_id} not found")
        return schema

    def uses_of(self, schema_id: int, *, deleted: bool = False) -> list[Version]:
        """Return the versions of all subjects that have a schema. Raises SchemaNotFound."""
        self.by_id(schema_id)
        every = (version for versions in self._subjects.values() for version in versions.values())
        found = [version for version in every if version.id == schema_id and (deleted or not version.deleted)]
        return sorted(found, key=lambda version: (version.subject, version.version))

    def referring_to(self, subject: str, number: int) -> list[int]:
        """Return the ids of schemas that refer to this version."""
        every = (version for versions in self._subjects.values() for version in versions.values())
        return sorted(
            {
                version.id
                for version in every
                for used in version.schema.references
                if not version.deleted and (used.subject, used.version) == (subject, number)
            }
        )

    def level(self, subject: str | None = None, *, inherit: bool = True) -> Compatibility:
        """Return the level of a subject, or the registry's for None.

        inherit: whether a subject without its own level has the registry's; if not, ConfigNotFound is raised.
        """
        own = self._levels.get(subject)
        if own is not None:
            return own
        if subject is not None and not inherit:
            raise ConfigNotFound(f"Subject '{subject}' does not have subject-level compatibility configured")
        return self._levels.get(None, self._default)

    def mode(self, subject: str | None = None, *, inherit: bool = True) -> Mode:
        """Return the mode of a subject, or the registry's for None.

        inherit: whether a subject without its own mode has the registry's; if not, ModeNotFound is raised.
        """
        general = self._modes.get(None, Mode.READWRITE)
        own = self._modes.get(subject)
        if not inherit and own is None and subject is not None:
            raise ModeNotFound(f"Subject '{subject}' does not have subject-level mode configured")
        return general if own is None or (inherit and general is Mode.READONLY_OVERRIDE) else own

    def resolve(self, reference: Reference) -> Schema:
        """Return the schema that a reference names. Raises InvalidSchema if it does not exist."""
        found = self._subjects.get(reference.subject, {}).get(reference.version)
        if found is None:
            raise InvalidSchema(
                f"reference {reference.name!r}: subject {reference.subject!r} has no version {reference.version}"
            )
        return found.schema

    def definitions(self, schema: Schema) -> tuple[str, ...]:
        """Return the texts of the schemas that a schema refers to, and last its own. Raises InvalidSchema."""
        try:
            return definitions(schema, self.resolve)
        except RecursionError:
            raise InvalidSchema("its references form too long a chain") from None

    def knows(self, schema: Schema) -> bool:
        """Return whether a schema is registered somewhere, and is therefore valid."""
        return schema.identity in self._ids

    def find(self, subject: str, schema: Schema, *, deleted: bool = False) -> Version | None:
        """Return the newest version of a subject that has this schema, or None."""
        identity = schema.identity
        for _, version in sorted(self._subjects.get(subject, {}).items(), reverse=True):
            if (deleted or not version.deleted) and version.schema.identity == identity:
                return version
        return None

    def comparison(self, subject: str, schema: Schema, which: str | None = None) -> Comparison | None:
        """Return what a schema must be compared with: the subject's versions by its level, or only version `which`.

        None if there is nothing to compare. Raises SubjectNotFound, VersionNotFound, InvalidVersion or InvalidSchema.
        """
        level = self.level(subject)
        if which is None:
            live = [version for _, version in sorted(self._subjects.get(subject, {}).items()) if not version.deleted]
            earlier = live if level.transitive else live[-1:]
        else:
            earlier = [self.version(subject, which)]
        if level is Compatibility.NONE or not earlier:
            return None
        return Comparison(
            level,
            self.definitions(schema),
            tuple((version.version, self.definitions(version.schema)) for version in earlier),
        )

    # Changes -------------------------------------------------------------------------------------------------------

    def register(
        self,
        subject: str,
        schema: Schema,
        schema_id: int | None = None,
        number: int | None = None,
        *,
        passed: Comparison | None = None,
    ) -> tuple[int, list[TopicRecord]]:
        """Return a valid schema's id and the records to write, which are none if the subject has the schema already.

        schema_id, number: the id and version that the client asks for, None for the next one.
        passed: the comparison with earlier versions that found the schema compatible.

        Raises NotCompared if another comparison is necessary, InvalidSchema for a version that is not the next one, and
        OperationNotPermitted if the mode forbids it.
        """
        known = self.find(subject, schema)
        if known is not None and schema_id in (None, known.id) and number in (None, known.version):
            return known.id, []
        mode = self._check_writable(subject)
        following = self._used.get(subject, 0) + 1
        if mode is Mode.IMPORT:
            if schema_id is None:
                raise OperationNotPermitted(f"Subject {subject} is not in read-write mode")
            self._check_import(subject, schema, schema_id, number)
        else:
            if schema_id is not None:
                raise OperationNotPermitted(f"Subject {subject} is not in import mode")
            if number not in (None, following) or known is not None:
                raise InvalidSchema("Version is not one more than previous version")
            needed = self.comparison(subject, schema)
            if needed is not None and needed != passed:
                raise NotCompared(needed)
            schema_id = self._ids.get(schema.identity) or self._next_id()
        return schema_id, [_schema_record(Version(subject, number or following, schema_id, schema))]

    def _check_import(self, subject: str, schema: Schema, schema_id: int, number: int | None) -> None:
        named = self._by_id.get(schema_id)
        if named is not None and named.identity != schema.identity:
            raise OperationNotPermitted(f"Overwrite new schema with id {schema_id} is not permitted.")
        there = self._subjects.get(subject, {}).get(number or 0)
        if there is not None and (there.id, there.schema.identity) != (schema_id, schema.identity):
            raise OperationNotPermitted(f"Overwrite version {number} of subject {subject} is not permitted.")

    def _check_writable(self, subject: str | None) -> Mode:
        mode = self.mode(subject)
        if not mode.writable:
            what = "The registry" if subject is None else f"Subject {subject}"
            raise OperationNotPermitted(f"{what} is in read-only mode")
        return mode

    def _next_id(self) -> int:
        if self._last_id >= MAX_NUMBER:
            raise OperationNotPermitted(f"all ids up to the largest one, {MAX_NUMBER}, are in use")
        return self._last_id + 1

    def delete_version(self, subject: str, which: str, *, permanent: bool) -> tuple[int, list[TopicRecord]]:
        """Return the deleted version's number and the records to write.

        Raises ReferenceExists, SubjectNotSoftDeleted, OperationNotPermitted, and what `version` raises.
        """
        self._check_writable(subject)
        found = self.version(subject, which, deleted=permanent)
        self._check_unused(found)
        return found.version, [*self._last_id_record(permanent), self._deletion(found, permanent)]

    def delete_subject(self, subject: str, *, permanent: bool) -> tuple[list[int], list[TopicRecord]]:
        """Return the deleted versions and the records to write.

        Raises SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists or OperationNotPermitted.
        """
        self._check_writable(subject)
        if not permanent and not self.subjects(prefix=subject).count(subject) and subject in self._subjects:
            raise SubjectSoftDeleted(f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")
        numbers = self.versions(subject, deleted=permanent)
        found = [self._subjects[subject][number] for number in numbers]
        for version in found:
            self._check_unused(version)
        records = self._last_id_record(permanent) + [self._deletion(version, permanent) for version in found]
        if subject in self._levels:
            records.append(_level_record(subject, None))
        if subject in self._modes:
            records.append(_mode_record(subject, None))
        return numbers, records

    def set_level(self, subject: str | None, level: Compatibility | None) -> list[TopicRecord]:
        """Return the records to write. A level of None removes the subject's, or the registry's, own level."""
        self._check_writable(subject)
        return [_level_record(subject, level)]

    def set_mode(self, subject: str | None, mode: Mode | None, *, force: bool = False) -> list[TopicRecord]:
        """Return the records to write. A mode of None removes the subject's, or the registry's, own mode.

        Raises OperationNotPermitted for IMPORT where subjects exist already, unless `force`.
        """
        there = self.subjects() if subject is None else subject in self.subjects()
        if mode is Mode.IMPORT and self.mode(subject) is not Mode.IMPORT and there and not force:
            raise OperationNotPermitted("Cannot import since found existing subjects")
        return [_mode_record(subject, mode)]

    def _last_id_record(self, permanent: bool) -> list[TopicRecord]:
        return [TopicRecord(_json({"keytype": "NOOP", "magic": 0}), _json({"lastId": self._last_id}))] * permanent

    def _deletion(self, version: Version, permanent: bool) -> TopicRecord:
        if permanent:
            if not version.deleted:
                raise SubjectNotSoftDeleted(
                    f"Subject '{version.subject}' Version {version.version} was not deleted first "
                    "before being permanently deleted"
                )
            return TopicRecord(_schema_record(version).key, None)
        return _schema_record(replace(version, deleted=True))

    def _check_unused(self, version: Version) -> None:
        users = self.referring_to(version.subject, version.version)
        if users:
            raise ReferenceExists(
                f"version {version.version} of subject {version.subject!r} is used by the schemas "
                f"{', '.join(map(str, users))}"
            )


def _schema_record(version: Version) -> TopicRecord:
    key = {"keytype": "SCHEMA", "subject": version.subject, "version": version.version, "magic": 1}
    value = {**version.as_json(), "deleted": version.deleted}
    return TopicRecord(_json(key), _json(value))


def _mode_record(subject: str | None, mode: Mode | None) -> TopicRecord:
    key = _json({"keytype": "MODE", "subject": subject, "magic": 0})
    return TopicRecord(key, None if mode is None else _json({"subject": subject, "mode": mode.value}))


def _level_record(subject: str | None, level: Compatibility | None) -> TopicRecord:
    key = _json({"keytype": "CONFIG", "subject": subject, "magic": 0})
    return TopicRecord(key, None if level is None else _json({"subject": subject, "compatibilityLevel": level.value}))


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


#: A record that changes nothing. A registry writes it to take over the topic (see `appending`).
TAKEOVER = TopicRecord(_json({"keytype": _TAKEOVER, "magic": 0}), b"{}")
