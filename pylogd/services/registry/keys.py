"""The keys of the schemas topic: find keys with the same meaning and different bytes.

Compaction compares bytes: `{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}` and the same with blanks, or in
another order, are two keys, and a tombstone for one key does not remove the record of the other. Other registries, and
other versions of them, write keys differently. So a permanent deletion has to write a tombstone for each key in the
topic that means the deleted thing. Must not know: what values mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pylogd.services.registry.contexts import normalized
from pylogd.services.registry.model import TopicRecord

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
