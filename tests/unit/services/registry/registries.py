"""A registry whose topic is a list, for tests, and schemas for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pylogd.services.registry.checking import given_schema
from pylogd.services.registry.formats import compare, format_of
from pylogd.services.registry.model import AVRO, Reference, Schema, TopicRecord
from pylogd.services.registry.registry import Registry


def record_of(*fields: dict[str, Any], name: str = "Flight") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


CARRIER = {"name": "carrier", "type": "string"}
DELAY = {"name": "delay", "type": "int"}
DELAY_DEFAULT = {**DELAY, "default": 0}


def read(
    registry: Registry, text: object, kind: object = None, references: Sequence[Reference] = (), **extras: object
) -> Schema:
    """Return the schema of a request, checked."""
    document = {"schema": text, "schemaType": kind, "references": [each.as_json() for each in references]}
    schema = given_schema({**document, **extras})
    text = format_of(schema.kind).canonical(registry.lookups.definitions("", schema), normalize=False)
    return Schema(text, schema.references, schema.kind, schema.extras)


def conflicts(registry: Registry, subject: str, schema: Schema, which: str | None = None) -> list[str]:
    """Return why a schema is incompatible with the subject's versions."""
    comparison = registry.lookups.comparison(subject, schema, which)
    return [] if comparison is None else compare(comparison)


class Fixture:
    """A registry whose topic is a list."""

    def __init__(self) -> None:
        self.topic: list[TopicRecord] = []
        self.registry = Registry()

    def write(self, records: list[TopicRecord]) -> None:
        for record in self.registry.state.completed(records):
            self.topic.append(record)
            self.registry.state.apply(record.key, record.value)

    def register(
        self, subject: str, text: str, *references: Reference, kind: str = AVRO, number: int | None = None,
        **extras: object,
    ) -> int:  # fmt: skip
        """Return the id. number: the version that is asked for."""
        schema = read(self.registry, text, kind, references, **extras)
        passed = self.registry.lookups.comparison(subject, schema)
        assert passed is None or not compare(passed)
        version, records = self.registry.register(subject, schema, number=number, passed=passed)
        self.write(records)
        return version.id

    def set_level(self, subject: str | None, level: str) -> None:
        self.write(self.registry.change_settings(subject, {"compatibility": level})[1])

    def compacted(self) -> Registry:
        """Return a registry that has read the topic after a compaction."""
        latest = {record.key: record for record in self.topic}
        kept = [record for record in self.topic if latest[record.key] is record and record.value is not None]
        fresh = Registry()
        for record in kept:
            fresh.state.apply(record.key, record.value)
        return fresh
