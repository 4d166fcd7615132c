"""Divide a JSON Schema into nodes that can be compared: one for each type of value and each condition.

Strategy: a schema with several kinds of conditions (a type, an enumeration, `anyOf`, ...) becomes a node of kind ALL
over one node for each, as in Confluent's registry. A list of types becomes a node of kind ANY. References are followed
when a node is requested. Each schema object has one node, so recursive schemas are finite graphs.
Source: JSON Schema drafts 4, 6, 7, 2019-09 and 2020-12.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pylogd.services.registry.errors import InvalidSchema


class Kind(Enum):
    """The kinds of conditions of a node on a value."""

    TRUE = "anything"
    FALSE = "nothing"
    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    OBJECT = "object"
    ARRAY = "array"
    ENUM = "enum"
    CONST = "const"
    NOT = "not"
    IF = "if"
    ALL = "allOf"
    ANY = "anyOf"
    ONE = "oneOf"


COMBINED: Final = frozenset({Kind.ALL, Kind.ANY, Kind.ONE})
_TYPES: Final = {
    "string": Kind.STRING,
    "number": Kind.NUMBER,
    "integer": Kind.NUMBER,
    "boolean": Kind.BOOLEAN,
    "null": Kind.NULL,
    "object": Kind.OBJECT,
    "array": Kind.ARRAY,
}
#: Keywords that concern values of one type.
_KEYWORDS: Final[Mapping[Kind, frozenset[str]]] = {
    Kind.STRING: frozenset({"minLength", "maxLength", "pattern"}),
    Kind.NUMBER: frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    Kind.OBJECT: frozenset(
        {
            "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
            "dependencies", "dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedProperties",
        }
    ),
    Kind.ARRAY: frozenset(
        {
            "items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems",
            "contains", "minContains", "maxContains",
        }
    ),
}  # fmt: skip
_CONDITIONS: Final = ("enum", "const", "not", "if", "allOf", "anyOf", "oneOf")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_MOST_REFERENCES: Final = 100


@dataclass(eq=False)
class Node:
    """A condition.

    schema: the object from which it was made.
    typed: whether other types of values are refused.

    integer: whether a number must be whole.
    parts: the nodes of a combination.
    """

    schemas: JsonSchemas
    resolver: Any
    kind: Kind
    schema: Mapping[str, Any]
    typed: bool = False
    integer: bool = False
    parts: tuple[Node, ...] = ()

    def child(self, schema: Any) -> Node:
        """Return the node of a schema inside this one."""
        return self.schemas.node(schema, self.resolver)

    def number(self, keyword: str) -> float | None:
        """Return a numeric keyword; None if it is absent. Draft 4's exclusive limits are read like those of later
        drafts.
        """
        value = self.schema.get(keyword)
        if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            return self.schema.get(keyword[9:].lower()) if value else None
        if keyword in ("minimum", "maximum") and self.schema.get("exclusive" + keyword.capitalize()) is True:
            return None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None


class JsonSchemas:
    """A schema and the schemas that it refers to.

    unresolvable: the class of the resolver's error.
    """

    def __init__(self, resolver: Any, document: Any, unresolvable: type[Exception]) -> None:
        self._resolver = resolver
        self._document = document
        self._unresolvable = unresolvable
        self._nodes: dict[int, Node] = {}
        self._kept: list[Any] = []  # keeps objects, so that their ids stay unique

    def root(self) -> Node:
        """Return the node of the schema. Raises InvalidSchema for a reference that can't be found."""
        return self.node(self._document, self._resolver)

    def check(self) -> None:
        """Follow all references. Raises InvalidSchema for one that can't be found."""
        self._check(self._document, self._resolver, set())

    def _check(self, schema: Any, resolver: Any, seen: set[int]) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._check(each, resolver, seen)
        if not isinstance(schema, dict) or id(schema) in seen:
            return
        seen.add(id(schema))
        if isinstance(schema.get("$id", schema.get("id")), str):
            resolver = resolver.in_subresource(_resource(resolver, schema))
        for keyword in _REFERENCES:
            if isinstance(schema.get(keyword), str):
                found = self._lookup(resolver, schema[keyword])
                self._check(found.contents, found.resolver, seen)
        for keyword, value in schema.items():
            if keyword not in ("enum", "const", "default", "examples"):
                named = keyword == "properties" and isinstance(value, dict)
                self._check(list(value.values()) if named else value, resolver, seen)

    def node(self, schema: Any, resolver: Any) -> Node:
        """Return the node of a schema.

        resolver: the resolver for the base URI at its place.

        Raises InvalidSchema.
        """
        for _ in range(_MOST_REFERENCES):
            if not isinstance(schema, dict):
                break
            found = self._nodes.get(id(schema))
            if found is not None:
                return found
            if "$id" in schema:
                resolver = resolver.in_subresource(_resource(resolver, schema))
            target = next((schema[name] for name in _REFERENCES if isinstance(schema.get(name), str)), None)
            if target is None or len(self._conditions(schema)) > 0:
                break
            referred = self._lookup(resolver, target)
            schema, resolver = referred.contents, referred.resolver
        else:
            raise InvalidSchema("Invalid schema of type JSON, details: its references form a circle")
        return self._made(schema, resolver)

    def _made(self, schema: Any, resolver: Any) -> Node:
        if schema is True or schema is False:
            return Node(self, resolver, Kind.TRUE if schema else Kind.FALSE, {})
        node = Node(self, resolver, Kind.ALL, schema)
        self._kept.append(schema)
        self._nodes[id(schema)] = node  # before its parts, which may refer to this node
        parts = list(self._parts(schema, resolver))
        if len(parts) == 1:
            only = parts[0]
            node.kind, node.typed, node.integer, node.parts = only.kind, only.typed, only.integer, only.parts
            node.schema = only.schema
        elif not parts:
            node.kind = Kind.TRUE
        else:
            node.parts = tuple(parts)
        return node

    def _conditions(self, schema: Mapping[str, Any]) -> list[str]:
        """Return the keywords beside a reference that have a meaning; before 2019-09 there are none."""
        if not any(name in schema for name in _REFERENCES):
            return []
        known = frozenset().union(*_KEYWORDS.values(), _CONDITIONS, ("type",))
        return [name for name in schema if name in known] if self._siblings() else []

    def _siblings(self) -> bool:
        dialect = self._document.get("$schema", "") if isinstance(self._document, dict) else ""
        return any(draft in str(dialect) for draft in ("2019-09", "2020-12"))

    def _parts(self, schema: Mapping[str, Any], resolver: Any) -> Iterator[Node]:
        types = schema.get("type")
        if isinstance(types, str):
            yield self._of_type(schema, resolver, types)
        elif isinstance(types, Sequence):
            several = tuple(self._of_type(schema, resolver, each) for each in types if isinstance(each, str))
            yield several[0] if len(several) == 1 else Node(self, resolver, Kind.ANY, schema, parts=several)
        else:
            for kind, keywords in _KEYWORDS.items():
                if keywords & schema.keys():
                    yield Node(self, resolver, kind, schema)
        if any(isinstance(schema.get(name), str) for name in _REFERENCES):
            target = next(schema[name] for name in _REFERENCES if isinstance(schema.get(name), str))
            found = self._lookup(resolver, target)
            yield self.node(found.contents, found.resolver)
        for keyword in _CONDITIONS:
            if keyword in ("allOf", "anyOf", "oneOf") and schema.get(keyword):
                parts = tuple(self.node(each, resolver) for each in schema[keyword])
                yield Node(self, resolver, Kind(keyword), schema, parts=parts)
            elif keyword in schema and keyword not in ("allOf", "anyOf", "oneOf"):
                yield Node(self, resolver, Kind(keyword), schema)

    def _of_type(self, schema: Mapping[str, Any], resolver: Any, name: str) -> Node:
        kind = _TYPES.get(name, Kind.TRUE)
        return Node(self, resolver, kind, schema, typed=True, integer=name == "integer")

    def _lookup(self, resolver: Any, target: str) -> Any:
        try:
            return resolver.lookup(target)
        except self._unresolvable as error:
            raise InvalidSchema(
                f"Invalid schema of type JSON, details: the reference {target!r} can't be found: {error}"
            ) from None


def _resource(resolver: Any, schema: Mapping[str, Any]) -> Any:
    from referencing import Resource  # noqa: PLC0415 - `json_schema` needs it; this module is pure
    from referencing.jsonschema import DRAFT7  # noqa: PLC0415

    return Resource.from_contents(dict(schema), default_specification=DRAFT7)


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
