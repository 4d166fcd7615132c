"""Decode a batch of messages into the columns of a table, and give the reason for each message that does not fit.

Strategy: the messages of a batch are divided by their writers' schemas. The language's library reads the messages of
one schema one by one; one call makes columns of that schema from them. These are projected to the table's columns and
put in order again. If Arrow refuses the values of some messages, halves of the batch are tried until these messages are
found. So a batch costs Python a few calls for each message, and none for each value, however few messages are wrong.

Rules: each message either becomes a row or has a reason. A message of null is a row of nulls. A schema that does not
fit the table, or that the registry does not know, is the reason for all of its messages. A failure of the registry is
not a
reason: it raises.
Bounds: a schema has at most `nodes.MOST_FIELDS` fields. The values of a batch take at most a few hundred times the
bytes of its messages, so pass batches of a few megabytes.

Must not know: Spark, brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.lake.typed import nodes
from pylogd.lake.typed.avro import AvroReader
from pylogd.lake.typed.errors import NotColumns, UnknownSchema
from pylogd.lake.typed.evolution import evolved
from pylogd.lake.typed.framing import FIRST, Frame, Reasons, frames, message_types
from pylogd.lake.typed.json_schema import JsonReader
from pylogd.lake.typed.nodes import Node
from pylogd.lake.typed.protobuf import ProtobufFile
from pylogd.lake.typed.registry import AVRO, JSON, PROTOBUF, Registered, SchemaId

Item = TypeVar("Item")
#: The exceptions of Arrow, and of nodes' conversions, for a value that does not fit.
_REFUSED: Final = (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_MOST_LETTERS: Final = 500
#: The most remembered readers, since invalid messages may name ever new schemas and message types.
_MOST_READERS: Final = 10_000


class Reader(Protocol):
    """Reads the messages of one schema.

    node: the struct of its columns.
    """

    node: Node

    def read(self, body: bytes) -> Any:
        """Return the content of a message, for `array`. Raises Misfit."""

    def array(self, values: list[Any]) -> pa.StructArray:
        """Return messages, prepared by `read` and then by `node`, as an array of `node.physical`."""


class Lookup(Protocol):
    """A source of schemas."""

    def schema(self, schema_id: SchemaId) -> Registered:
        """Return the schema with an id. Raises UnknownSchema, or other errors if the registry fails."""


class Readers:
    """The readers of schemas, made once for each.

    lookup: finds schemas.
    reserved: the names of the table's other columns, in lower case.
    """

    def __init__(self, lookup: Lookup, reserved: Collection[str] = ()) -> None:
        self._lookup = lookup
        self._reserved = reserved
        self._files: dict[SchemaId, ProtobufFile] = {}
        self._made: dict[tuple[SchemaId, tuple[int, ...]], Reader | str] = {}

    def columns(self, schema_id: SchemaId, message: str = "") -> pa.StructType:
        """Return the columns of a schema. Raises UnknownSchema or NotColumns, and other errors if the registry fails.

        message: the full name of a Protobuf message type; "" for the file's first type.
        """
        indexes = self._file(schema_id).indexes_of(message) if message and self.is_protobuf(schema_id) else FIRST
        return self.reader(schema_id, indexes).node.logical

    def is_protobuf(self, schema_id: SchemaId) -> bool:
        """Return whether a schema is a Protobuf file. Raises UnknownSchema, and other errors if the registry fails."""
        return self._lookup.schema(schema_id).kind == PROTOBUF

    def reader(self, schema_id: SchemaId, indexes: tuple[int, ...] = FIRST) -> Reader:
        """Return the reader of a schema. Raises the errors of `columns`.

        indexes: the indexes of the message type in a Protobuf file.
        """
        key = schema_id, indexes
        if key not in self._made:
            if len(self._made) >= _MOST_READERS:
                self._made.clear()
            try:
                self._made[key] = self._make(schema_id, indexes)
            except NotColumns as error:
                self._made[key] = str(error)
        found = self._made[key]
        if isinstance(found, str):
            raise NotColumns(f"schema {schema_id} can't be columns: {found}")
        return found

    def _make(self, schema_id: SchemaId, indexes: tuple[int, ...]) -> Reader:
        schema = self._lookup.schema(schema_id)
        if schema.kind == PROTOBUF:
            return self._file(schema_id).reader(indexes, self._reserved)
        if schema.kind == AVRO:
            return AvroReader(schema, self._reserved)
        if schema.kind == JSON:
            return JsonReader(schema, self._reserved)
        raise NotColumns(f"its type {schema.kind} is not {AVRO}, {JSON} or {PROTOBUF}")

    def _file(self, schema_id: SchemaId) -> ProtobufFile:
        if schema_id not in self._files:
            self._files[schema_id] = ProtobufFile(self._lookup.schema(schema_id))
        return self._files[schema_id]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch in columns.

    rows: a struct array of the table's columns, with an entry for each message; null if it is null or does not fit.
    reasons: the reason why each message does not fit; null if it fits.
    """

    rows: pa.StructArray
    reasons: pa.StringArray


class Decoder:
    """Decodes batches into the columns of one table."""

    def __init__(self, columns: pa.Schema, readers: Readers) -> None:
        self._columns = columns
        self._type = pa.struct(list(columns))
        self._readers = readers
        self._projections: dict[int, tuple[Reader, Node, str]] = {}  # by the identity of the reader

    def decode(self, values: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """Decode a batch.

        values: a binary array.
        headers: for each message a list of structs of `key` and `value`.

        Raises SchemaRegistryError if the registry fails.
        """
        reasons: Reasons = {}
        places: list[int] = []
        arrays: list[pa.Array] = []
        for frame in frames(values, headers, reasons):
            for reader, rows, bodies in self._parts(frame, reasons):
                kept, array = self._rows(reader, rows.to_pylist(), bodies.to_pylist(), reasons, frame.schema_id)
                places += kept
                arrays += array
        return self._in_order(len(values), places, arrays, reasons)

    def _parts(self, frame: Frame, reasons: Reasons) -> Iterator[tuple[Reader, pa.Array, pa.Array]]:
        """Divide the messages of one schema id by reader. Messages without a reader get a reason."""
        try:
            is_protobuf = self._readers.is_protobuf(frame.schema_id)
        except UnknownSchema as error:
            reasons.update(dict.fromkeys(frame.rows.to_pylist(), str(error)))
            return
        parts = message_types(frame, reasons) if is_protobuf else [(FIRST, frame.rows, frame.bodies)]
        for indexes, rows, bodies in parts:
            try:
                reader = self._readers.reader(frame.schema_id, indexes)
            except NotColumns as error:
                reasons.update(dict.fromkeys(rows.to_pylist(), str(error)))
            else:
                yield reader, rows, bodies

    def _rows(
        self, reader: Reader, rows: list[int], bodies: list[bytes], reasons: Reasons, schema_id: SchemaId
    ) -> tuple[list[int], list[pa.Array]]:
        """Return the rows that fit, and their columns."""
        projection, why = self._projection(reader, schema_id)
        if why:
            reasons.update(dict.fromkeys(rows, why))
            return [], []
        kept, values = [], []
        for row, body in zip(rows, bodies, strict=True):
            try:
                values.append(reader.node.prepared(reader.read(body)))
                kept.append(row)
            except _REFUSED as error:
                reasons[row] = _reason(schema_id, error)

        def build(some: list[Any]) -> pa.Array:
            return projection.applied(reader.node.applied(reader.array(some)))

        def refuse(at: int, error: Exception) -> None:
            reasons[kept[at]] = _reason(schema_id, error)

        arrays = [array for array in _built(values, build, refuse) if len(array)]
        return [row for row in kept if row not in reasons], arrays

    def _projection(self, reader: Reader, schema_id: SchemaId) -> tuple[Node, str]:
        """Return the projection of a reader's columns to the table's columns, and why there is none, or ""."""
        found = self._projections.get(id(reader))
        if found is None:
            change = evolved(self._columns, reader.node.logical)
            why = "" if change.fits else f"schema {schema_id} does not fit the table: "
            why += "; ".join(change.conflicts or change.changes)
            found = reader, nodes.projection(reader.node.logical, self._type), why[:_MOST_LETTERS]
            self._projections[id(reader)] = found
        return found[1:]

    def _in_order(self, count: int, places: list[int], arrays: list[pa.Array], reasons: Reasons) -> Decoded:
        whys = (
            pa.array([reasons.get(row) for row in range(count)], pa.string())
            if reasons
            else pa.nulls(count, pa.string())
        )
        if not arrays:
            return Decoded(pa.nulls(count, self._type), whys)
        rows = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        if places != list(range(count)):
            rows = rows.take(pc.index_in(pa.array(range(count)), pa.array(places)))
        return Decoded(rows, whys)


def _built(
    values: list[Item], build: Callable[[list[Item]], pa.Array], refuse: Callable[[int, Exception], None]
) -> Iterator[pa.Array]:
    """Yield arrays of values, in order.

    Values that can't be built are left out, and passed to `refuse` with the error.
    """
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        try:
            yield build(values[start:end])
        except _REFUSED as error:
            if end - start == 1:
                refuse(start, error)
                continue
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]


def _reason(schema_id: SchemaId, error: Exception) -> str:
    return f"schema {schema_id}: {error}"[:_MOST_LETTERS]
