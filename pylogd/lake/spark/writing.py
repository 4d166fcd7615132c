"""Write rows to topics on an executor, at least once.

Strategy: the columns are those of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `topic` and
`partition`. Rows become record batches as columns (`client.core.producer.columns`), with no object for a row. A task
succeeds when all of its records are acknowledged. Spark runs a failed task again, so its records may be stored twice.
Must not know: the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from pylogd.client import Producer
from pylogd.lake.spark.errors import WriteError
from pylogd.lake.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

_GATHERED_BYTES: Final = 8 << 20  # the size of rows that are encoded together


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
        for topic, rows in by_topic(options, batches):
            try:
                producer.send_columns(topic, rows)
            except ValueError as error:
                raise WriteError(str(error)) from error
            count += rows.num_rows
        producer.flush()
    return count


def by_topic(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield rows with the topic that they are for. Raises WriteError for a row without a topic."""
    wanted = ("key", "value", "partition", *(("headers",) if options.include_headers else ()))
    for rows in _gathered(batches):
        chosen = rows.select([name for name in wanted if name in rows.schema.names])
        if options.topic is not None:
            yield options.topic, chosen
            continue
        topics = rows.column("topic")
        if topics.null_count:
            raise WriteError(
                "null topic present in the data. Use the topic option for setting a default topic for all rows."
            )
        import pyarrow.compute  # noqa: PLC0415 - an extra

        encoded = topics.dictionary_encode()
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            yield name, chosen.filter(pyarrow.compute.equal(encoded.indices, index))


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches of rows, since the rows of each become at least one record batch for each partition."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size >= _GATHERED_BYTES:
            yield from pa.Table.from_batches(found).combine_chunks().to_batches()
            found, size = [], 0
    if found:
        yield from pa.Table.from_batches(found).combine_chunks().to_batches()
