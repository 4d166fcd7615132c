"""Parse and compare Avro schemas, and check their compatibility.

Strategy: `fastavro` decides whether a text is a valid schema, Apache Avro's own checker whether two are compatible.
Two texts are the same schema if their JSON is equal, regardless of white space and the order of attributes.
Must not know: subjects, how schemas are stored.
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
    """A compatibility level: which earlier schemas a new one must be compatible with, and in which direction."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @classmethod
    def named(cls, name: object) -> Compatibility:
        """Return the level of that name, in any case. Raises InvalidCompatibility."""
        try:
            return cls(str(name).upper())
        except ValueError:
            names = ", ".join(level.value for level in cls)
            raise InvalidCompatibility(f"unknown compatibility level {name!r}: use one of {names}") from None

    @property
    def transitive(self) -> bool:
        """Whether a new schema is compared with all earlier ones, not only with the last."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Whether the new schema must be able to read data written with earlier ones."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether earlier schemas must be able to read data written with the new one."""
        return self.value.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True)
class Reference:
    """A named type that a schema uses and that another subject's schema defines."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        """Return the reference as JSON, as in the API and in the topic."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema: its text as compact JSON, and its references."""

    text: str
    references: tuple[Reference, ...] = ()

    @property
    def identity(self) -> tuple[str, tuple[Reference, ...]]:
        """A value that is equal for equal schemas, regardless of white space and the order of attributes."""
        return json.dumps(json.loads(self.text), sort_keys=True), self.references


Resolve = Callable[[Reference], Schema]


def read_schema(text: object, kind: object, references: Sequence[Reference], resolve: Resolve) -> Schema:
    """Return the schema in `text`, which must be valid Avro. Raises InvalidSchema.

    kind: the schema type of the request, None for Avro. resolve: returns the schema that a reference names.
    """
    if kind not in (None, AVRO):
        raise InvalidSchema(f"schema type {kind!r} is not supported; only {AVRO} is")
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchema("the schema must be a string, and not empty")
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise InvalidSchema("not an Avro schema: it is nested too deeply") from error
    except ValueError:
        document = text.strip()  # a primitive type may be given without quotes
    schema = Schema(json.dumps(document, separators=(",", ":")), tuple(references))
    parse(schema, resolve)
    as_avro(schema, resolve)
    return schema


def parse(schema: Schema, resolve: Resolve) -> Any:
    """Return the schema as fastavro's parsed schema. Raises InvalidSchema."""
    named: dict[str, Any] = {}
    try:
        for used in with_references(schema, resolve):
            parsed = parse_schema(json.loads(used.text), named_schemas=named)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"not an Avro schema: {error or type(error).__name__}") from error
    return parsed


def as_avro(schema: Schema, resolve: Resolve) -> avro.schema.Schema:
    """Return the schema as an object of Apache Avro's library. Raises InvalidSchema."""
    names = avro.name.Names()
    try:
        for used in with_references(schema, resolve):
            made = avro.schema.make_avsc_object(json.loads(used.text), names)
    except (avro.errors.AvroException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"not an Avro schema: {error}") from error
    return made


def with_references(schema: Schema, resolve: Resolve) -> list[Schema]:
    """Return all schemas that the schema refers to, directly or not, each once, and last the schema itself."""
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
    """Return why `new` is incompatible with a subject's earlier schemas; empty if it is compatible.

    `earlier`: the subject's schemas by version.
    """
    versions = sorted(earlier)
    if not level.transitive:
        versions = versions[-1:]
    if level is Compatibility.NONE or not versions:
        return []
    mine = as_avro(new, resolve)
    reasons = []
    for version in versions:
        theirs = as_avro(earlier[version], resolve)
        if level.backward:
            reasons += [f"it can't read data of version {version}: {why}" for why in _conflicts(mine, theirs)]
        if level.forward:
            reasons += [f"version {version} can't read its data: {why}" for why in _conflicts(theirs, mine)]
    return reasons


def _conflicts(reader: avro.schema.Schema, writer: avro.schema.Schema) -> list[str]:
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(reader, writer)
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    places = list(result.locations or ()) or ["/"]
    reasons = list(result.messages or ()) or [kind.value for kind in result.incompatibilities]
    return [f"{why} (at {', '.join(sorted(places))})" for why in sorted(reasons)]
