"""JSON Schema: `orjson` reads a message, `jsonschema-rs` checks it against its schema, Arrow makes columns of it.

| JSON Schema | column |
| --- | --- |
| boolean, integer, number, string | boolean, int64, double, string |
| string of format `date-time`, `date` | timestamp with UTC, date |
| object with `properties` | struct, with a column for each property |
| object with a schema in `additionalProperties` only | map of string |
| array of one kind of items | list |
| `type` of null and another, `oneOf` or `anyOf` of null and another, `nullable` | that other |
| `allOf` of objects | struct with the properties of all |
| `enum`, `const` | the type of its values, if it is one |
| `$ref`, within the schema or to a reference of the registry | what it refers to |
| anything else: several types, no type, tuples, a schema that contains itself | JSON text |
| properties that an open object has beyond its `properties` | `additional_properties`: JSON text |

JSON text keeps all digits of numbers.

Rules: a message that is not valid against its schema does not fit, even if the columns would take it. Formats without a
column type are not checked. Characters that column names can't have become `_`.

jsonschema-rs was chosen because it checks a message without Python code, and limits the backtracking of regular
expressions.
Source: JSON Schema drafts 4 to 2020-12. Schemas that name no draft are draft 7, as for Confluent's clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urldefrag

import jsonschema_rs
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pylogd.client.registry.patterns import InvalidPattern, in_schema, patterns_of, plain
from pylogd.lake.typed import nodes
from pylogd.lake.typed.errors import Misfit, NotColumns
from pylogd.lake.typed.nodes import Budget, Member, Node
from pylogd.lake.typed.registry import Registered

Schema = Any
_REST: Final = "additional_properties"
_WHOLE: Final = "value"
_BASE: Final = "json-schema:///"
_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_OF_PYTHON: Final[Mapping[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}
#: The most steps of backtracking of a regular expression in one match.
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)
_MOST_JUMPS: Final = 50
#: Matches numbers that may have more digits than orjson keeps, and similar texts.
_MANY_DIGITS: Final = re.compile(rb"[0-9.]{17}")
#: The most characters of an integer of 64 bits.
_MOST_DIGITS: Final = 20
_FRACTION: Final = r"(\.\d{6})\d+"


class JsonReader:
    """Reads messages that were written with one schema. Implements `decoding.Reader`."""

    def __init__(self, schema: Registered, reserved: Collection[str] = ()) -> None:
        """Raises NotColumns.

        reserved: see `nodes.column_name`.
        """
        try:
            root = json.loads(schema.text)
            others = {used.name: json.loads(used.text) for used in schema.references}
            self._validator = _validator(root, others)
            self._patterns = _as_written([root, *others.values()])
        except (ValueError, RecursionError, jsonschema_rs.ReferencingError) as error:
            raise NotColumns(f"not a JSON Schema: {str(error).splitlines()[0]}") from error
        self.node, self._is_object = _Columns(root, others).table(reserved)

    def read(self, body: bytes) -> Any:
        """Return the values of a message. Raises Misfit."""
        try:
            value = orjson.loads(body)
        except ValueError as error:
            raise Misfit(f"not JSON: {error}") from error
        try:
            self._validator.validate(value)
        except ValueError as error:
            where = "/".join(str(each) for each in getattr(error, "instance_path", ())) or "the value"
            said = str(getattr(error, "message", error))
            for ours, pattern in self._patterns.items():
                said = said.replace(ours, pattern)
            raise Misfit(f"not valid by the JSON Schema: {where}: {said}") from error
        if _MANY_DIGITS.search(body):
            value = json.loads(body, parse_int=_whole, parse_float=_fraction)
        return value if self._is_object else {_WHOLE: value}

    def array(self, values: list[Any]) -> pa.StructArray:
        """Return the values in the physical type of `node`."""
        return pa.array(values, self.node.physical)


def _validator(root: Schema, others: Mapping[str, Schema]) -> Any:
    root = in_schema(root, plain)  # jsonschema-rs does not support all of ECMA-262, and reads some of it differently
    others = {name: in_schema(each, plain) for name, each in others.items()}

    def retrieve(uri: str) -> Any:
        name = uri.removeprefix(_BASE)
        for each in (uri, name):
            if each in others:
                return others[each]
        raise ValueError(f"the schema refers to {name!r}, which is not among its references")

    options: dict[str, Any] = {
        "retriever": retrieve,
        "base_uri": _BASE,
        "validate_formats": False,
        "pattern_options": _PATTERNS,
    }
    if isinstance(root, dict) and "$schema" in root:
        return jsonschema_rs.validator_for(root, **options)
    return jsonschema_rs.Draft7Validator(root, **options)


class _Digits(float):
    """A number with more digits than a column of numbers has.

    digits: the text of the number, for columns of JSON text.
    """

    digits: str


def _whole(text: str) -> float:
    """Return an integer. With more than 64 bits, which orjson reads as a float, return it with its digits."""
    if len(text) <= _MOST_DIGITS and -(1 << 63) <= int(text) < 1 << 64:
        return int(text)
    return _fraction(text)


def _fraction(text: str) -> float:
    found = _Digits(text)
    found.digits = text
    return found


def _as_written(schemas: Sequence[Schema]) -> dict[str, str]:
    """Return the original patterns of schemas by their translations, for error messages."""
    found = {}
    for pattern in patterns_of(list(schemas)):
        with suppress(InvalidPattern):
            found[plain(pattern)] = pattern
    return found


def _dump(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # there is a number with many digits
        return _exact(value)


def _exact(value: Any) -> str:
    """Return JSON text in which numbers have all their digits."""
    if isinstance(value, _Digits):
        return value.digits
    if isinstance(value, dict):
        return "{" + ",".join(f"{_exact(name)}:{_exact(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_exact, value)) + "]"
    return orjson.dumps(value).decode()


class _Columns:
    """Builds the nodes of a schema.

    others: the schemas that it refers to, by name.
    """

    def __init__(self, root: Schema, others: Mapping[str, Schema]) -> None:
        self._root = root
        self._others = others
        self._budget = Budget()
        self._inside: list[int] = []  # the identities of the schemas around the present one
        self._reserved: Collection[str] = ()

    def table(self, reserved: Collection[str]) -> tuple[Node, bool]:
        """Return the columns of a table, and whether they are an object's properties; else there is only `value`."""
        self._reserved = reserved
        node = self._node(self._root, self._root)
        if pa.types.is_struct(node.logical):
            return node, True
        return nodes.struct([Member(_WHOLE, _WHOLE, node)]), False

    def _node(self, schema: Schema, document: Schema) -> Node:
        self._budget.take(len(self._inside))
        schema, document = self._plain(schema, document)
        if id(schema) in self._inside or not isinstance(schema, dict):
            return nodes.json_text(_dump)
        self._inside.append(id(schema))
        try:
            return self._typed(schema, document)
        finally:
            self._inside.pop()

    def _plain(self, schema: Schema, document: Schema) -> tuple[Schema, Schema]:
        """Follow references, and choose alternatives to null, until a schema has its own type."""
        for _ in range(_MOST_JUMPS):
            if not isinstance(schema, dict):
                return schema, document
            if isinstance(schema.get("$ref"), str):
                schema, document = self._referred(schema["$ref"], document)
                continue
            inner = _but_null(schema)
            if inner is None:
                return schema, document
            schema = inner
        return None, document

    def _referred(self, reference: str, document: Schema) -> tuple[Schema, Schema]:
        """Return the target of a reference, and the document that contains it; None if it is not found."""
        name, pointer = urldefrag(reference)
        if name:
            document = self._others.get(name)
        found = document
        if pointer and not pointer.startswith("/"):
            return None, document  # the reference is an anchor
        for part in unquote(pointer).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found, document

    def _typed(self, schema: Mapping[str, Any], document: Schema) -> Node:
        kind = _type_of(schema)
        if kind == "object":
            return self._object(schema, document)
        if kind == "array" and isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
            return nodes.list_of(self._node(schema["items"], document))
        if kind == "string" and schema.get("format") == "date-time":
            return nodes.leaf(pa.string(), nodes.TIMESTAMP, _times)
        if kind == "string" and schema.get("format") == "date":
            return nodes.leaf(pa.string(), pa.date32(), lambda array: nodes.check_times(array.cast(pa.date32())))
        return nodes.leaf(_SIMPLE[kind]) if kind in _SIMPLE else nodes.json_text(_dump)

    def _object(self, schema: Mapping[str, Any], document: Schema) -> Node:
        reserved = self._reserved if len(self._inside) == 1 else ()
        properties = self._properties(schema, document)
        rest = schema.get("additionalProperties")
        if properties is None or not properties:
            if isinstance(rest, dict) and rest and "patternProperties" not in schema and "allOf" not in schema:
                return nodes.map_of(nodes.leaf(pa.string()), self._node(rest, document))
            return nodes.json_text(_dump)
        members = [
            Member(name, nodes.column_name(name, reserved), self._node(*found)) for name, found in properties.items()
        ]
        is_closed = False in (rest, schema.get("unevaluatedProperties"))
        if is_closed and "patternProperties" not in schema:
            return nodes.struct(members)
        return _open(members)

    def _properties(self, schema: Mapping[str, Any], document: Schema) -> dict[str, tuple[Schema, Schema]] | None:
        """Return the properties of an object and of all schemas that it combines; None if they are unknown."""
        own = schema.get("properties", {})
        if not isinstance(own, dict):
            return None
        found = {name: (each, document) for name, each in own.items()}
        for part in schema.get("allOf", ()):
            plain, home = self._plain(part, document)
            if not isinstance(plain, dict) or _type_of(plain) != "object" or id(plain) in self._inside:
                return None
            self._inside.append(id(plain))
            more = self._properties(plain, home)
            self._inside.pop()
            if more is None:
                return None
            found.update(more)
        return found


def _open(members: list[Member]) -> Node:
    """Return the struct of an object that may have other properties, which are in a separate column."""
    columns = {member.column.lower() for member in members}
    rest = _REST
    while rest in columns:
        rest += "_"
    known = {member.source for member in members}
    inner = nodes.struct([*members, Member(rest, rest, nodes.leaf(pa.string()))])

    def prepare(value: dict[str, Any]) -> dict[str, Any]:
        more = {name: each for name, each in value.items() if name not in known}
        if inner.prepare is not None:
            value = inner.prepare(value)
        value[rest] = _dump(more) if more else None
        return value

    return Node(inner.physical, inner.logical, inner.convert, prepare, inner.size)


def _but_null(schema: Mapping[str, Any]) -> Schema:
    """Return the only alternative that is not null; None if the schema does not have this form."""
    if "properties" in schema or "items" in schema:
        return None
    for keyword in ("oneOf", "anyOf", "allOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list):
            others = [each for each in parts if not (isinstance(each, dict) and each.get("type") == "null")]
            if len(others) == 1:
                return others[0]
    return None


def _type_of(schema: Mapping[str, Any]) -> str:
    """Return the type of a schema's values besides null; "" if there are several, or it is unknown."""
    kind = schema.get("type")
    if kind is None:
        return _implied_type(schema)
    kinds = {each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"}
    if kinds == {"integer", "number"}:
        return "number"
    return str(kinds.pop()) if len(kinds) == 1 else ""


def _implied_type(schema: Mapping[str, Any]) -> str:
    if "properties" in schema:
        return "object"
    if "allOf" in schema:
        return "object"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {_OF_PYTHON.get(type(each), "") for each in values if each is not None}
    return kinds.pop() if len(kinds) == 1 else ""


def _times(array: pa.Array) -> pa.Array:
    """Return times of RFC 3339 as timestamps, without digits beyond microseconds."""
    shorter = pc.replace_substring_regex(array, pattern=_FRACTION, replacement=r"\1")
    return nodes.check_times(shorter.cast(nodes.TIMESTAMP))
