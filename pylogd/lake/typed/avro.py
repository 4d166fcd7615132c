"""Avro: `fastavro` reads a message by its writer's schema, and leaves the logical types to Arrow.

| Avro | column |
| --- | --- |
| boolean, int, long, float, double, string, bytes | boolean, int32, int64, float, double, string, binary |
| fixed, `duration` | binary |
| enum, `uuid` | string |
| record, array, map | struct, list, map of string |
| null and another type | that type |
| a union of several types | a struct with a member for each, all null but one |
| `date`, `timestamp-*`, `local-timestamp-*` | date, timestamp with UTC, timestamp without |
| `time-millis`, `time-micros` | int32 milliseconds, int64 microseconds since midnight, within a day |
| `decimal` | decimal; text beyond 38 digits |
| a field of type null | no column |
| a record without fields | JSON text |

Strategy: messages are read with a rewritten schema, which has the same layout as the writer's schema, but lets fastavro
return values that Arrow takes. It has no logical types, and a record of one field around each branch of a union; this
record takes no bytes and turns a value into `{branch: value}`.

pyruhvro 0.4 was tried: it makes columns without an object for each message, but panics at `bytes`, `fixed` and
decimals, does not check UTF-8, and does not notice bytes after a value.

Rules: a schema that contains itself is refused, since fastavro's recursion overflows the stack of the process. An array
whose elements take no bytes is refused too, since six bytes can announce a billion of them.
Source: Avro 1.12 specification.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from pylogd.lake.typed import nodes
from pylogd.lake.typed.errors import Misfit, NotColumns
from pylogd.lake.typed.nodes import Budget, Member, Node
from pylogd.lake.typed.registry import Registered

_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_UNITS: Final = {"millis": "ms", "micros": "us", "nanos": "ns"}
#: Times of day -> the number of their units in a day.
_TIMES: Final = {("int", "time-millis"): 86_400_000, ("long", "time-micros"): 86_400_000_000}
_KEPT: Final = ("type", "name", "namespace", "symbols", "size")
_WHOLE: Final = "value"
_UUID_BYTES: Final = 16
_UNREADABLE: Final = (
    ValueError, TypeError, KeyError, IndexError, EOFError, StopIteration, OverflowError, MemoryError,
    SchemaResolutionError,
)  # fmt: skip


class AvroReader:
    """Reads messages that were written with one schema. Implements `decoding.Reader`."""

    def __init__(self, schema: Registered, reserved: Collection[str] = ()) -> None:
        """Raises NotColumns.

        reserved: see `nodes.column_name`.
        """
        try:
            documents = [json.loads(text) for text in (*(used.text for used in schema.references), schema.text)]
            named: dict[str, Any] = {}
            for document in documents:
                parsed = parse_schema(document, named_schemas=named)
            columns = _Columns(named)
            is_record = columns.resolved(parsed)["type"] == "record"
            self.node = columns.table(parsed, reserved)
            self._schema = _for_reading(documents, is_record)
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
            raise NotColumns(f"not an Avro schema: {error or type(error).__name__}") from error

    def read(self, body: bytes) -> Any:
        """Return the values of a message. Raises Misfit."""
        source = io.BytesIO(body)
        try:
            value = schemaless_reader(source, self._schema, None)
        except _UNREADABLE as error:
            said = str(error).partition(" from <")[0]  # leave out an object's address
            raise Misfit(f"the bytes do not match the Avro schema: {type(error).__name__}: {said}") from error
        if source.tell() != len(body):
            raise Misfit(f"{len(body) - source.tell()} bytes follow the Avro value")
        return value

    def array(self, values: list[Any]) -> pa.StructArray:
        """Return the values in the physical type of `node`."""
        return pa.array(values, self.node.physical)


def _for_reading(documents: list[Any], is_record: bool) -> Any:
    """Return the last of these schemas, rewritten for reading. Other types than records become records of one field."""
    rewriter = _Rewriter()
    named: dict[str, Any] = {}
    for document in documents[:-1]:
        parse_schema(rewriter.rewritten(document), named_schemas=named)
    last = rewriter.rewritten(documents[-1])
    return parse_schema(last if is_record else rewriter.wrapped(_WHOLE, last), named_schemas=named)


class _Rewriter:
    """Rewrites schemas for reading: see the module's strategy."""

    def __init__(self) -> None:
        self._numbers = count()

    def rewritten(self, schema: Any) -> Any:
        if isinstance(schema, list):
            several = sum(not _is_null(each) for each in schema) > 1
            return [
                self.wrapped(_branch(each), self.rewritten(each))
                if several and not _is_null(each)
                else self.rewritten(each)
                for each in schema
            ]
        if not isinstance(schema, dict):
            return schema
        kept = {name: schema[name] for name in _KEPT if name in schema}
        kept["type"] = self.rewritten(schema["type"])
        kept.update({name: self.rewritten(schema[name]) for name in ("items", "values") if name in schema})
        if "fields" in schema:
            kept["fields"] = [
                {"name": field["name"], "type": self.rewritten(field["type"])} for field in schema["fields"]
            ]
        return kept

    def wrapped(self, name: str, schema: Any) -> dict[str, Any]:
        """Return a record with one field of a type, which is encoded as the same bytes."""
        return {
            "type": "record",
            "name": f"pylogd_wrapper_{next(self._numbers)}",
            "fields": [{"name": name, "type": schema}],
        }


def _is_null(schema: Any) -> bool:
    kind: object = schema["type"] if isinstance(schema, dict) else schema
    return kind == "null"


def _branch(schema: Any) -> str:
    """Return the name of a union's branch: the last part of a type's name."""
    while isinstance(schema, dict) and "name" not in schema:
        schema = schema["type"]
    name = schema["name"] if isinstance(schema, dict) else str(schema)
    return str(name).rpartition(".")[2]


class _Columns:
    """Builds the nodes of a schema.

    named: the types that it names.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._budget = Budget()
        self._depth = 0
        self._inside: list[str] = []  # the names of the records around the present type

    def table(self, schema: Any, reserved: Collection[str]) -> Node:
        """Return the columns of a table: the fields of a record, or one column `value`."""
        kind = self.resolved(schema)
        if kind["type"] == "record":
            columns = self._record(kind, reserved)
            if columns is None:
                raise NotColumns("the schema has no fields with values")
            return columns
        whole = self._node(schema)
        if whole is None:
            raise NotColumns("the schema has no values but null")
        return nodes.struct([Member(_WHOLE, _WHOLE, whole)])

    def resolved(self, schema: Any) -> Mapping[str, Any]:
        """Return a type, which may be given by its name or as a union, as an object."""
        if isinstance(schema, list):
            return {"type": "union", "members": schema}
        if isinstance(schema, str):
            found: Mapping[str, Any] = self._named.get(schema, {"type": schema})
            return found
        if isinstance(schema["type"], (dict, list)) or schema["type"] in self._named:
            return self.resolved(schema["type"])
        return dict(schema)

    def _node(self, schema: Any) -> Node | None:
        """Return the node of a type; None for null."""
        self._budget.take(self._depth)
        self._depth += 1
        try:
            return self._typed(self.resolved(schema))
        finally:
            self._depth -= 1

    def _typed(self, kind: Mapping[str, Any]) -> Node | None:
        name = kind["type"]
        if name == "null":
            return None
        if name == "union":
            return self._union(kind["members"])
        if name == "record":
            return self._record(kind) or nodes.json_text(lambda _: "{}")
        if name == "array":
            if self._least_bytes(kind["items"]) == 0:
                raise NotColumns("an array has elements that take no bytes")
            return nodes.list_of(self._item(kind["items"]))
        if name == "map":
            return nodes.map_of(nodes.leaf(pa.string()), self._item(kind["values"]))
        return _logical(kind) or nodes.leaf(_SIMPLE[name])

    def _item(self, schema: Any) -> Node:
        return self._node(schema) or nodes.leaf(pa.string())  # values are always null

    def _record(self, kind: Mapping[str, Any], reserved: Collection[str] = ()) -> Node | None:
        """Return the node of a record; None if it has no fields with values."""
        name = kind["name"]
        if name in self._inside:
            raise NotColumns(f"the schema contains itself: {name}")
        self._inside.append(name)
        members = []
        for field in kind["fields"]:
            node = self._node(field["type"])
            if node is not None:
                members.append(Member(field["name"], nodes.column_name(field["name"], reserved), node))
        self._inside.pop()
        return nodes.struct(members) if members else None

    def _union(self, schemas: list[Any]) -> Node | None:
        others = [each for each in schemas if self.resolved(each)["type"] != "null"]
        if len(others) <= 1:
            return self._node(others[0]) if others else None
        members = []
        for each in others:
            kind = self.resolved(each)
            name = _branch(kind["name"] if "name" in kind else kind["type"])
            members.append(Member(name, name, self._item(each)))
        return nodes.struct(members)

    def _least_bytes(self, schema: Any) -> int:
        """Return a lower bound of the size of a type's values in bytes; for a record, 1 if it takes any bytes."""
        kind = self.resolved(schema)
        if kind["type"] == "fixed":
            return int(kind["size"])
        if kind["type"] != "record":
            return int(kind["type"] != "null")
        if kind["name"] in self._inside:
            raise NotColumns(f"the schema contains itself: {kind['name']}")
        self._inside.append(kind["name"])
        takes = any(self._least_bytes(field["type"]) for field in kind["fields"])
        self._inside.pop()
        return int(takes)


def _logical(kind: Mapping[str, Any]) -> Node | None:
    """Return the node of a logical type; None if it is unknown, or has no meaning for a table."""
    name, logical = kind["type"], str(kind.get("logicalType"))
    if logical == "decimal" and name in ("bytes", "fixed"):
        return nodes.decimals(int(kind["precision"]), int(kind.get("scale", 0)))
    if logical == "date" and name == "int":
        return nodes.dates()
    if (name, logical) in _TIMES:
        return nodes.times_of_day(_SIMPLE[name], _TIMES[name, logical])
    if logical == "uuid" and name == "fixed" and kind["size"] == _UUID_BYTES:
        return nodes.leaf(pa.string(), prepare=lambda value: str(UUID(bytes=value)))
    stamp, _, unit = logical.rpartition("-")
    if name == "long" and unit in _UNITS and stamp in ("timestamp", "local-timestamp"):
        return nodes.timestamps(_UNITS[unit], "UTC" if stamp == "timestamp" else None)
    return None
