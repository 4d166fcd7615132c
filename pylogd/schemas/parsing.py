"""Parse and compare Avro schemas, and check their compatibility.

Strategy: `fastavro` decides whether a text is a valid schema, Apache Avro's own checker whether two are compatible.
Two texts are the same schema if their JSON is equal, regardless of white space and the order of attributes.
`check` and `compare` take and return plain values, so that they can run in another process.
Must not know: subjects, how schemas are stored.
Source: Avro 1.12 specification, "Schema Resolution"; Confluent Schema Registry API reference (levels).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
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
        return _normalized(self.text), self.references


@lru_cache(maxsize=64)
def _normalized(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


Resolve = Callable[[Reference], Schema]


def read_schema(text: object, kind: object, references: Sequence[Reference]) -> Schema:
    """Return the schema in a request. Whether it is valid Avro is for `check`, which may take long.

    kind: the schema type of the request, None for Avro. Raises InvalidSchema if the text is not JSON, nor a name.
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
    try:
        return Schema(json.dumps(document, separators=(",", ":")), tuple(references))
    except RecursionError as error:
        raise InvalidSchema("not an Avro schema: it is nested too deeply") from error


def definitions(schema: Schema, resolve: Resolve) -> tuple[str, ...]:
    """Return the texts of all schemas that a schema refers to, directly or not, each once, and last its own."""
    found: dict[tuple[str, int], Schema] = {}

    def add(references: Sequence[Reference]) -> None:
        for reference in references:
            key = reference.subject, reference.version
            if key not in found:
                used = resolve(reference)
                add(used.references)
                found[key] = used

    add(schema.references)
    return (*(used.text for used in found.values()), schema.text)


def check(texts: Sequence[str]) -> None:
    """Check that the last of these definitions is valid Avro, with those before it. Raises InvalidSchema.

    It can take time and memory that grow exponentially with the schema: call it in a process with limits.
    """
    named: dict[str, Any] = {}
    try:
        for text in texts:
            parse_schema(json.loads(text), named_schemas=named)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"not an Avro schema: {error or type(error).__name__}") from error
    _as_avro(texts)


def _as_avro(texts: Sequence[str]) -> avro.schema.Schema:
    names = avro.name.Names()
    try:
        for text in texts:
            made = avro.schema.make_avsc_object(json.loads(text), names)
    except (avro.errors.AvroException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"not an Avro schema: {error}") from error
    return made


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new schema and the earlier ones it must be compatible with, as definitions.

    earlier: pairs of a version and its definitions.
    """

    level: Compatibility
    new: tuple[str, ...]
    earlier: tuple[tuple[int, tuple[str, ...]], ...]


def compare(comparison: Comparison) -> list[str]:
    """Return why a new schema is incompatible with earlier ones; empty if it is compatible.

    It can take time and memory that grow exponentially with the schemas: call it in a process with limits.
    """
    level = comparison.level
    mine = _as_avro(comparison.new)
    reasons = []
    for version, texts in comparison.earlier:
        theirs = _as_avro(texts)
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
    locations = list(result.locations or ()) or ["/"]
    reasons = list(result.messages or ()) or [kind.value for kind in result.incompatibilities]
    return [f"{why} (at {', '.join(sorted(locations))})" for why in sorted(reasons)]
