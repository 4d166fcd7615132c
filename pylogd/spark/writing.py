"""Write rows to topics on an executor, at least once.

Strategy: the columns are those of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `topic` and
`partition`. A task succeeds when all its records are acknowledged. Spark runs a failed task again, so its records may
be stored twice.
Must not know: the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from pylogd.client import Producer
from pylogd.spark.errors import WriteError
from pylogd.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT: Final = ("string", "binary")


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raise WriteError, with the text of Spark's Kafka sink, unless rows of this schema can be written."""
    fields = {field.name: field.dataType for field in schema.fields}
    if "value" not in fields:
        raise WriteError("Required attribute 'value' not found")
    if options.topic is None and "topic" not in fields:
        raise WriteError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "topic" in fields and options.topic is None and not isinstance(fields["topic"], StringType):
        raise WriteError("topic must be a STRING")
    for name in ("key", "value"):
        if name in fields and not isinstance(fields[name], (StringType, BinaryType)):
            raise WriteError(f"{name} must be a STRING or BINARY, it is {fields[name].simpleString()}")
    if "partition" in fields and not isinstance(fields["partition"], IntegerType):
        raise WriteError(f"partition must be an INT, it is {fields['partition'].simpleString()}")
    if "headers" in fields and not _are_headers(fields["headers"]):
        raise WriteError(
            f"headers must be an ARRAY<STRUCT<key: STRING, value: BINARY>>, they are {fields['headers'].simpleString()}"
        )


def _are_headers(kind: Any) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def write(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Send all rows. Returns their number once all are acknowledged. Raises WriteError and the client's errors."""
    count = 0
    client: Mapping[str, Any] = options.client
    with Producer(options.bootstrap, **client) as producer:
        last = None
        for batch in batches:
            for topic, partition, key, value, headers in rows_of(options, batch):
                last = producer.send(topic, value, key=key, partition=partition, headers=headers)
            count += batch.num_rows
        producer.flush()
        if last is not None:
            last.result()
    return count


def rows_of(options: SinkOptions, batch: pa.RecordBatch) -> Iterator[tuple[str, int | None, Any, Any, Any]]:
    """Return topic, partition, key, value and headers of each row. Raises WriteError for a row without a topic."""
    names = batch.schema.names
    rows = batch.num_rows

    def column(name: str) -> list[Any]:
        return batch.column(names.index(name)).to_pylist() if name in names else [None] * rows

    topics = [options.topic] * rows if options.topic is not None else column("topic")
    if None in topics:
        raise WriteError(
            "null topic present in the data. Use the topic option for setting a default topic for all rows."
        )
    keys, values = (_bytes(column(name)) for name in ("key", "value"))
    headers = [_headers(each) for each in column("headers")] if options.include_headers else [()] * rows
    return zip(topics, column("partition"), keys, values, headers, strict=True)


def _bytes(column: list[Any]) -> list[bytes | None]:
    if any(isinstance(value, str) for value in column):
        return [None if value is None else value.encode() for value in column]
    return column


def _headers(given: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((each["key"], each["value"]) for each in given or ())
