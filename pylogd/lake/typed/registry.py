"""Get schemas by their ids from a registry, with the schemas that they refer to.

Strategy: the schema of an id never changes, so it is requested once. A schema that the registry does not have is
requested again, since it may be registered later; it raises `UnknownSchema`. Failures of the registry are retried and
then raised, because a message must not go to the quarantine while a registry is down. Protobuf schemas are requested as
descriptors (`format=serialized`, like Confluent's clients), so that no compiler is needed.

Blocking, without Twisted: it runs in Spark's executors too.
Source: Confluent Schema Registry API reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pylogd.client.registry.api_client import RegistryApi, SchemaRegistryError, path_of
from pylogd.lake.typed.errors import UnknownSchema

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
_SERIALIZED: Final[Mapping[str, str]] = {"format": "serialized"}
#: Seconds before a failed request is retried.
_PAUSES: Final = (0.2, 1.0)
_MOST_REFERENCES: Final = 1_000

#: The id of a schema: a number, or a GUID in text.
SchemaId = int | str


@dataclass(frozen=True, slots=True)
class Definition:
    """A schema that another schema refers to: the name in the reference, and the text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered schema.

    kind: "AVRO", "JSON" or "PROTOBUF".
    text: JSON, or a Protobuf file descriptor in base64.
    references: all schemas that it refers to, directly or not, each after its own references.
    """

    kind: str
    text: str
    references: tuple[Definition, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject, and the id of its schema."""

    number: int
    schema_id: int


class SchemaLookup:
    """The schemas of a registry.

    sleep: waits for a number of seconds.
    """

    def __init__(self, api: RegistryApi, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = api
        self._sleep = sleep
        self._known: dict[SchemaId, Registered] = {}
        self._ids: dict[tuple[str, int], int] = {}

    def schema(self, schema_id: SchemaId) -> Registered:
        """Return the schema with an id or GUID. Raises UnknownSchema or SchemaRegistryError."""
        if schema_id not in self._known:
            self._known[schema_id] = self._fetch(schema_id)
        return self._known[schema_id]

    def add(self, schemas: Mapping[SchemaId, Registered]) -> None:
        """Record schemas that are known already, by id."""
        self._known.update(schemas)

    def versions(self, subject: str) -> list[Version]:
        """Return the undeleted versions of a subject, the oldest first; none if it does not exist.

        Raises SchemaRegistryError.
        """
        path = path_of("subjects", subject, "versions")
        found = []
        try:
            numbers = sorted(self._ask(path))
        except SchemaRegistryError as error:
            if _is_missing(error):
                return []
            raise
        for number in numbers:
            if (subject, number) not in self._ids:
                self._ids[subject, number] = int(self._ask(path + path_of(number))["id"])
            found.append(Version(number, self._ids[subject, number]))
        return found

    def _fetch(self, schema_id: SchemaId) -> Registered:
        path = path_of("schemas", "ids" if isinstance(schema_id, int) else "guids", schema_id)
        try:
            document = self._ask(path)
        except SchemaRegistryError as error:
            if _is_missing(error):
                raise UnknownSchema(f"the registry has no schema with the id {schema_id}") from error
            raise
        kind = document.get("schemaType") or AVRO
        if kind == PROTOBUF:
            document = self._ask(path, _SERIALIZED)
        named: dict[str, Definition] = {}
        self._add_references(document, kind, named)
        return Registered(kind, document["schema"], tuple(named.values()))

    def _add_references(self, document: Mapping[str, Any], kind: str, named: dict[str, Definition]) -> None:
        for used in document.get("references") or ():
            name = used["name"]
            if name in named:
                continue
            if len(named) >= _MOST_REFERENCES:
                raise SchemaRegistryError(f"a schema refers to more than {_MOST_REFERENCES} others")
            query = {"deleted": "true", **(_SERIALIZED if kind == PROTOBUF else {})}
            found = self._ask(path_of("subjects", used["subject"], "versions", used["version"]), query)
            self._add_references(found, kind, named)
            named.setdefault(name, Definition(name, found["schema"]))

    def _ask(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        for pause in _PAUSES:
            try:
                return self._api.ask(path, query=query)
            except SchemaRegistryError as error:
                if not _may_pass(error):
                    raise
            self._sleep(pause)
        return self._api.ask(path, query=query)


def _is_missing(error: SchemaRegistryError) -> bool:
    return _status(error) == 404


def _may_pass(error: SchemaRegistryError) -> bool:
    """Return whether a retry may succeed: the registry could not be reached, or failed."""
    return error.code == 0 or _status(error) >= 500


def _status(error: SchemaRegistryError) -> int:
    """Return the HTTP status of an error: the first three digits of the registry's code."""
    return int(str(error.code)[:3])
