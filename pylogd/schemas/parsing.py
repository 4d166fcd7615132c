"""Avro schemas as text and as what they say: parsed, compared, checked against each other.

Strategy: `fastavro` says whether a text is a schema; the compatibility of two is Apache Avro's own checker's to judge.
Two texts are the same schema if their JSON is the same, whatever the spaces and the order of attributes.
Must not know: subjects, where schemas are kept.
Source: Avro 1.12 specification, "Schema Resolution"; Confluent Schema Registry API reference (levels).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import avro.errors
import avro.name
import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from pylogd.schemas.errors import InvalidCompatibility, InvalidSchema

AVRO = "AVRO"


class Compatibility(Enum):
    """Which of a subject's earlier schemas a new one has to go with, and which way."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @classmethod
    def named(cls, name: object) -> Compatibility:
        """The level of that name, in any case; `InvalidCompatibility`."""
        try:
            return cls(str(name).upper())
        except ValueError:
            names = ", ".join(level.value for level in cls)
            raise InvalidCompatibility(f"no compatibility level {name!r}; there are {names}") from None

    @property
    def transitive(self) -> bool:
        """Whether all earlier schemas count, not only the last."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Whether the new schema has to read what earlier ones wrote."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether earlier schemas have to read what the new one writes."""
        return self.value.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True)
class Reference:
    """A named type of another subject's schema that a schema uses."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        """As the API and the topic have it."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema's text in compact JSON, and what it refers to."""

    text: str
    references: tuple[Reference, ...] = ()

    @property
    def identity(self) -> tuple[str, tuple[Reference, ...]]:
        """Equal for the same schema however it was written."""
        return json.dumps(json.loads(self.text), sort_keys=True), self.references


Resolve = Callable[[Reference], Schema]


def read_schema(text: object, kind: object, references: Sequence[Reference], resolve: Resolve) -> Schema:
    """The schema in `text`; `InvalidSchema` says why it is none."""
    if kind not in (None, AVRO):
        raise InvalidSchema(f"schemas of type {kind!r} are not known here: {AVRO} is")
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchema("a schema is a text")
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise InvalidSchema("not an Avro schema: it is nested too deeply") from error
    except ValueError:
        document = text.strip()  # a primitive type may come without quotes
    schema = Schema(json.dumps(document, separators=(",", ":")), tuple(references))
    parse(schema, resolve)
    judged(schema, resolve)
    return schema


def parse(schema: Schema, resolve: Resolve) -> Any:
    """The schema as `fastavro` reads and writes by it."""
    named: dict[str, Any] = {}
    try:
        for used in in_order(schema, resolve):
            parsed = parse_schema(json.loads(used.text), named_schemas=named)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"not an Avro schema: {error or type(error).__name__}") from error
    return parsed


def judged(schema: Schema, resolve: Resolve) -> avro.schema.Schema:
    """The schema as the compatibility checker takes it."""
    names = avro.name.Names()
    try:
        for used in in_order(schema, resolve):
            made = avro.schema.make_avsc_object(json.loads(used.text), names)
    except (avro.errors.AvroException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"not an Avro schema: {error}") from error
    return made


def in_order(schema: Schema, resolve: Resolve) -> list[Schema]:
    """The schema, after all that it refers to, each once."""
    found: dict[tuple[str, int], Schema] = {}

    def add(references: Sequence[Reference]) -> None:
        for reference in references:
            key = reference.subject, reference.version
            if key not in found:
                used = resolve(reference)
                add(used.references)
                found[key] = used

    add(schema.references)
    return [*found.values(), schema]


def incompatibilities(new: Schema, earlier: Mapping[int, Schema], level: Compatibility, resolve: Resolve) -> list[str]:
    """Why `new` may not follow the subject's `earlier` schemas, which are by version; nothing if it may."""
    versions = sorted(earlier)
    if not level.transitive:
        versions = versions[-1:]
    if level is Compatibility.NONE or not versions:
        return []
    mine = judged(new, resolve)
    reasons = []
    for version in versions:
        theirs = judged(earlier[version], resolve)
        if level.backward:
            reasons += [f"it can't read what version {version} wrote: {why}" for why in _conflicts(mine, theirs)]
        if level.forward:
            reasons += [f"version {version} can't read what it writes: {why}" for why in _conflicts(theirs, mine)]
    return reasons


def _conflicts(reader: avro.schema.Schema, writer: avro.schema.Schema) -> list[str]:
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(reader, writer)
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    places = list(result.locations or ()) or ["/"]
    reasons = list(result.messages or ()) or [kind.value for kind in result.incompatibilities]
    return [f"{why} (at {', '.join(sorted(places))})" for why in sorted(reasons)]
