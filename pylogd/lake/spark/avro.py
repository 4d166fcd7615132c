"""Decode and encode columns of Avro messages that carry the id of their schema; Spark's own `from_avro` can't.

    from pylogd.lake.spark.avro import from_avro
    flights = frame.select(from_avro("value", "http://localhost:8081", FLIGHT).alias("flight"))

Strategy: a function over Arrow arrays runs in the Python workers. Each worker asks the registry once for each id and
caches the schema. The column has the type of the reader's schema, which must be known when the query is made; messages
written with other versions are resolved to it.

Rules: an invalid message fails the query, or becomes null if `permissive`; so does one with an id that the registry has
no Avro schema for. A registry that can't be reached, or refuses to answer, always fails it. Null stays null. These
schemas have no type in Spark: unions except those of one type and null; logical types except date, timestamp and
decimal; and schemas that contain themselves. Must not know: topics, brokers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType, parse_schema
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pylogd.client.registry.avro import AvroDeserializer, AvroSerializer, NotAvro, SchemaRegistryClient
from pylogd.lake.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column

Schema = Mapping[str, Any]
_Registry = tuple[str, tuple[tuple[str, str], ...]]  # the URL, and the settings of the client
_SIMPLE: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: Final[Mapping[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
}


def from_avro(
    column: Column | str,
    registry_url: str,
    reader_schema: Schema,
    *,
    permissive: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """Return a column of the values in a column of messages, with the type of `reader_schema`.

    permissive: whether an invalid message becomes null instead of failing the query.
    settings: TLS and credentials for the registry (`pylogd.client.registry.access`).

    Raises OptionError if the schema has no type in Spark.
    """
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415 - needs a session

    kind = spark_type(reader_schema)
    arrow, text = to_arrow_type(kind, timezone="UTC"), json.dumps(reader_schema)

    registry = registry_url, tuple(sorted((settings or {}).items()))

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        deserialise = _deserialiser(registry, text)
        for messages in batches:
            yield pa.array([_decoded(deserialise, each, permissive) for each in messages.to_pylist()], arrow)

    return _over_arrow(arrow_udf, decode, kind)(column)


def to_avro(
    column: Column | str,
    registry_url: str,
    topic: str,
    schema: Schema,
    *,
    key: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Column:
    """Return a column of messages of the values in a column.

    The schema is registered as `<topic>-value`, or `<topic>-key` with `key`.
    settings: TLS and credentials for the registry (`pylogd.client.registry.access`).

    Raises OptionError if the schema has no type in Spark.
    """
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415 - needs a session

    kind, text = spark_type(schema), json.dumps(schema)

    registry = registry_url, tuple(sorted((settings or {}).items()))

    def encode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        serialise = _serialiser(registry, text, key)
        for values in batches:
            messages = [None if each is None else serialise(topic, _as_avro(each, kind)) for each in values.to_pylist()]
            yield pa.array(messages, pa.binary())

    return _over_arrow(arrow_udf, encode, BinaryType())(column)


def _over_arrow(arrow_udf: Any, function: Any, kind: DataType) -> Callable[[Column | str], Column]:
    made: Callable[[Column | str], Column] = arrow_udf(function, kind)
    return made


def _as_avro(value: Any, kind: DataType) -> Any:
    """Convert a value of Arrow for fastavro, which checks the types: Arrow returns maps as lists of pairs."""
    if isinstance(kind, MapType) and isinstance(value, list):
        return {name: _as_avro(each, kind.valueType) for name, each in value}
    if isinstance(kind, ArrayType) and isinstance(value, list):
        return [_as_avro(each, kind.elementType) for each in value]
    if isinstance(kind, StructType) and isinstance(value, dict):
        return {field.name: _as_avro(value[field.name], field.dataType) for field in kind if field.name in value}
    return value


def _decoded(deserialise: AvroDeserializer, message: bytes | None, permissive: bool) -> Any:
    if message is None:
        return None
    try:
        return deserialise(message)
    except NotAvro:
        if not permissive:
            raise
        return None


@lru_cache
def _client(registry: _Registry) -> SchemaRegistryClient:
    """Return the client for a registry, one for each worker process."""
    url, settings = registry
    return SchemaRegistryClient(url, settings=dict(settings))


@lru_cache
def _deserialiser(registry: _Registry, schema: str) -> AvroDeserializer:
    return AvroDeserializer(_client(registry), json.loads(schema))


@lru_cache
def _serialiser(registry: _Registry, schema: str, key: bool) -> AvroSerializer:
    return AvroSerializer(_client(registry), json.loads(schema), key=key)


def spark_type(schema: Schema) -> DataType:
    """Return the Spark type of a schema. Raises OptionError if it has none."""
    try:
        return _type(parse_schema(dict(schema)), {}, ())
    except (SchemaParseException, UnknownType, KeyError, ValueError, TypeError) as error:
        raise OptionError(f"not an Avro schema: {error!r}") from error


def _type(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise OptionError(f"a union other than of null and one type has no type in Spark: {schema}")
        return _type(others[0], named, inside)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, (dict, list)):
        return _type(kind, named, inside)
    if "name" in schema:
        named[schema["name"]] = schema
    if logical == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if logical is not None and logical not in _LOGICAL:
        raise OptionError(f"Avro's logical type {logical!r} is not supported: use {', '.join(_LOGICAL)} or decimal")
    if logical is not None:
        return _LOGICAL[logical]
    if kind == "array":
        return ArrayType(_type(schema["items"], named, inside))
    if kind == "map":
        return MapType(StringType(), _type(schema["values"], named, inside))
    if kind == "record":
        return _record(schema, named, inside)
    return _SIMPLE[kind]


def _record(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> StructType:
    name = schema["name"]
    if name in inside:
        raise OptionError(f"{name} contains itself: recursive schemas have no type in Spark")
    return StructType(
        [StructField(field["name"], _type(field["type"], named, (*inside, name))) for field in schema["fields"]]
    )
