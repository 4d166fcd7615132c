"""The values that the registry works with: schemas, references, versions, compatibility levels, comparisons.

Must not know: HTTP, brokers, what a schema means.
Source: Confluent Schema Registry API reference (levels, fields of a version).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from pylogd.services.registry.errors import InvalidCompatibility, InvalidRuleSet, InvalidSchema

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
#: The schema types of Confluent's registry.
KINDS: Final = (AVRO, JSON, PROTOBUF)


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
            raise InvalidCompatibility(
                "Invalid compatibility level. Valid values are none, backward, forward, full, "
                "backward_transitive, forward_transitive, and full_transitive"
            ) from None

    @property
    def transitive(self) -> bool:
        """Whether a new schema is compared with all earlier schemas, not only with the last one."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Whether the new schema must be able to read data written with earlier schemas."""
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether earlier schemas must be able to read data written with the new one."""
        return self.value.startswith(("FORWARD", "FULL"))


@dataclass(frozen=True, slots=True)
class Reference:
    """A version of another subject that a schema uses.

    name: the name in the schema: the full name of an Avro type, the URI of a JSON `$ref`, the file of a Protobuf
    import.
    """

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        """Return the reference as JSON, as in the API and in the topic."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


Identity = tuple[str, str, tuple[Reference, ...], str]


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema.

    text: JSON for Avro and JSON Schema; a `.proto` file for Protobuf.
    extras: the members `metadata` and `ruleSet` as JSON; "" if there are none.
    """

    text: str
    references: tuple[Reference, ...] = ()
    kind: str = AVRO
    extras: str = ""

    @property
    def identity(self) -> Identity:
        """A value that is equal for equal schemas, regardless of white space, comments and the order of attributes.

        Raises ValueError or RecursionError for a text that should be JSON and is not.
        """
        comparable = _strip_comments(self.text) if self.kind == PROTOBUF else _sorted(self.text)
        return self.kind, comparable, self.references, self.extras

    @property
    def guid(self) -> str:
        """An id of the schema that is the same in all registries and contexts (a UUID). Raises the errors of
        `identity`.
        """
        text = json.dumps([*self.identity[:2], [each.as_json() for each in self.references], self.extras])
        return str(UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest()))

    @property
    def contract(self) -> dict[str, Any]:
        """The schema's metadata and rules (`metadata`, `ruleSet`), if it has them."""
        found: dict[str, Any] = json.loads(self.extras) if self.extras else {}
        return found

    def members(self) -> dict[str, Any]:
        """Return a schema's members in the API and in the topic, without default values."""
        document: dict[str, Any] = {} if self.kind == AVRO else {"schemaType": self.kind}
        if self.references:
            document["references"] = [reference.as_json() for reference in self.references]
        document.update(self.contract)
        document["schema"] = self.text
        return document


@lru_cache(maxsize=256)
def _sorted(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


@lru_cache(maxsize=256)
def _strip_comments(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def extras_of(document: Mapping[str, Any]) -> str:
    """Return the metadata and rules of a request or a record, as JSON. Raises InvalidRuleSet for other values."""
    found = {name: contract_of(document, name) for name in ("metadata", "ruleSet") if document.get(name)}
    return json.dumps(found, sort_keys=True, separators=(",", ":")) if found else ""


def contract_of(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a document's metadata or rules by name. Raises InvalidRuleSet if their form is invalid."""
    found = document[name]
    if not isinstance(found, dict):
        raise InvalidRuleSet(f"{name} must be an object")
    for part, kind, items in _CONTRACT:
        value = found.get(part)
        if value is not None and not isinstance(value, kind):
            raise InvalidRuleSet(f"{name}: {part} must be {'an object' if kind is dict else 'a list'}")
        entries: list[Any] = value if isinstance(value, list) else []
        if items is not None and not all(isinstance(each, items) for each in entries):
            raise InvalidRuleSet(f"{name}: {part} must have {'objects' if items is dict else 'strings'}")
    return found


def references_of(document: Mapping[str, Any]) -> tuple[Reference, ...]:
    """Return the references of a request or a record. Raises KeyError, TypeError or ValueError."""
    return tuple(
        Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in document.get("references") or ()
    )


#: The parts of metadata and rules: name, type, and the type of the items of a list.
_CONTRACT: Final[tuple[tuple[str, type, type | None], ...]] = (
    ("tags", dict, None), ("properties", dict, None), ("sensitive", list, str),
    ("migrationRules", list, dict), ("domainRules", list, dict), ("encodingRules", list, dict),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject.

    deleted: whether it is soft-deleted.
    guid: the guid of the schema.
    """

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False
    guid: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the version as JSON, as in the API."""
        own = {"subject": self.subject, "version": self.version, "id": self.id, "guid": self.guid}
        return {**own, **self.schema.members()}


class Definition(NamedTuple):
    """A schema, and the name by which another schema refers to it. The last definition has the name ""."""

    name: str
    text: str


Definitions = tuple[Definition, ...]
#: Finds the subject and the schema that a reference in a subject's schema means.
Resolve = Callable[[str, Reference], tuple[str, Schema]]


def definitions_of(subject: str, schema: Schema, resolve: Resolve) -> Definitions:
    """Return all schemas that a schema of this subject refers to, directly or not, each once; and the schema itself
    last.

    Raises the errors of `resolve`, and InvalidSchema for a reference to a schema of another type.
    """
    found: dict[tuple[str, Reference], Definition] = {}

    def add(parent: str, references: Sequence[Reference]) -> None:
        for reference in references:
            name, used = resolve(parent, reference)
            if (name, reference) in found:
                continue
            if used.kind != schema.kind:
                raise InvalidSchema(
                    f"Invalid schema: reference {reference.name!r} is a schema of type {used.kind}, not {schema.kind}"
                )
            add(name, used.references)
            found[name, reference] = Definition(reference.name, used.text)

    add(subject, schema.references)
    return (*dict.fromkeys(found.values()), Definition("", schema.text))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new schema and the earlier schemas with which it must be compatible.

    earlier: pairs of a version and its definitions.
    """

    kind: str
    level: Compatibility
    new: Definitions
    earlier: tuple[tuple[int, Definitions], ...]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record to write to the topic, in JSON. A value of None deletes the key."""

    key: bytes
    value: bytes | None


class NotCompared(Exception):
    """A schema can't be registered before `comparison` has found it compatible."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        super().__init__("the schema was not compared with the subject's present versions")
