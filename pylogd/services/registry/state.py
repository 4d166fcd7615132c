"""The registry's state: subjects and their versions, schemas by id, settings, modes, contexts.

Strategy: the state is the result of applying all records of one topic in order, so every process that reads the topic
has the same state. Keys and values have the format of Confluent's registry, whose topic can be taken over.

Rules:
- Each context gives its own ids. An id belongs to one schema as long as a version has it, and is not given again.
- When a version is deleted permanently, the largest ids so far are written too, because compaction removes the
  version's own record.
- A deletion writes tombstones for all keys with the same meaning, whatever bytes other programs wrote (`completed`).
- A record that can't be decoded is skipped. Ids that are found in it are not given to other schemas. Must not know:
  HTTP, brokers, which changes are allowed.

Compaction compares bytes: `{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}` and the same with blanks, or in
another order, are two keys, and a tombstone for one key does not remove the record of the other. Other registries, and
other versions of them, write keys differently. So a permanent deletion has to write a tombstone for each key in the
topic that means the deleted thing.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pylogd.services.registry.contexts import DEFAULT, context_of, normalized
from pylogd.services.registry.errors import RegistryError
from pylogd.services.registry.model import AVRO, Identity, Schema, TopicRecord, Version, extras_of, references_of
from pylogd.services.registry.settings import Mode, Settings

_log = logging.getLogger(__name__)

#: The kind of a record, and the other values that distinguish its key.
KeyIdentity = tuple[str, str | None, int]


def identity_of(name: Any) -> KeyIdentity | None:
    """Return the meaning of a key (a JSON document); None for kinds that are not deleted. Raises if it is malformed."""
    kind, subject = name["keytype"], name.get("subject")
    if kind == "SCHEMA":
        return kind, normalized(subject), int(name["version"])
    if kind in ("CONFIG", "MODE"):
        return kind, subject, 0
    return (kind, str(name["context"]), 0) if kind == "CONTEXT" else None


class RecordKeys:
    """The keys of the topic that have a value, by their meaning."""

    def __init__(self) -> None:
        self._live: dict[KeyIdentity, set[bytes]] = {}
        self._left: set[KeyIdentity] = set()  # deletions that wrote a tombstone for only one of the keys

    def note(self, identity: KeyIdentity, key: bytes, *, deleted: bool) -> None:
        """Record the topic's next record."""
        keys = self._live.setdefault(identity, set())
        if not deleted:
            keys.add(key)
            self._left.discard(identity)
            return
        keys.discard(key)
        if keys:
            self._left.add(identity)
        else:
            del self._live[identity]
            self._left.discard(identity)

    def tombstones(self, records: Iterable[TopicRecord]) -> list[TopicRecord]:
        """Return the tombstones that the records of a change need for other keys with the same meaning.

        They include keys that an earlier deletion left.
        """
        written: set[KeyIdentity] = set()
        deleted = set(self._left)
        for record in records:
            identity = identity_of(json.loads(record.key))
            if identity is not None:
                (deleted.add if record.value is None else written.add)(identity)
        own = {record.key for record in records}
        keys = {key for identity in deleted - written for key in self._live.get(identity, ())}
        return [TopicRecord(key, None) for key in sorted(keys - own)]


MAX_NUMBER: Final = 2**31 - 1  # the largest version, and the largest id, which has four bytes in messages
_TAKEOVER: Final = "WRITER"
_IGNORED: Final = frozenset({"DELETE_SUBJECT", "CLEAR_SUBJECT", "ASSOC", _TAKEOVER})
_IDS: Final = re.compile(rb'"id"\s*:\s*(\d{1,10})(?!\d)')


class RegistryState:
    """The state described above."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, Version]] = {}
        self.uses: dict[tuple[str, int], dict[tuple[str, int], Version]] = {}  # by context and id
        self.guids: dict[str, dict[tuple[str, int], Version]] = {}  # by guid, then by context and id
        self.ids: dict[tuple[str, Identity], int] = {}
        self.settings: dict[str | None, Settings] = {}
        self.modes: dict[str | None, Mode] = {}
        self.last_versions: dict[str, int] = {}  # the largest version so far, by subject
        self.last_ids: dict[str, int] = {}  # the largest id so far, by context
        self.contexts: set[str] = set()
        self._keys = RecordKeys()

    def completed(self, records: list[TopicRecord]) -> list[TopicRecord]:
        """Return the records of a change, with tombstones for all keys of the deleted things (`RecordKeys`)."""
        return [*self._keys.tombstones(records), *records] if records else []

    def apply(self, key: bytes | None, value: bytes | None, offset: int = -1) -> None:
        """Apply the topic's next record, which is at `offset`. A record that can't be decoded is logged and skipped."""
        try:
            self._apply(key, value, offset)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, RegistryError) as error:
            for found in _IDS.findall(value or b""):
                if int(found) < MAX_NUMBER:
                    self._note_id(DEFAULT, int(found))
            _log.warning(
                "skipping the record at offset %d of the schemas topic, which can't be decoded: key %.200r: %s",
                offset, key, str(error) or type(error).__name__,
            )  # fmt: skip

    def _apply(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        name = json.loads(key or b"")
        kind = name["keytype"]
        identity = identity_of(name)
        if identity is not None:
            self._keys.note(identity, key or b"", deleted=value is None)
        document = None if value is None else json.loads(value)
        subject = name.get("subject")
        if not isinstance(subject, str | None) or (subject is None and kind in ("SCHEMA", "DELETE_SUBJECT")):
            raise ValueError("the subject is not a string")
        if kind == "SCHEMA":
            self._apply_schema(subject or "", int(name["version"]), document, offset)
        elif kind == "CONFIG":
            self._apply_settings(subject, document)
        elif kind == "MODE":
            self._apply_mode(subject, document)
        elif kind == "CONTEXT":
            change = self.contexts.discard if document is None else self.contexts.add
            change(str(name["context"]))
        elif kind == "DELETE_SUBJECT" and document is not None:
            for version in list(self.subjects.get(subject or "", {}).values()):
                if version.version <= int(document["version"]):
                    self._put(replace(version, deleted=True))
        elif kind == "NOOP":
            self._apply_last_ids(document or {})
        elif kind not in _IGNORED:
            raise ValueError(f"unknown key type {kind!r}")

    def _apply_schema(self, subject: str, number: int, document: Mapping[str, Any] | None, offset: int) -> None:
        subject = normalized(subject)
        if document is None:
            self._remove(subject, number)
            return
        schema = Schema(
            str(document["schema"]), references_of(document), str(document.get("schemaType") or AVRO),
            extras_of(document),
        )  # fmt: skip
        version = Version(
            subject, number, int(document["id"]), schema, bool(document.get("deleted")),
            str(document.get("guid") or schema.guid),
        )  # fmt: skip
        context = context_of(subject)
        named = next(iter(self.uses.get((context, version.id), {}).values()), None)
        if named is not None and named.schema.identity != schema.identity:
            _log.error(
                "the record at offset %d of the schemas topic gives id %d to a second schema (%s version %d); id %d "
                "keeps the first. Another program writes to the topic without coordinating with this registry: stop it",
                offset, version.id, subject, number, version.id,
            )  # fmt: skip
        self._put(version)

    def _put(self, version: Version) -> None:
        subject, number, context = version.subject, version.version, context_of(version.subject)
        identity = version.schema.identity  # raises for an invalid schema, before anything has changed
        before = self.subjects.get(subject, {}).get(number)
        if before is not None and before.id != version.id:
            self._remove(subject, number)
        self.subjects.setdefault(subject, {})[number] = version
        self.last_versions[subject] = max(self.last_versions.get(subject, 0), number)
        self.uses.setdefault((context, version.id), {})[subject, number] = version
        self.guids.setdefault(version.guid, {})[context, version.id] = version
        self._note_id(context, version.id)
        self.ids.setdefault((context, identity), version.id)
        if context != DEFAULT:
            self.contexts.add(context)

    def _remove(self, subject: str, number: int) -> None:
        versions = self.subjects.get(subject, {})
        version = versions.pop(number, None)
        if version is None:
            return
        if not versions:
            del self.subjects[subject]
        context = context_of(subject)
        uses = self.uses[context, version.id]
        del uses[subject, number]
        if not uses:
            del self.uses[context, version.id]
            self.guids[version.guid].pop((context, version.id), None)
            if self.ids.get((context, version.schema.identity)) == version.id:
                del self.ids[context, version.schema.identity]

    def _apply_settings(self, subject: str | None, document: Mapping[str, Any] | None) -> None:
        if document is None:
            self.settings.pop(subject, None)
        else:
            self.settings[subject] = Settings().changed(document, "compatibilityLevel")

    def _apply_mode(self, subject: str | None, document: Mapping[str, Any] | None) -> None:
        if document is None:
            self.modes.pop(subject, None)
        else:
            self.modes[subject] = Mode.named(document["mode"])

    def _apply_last_ids(self, document: Mapping[str, Any]) -> None:
        self._note_id(DEFAULT, int(document.get("lastId", 0)))
        for context, last in document.get("lastIds", {}).items():
            self._note_id(str(context), int(last))

    def _note_id(self, context: str, schema_id: int) -> None:
        self.last_ids[context] = max(self.last_ids.get(context, 0), schema_id)

    def all_versions(self) -> Iterator[Version]:
        return (version for versions in self.subjects.values() for version in versions.values())

    def last_ids_record(self) -> TopicRecord:
        """Return the record of the largest ids that were given."""
        last = {context: last for context, last in self.last_ids.items() if context != DEFAULT}
        document: dict[str, Any] = {"lastId": self.last_ids.get(DEFAULT, 0)}
        return TopicRecord(
            as_bytes({"keytype": "NOOP", "magic": 0}), as_bytes(document | ({"lastIds": last} if last else {}))
        )


def schema_record(version: Version) -> TopicRecord:
    """Return the record of a version."""
    key = {"keytype": "SCHEMA", "subject": version.subject, "version": version.version, "magic": 1}
    return TopicRecord(as_bytes(key), as_bytes({**version.as_json(), "deleted": version.deleted}))


def context_record(context: str, *, deleted: bool = False) -> TopicRecord:
    """Return the record of a context."""
    document = {"tenant": "default", "context": context}
    return TopicRecord(
        as_bytes({"keytype": "CONTEXT", **document, "magic": 0}), None if deleted else as_bytes(document)
    )


def mode_record(subject: str | None, mode: Mode | None) -> TopicRecord:
    """Return the record of a mode; None removes the mode."""
    key = as_bytes({"keytype": "MODE", "subject": subject, "magic": 0})
    return TopicRecord(key, None if mode is None else as_bytes({"subject": subject, "mode": mode.value}))


def settings_record(subject: str | None, settings: Settings | None) -> TopicRecord:
    """Return the record of settings; None removes the settings."""
    key = as_bytes({"keytype": "CONFIG", "subject": subject, "magic": 0})
    if settings is None:
        return TopicRecord(key, None)
    return TopicRecord(key, as_bytes({"subject": subject, **settings.as_json("compatibilityLevel")}))


def as_bytes(document: Mapping[str, Any]) -> bytes:
    """Return compact JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


#: A record that changes nothing. A registry writes it to take over the topic (see `store`).
TAKEOVER: Final = TopicRecord(as_bytes({"keytype": _TAKEOVER, "magic": 0}), b"{}")
