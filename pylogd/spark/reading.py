"""Reading one range of offsets on an executor, as Arrow record batches with the columns of Spark's Kafka source.

Strategy: a blocking consumer on the one partition, whose fetches come as columns; the next fetch is under way while
Spark takes the last. No Python object is made for a record. Fetches are larger than a consumer's are by default: a
batch for Spark costs the same whatever its size, and with 4 MiB half of the processor's time went that 1 MiB took; more
changed nothing. No thread prefetches: the reply waits in the socket. What is held is a fetch or two as they came and
one Arrow batch of `_BATCH_BYTES`, however well the rest is compressed and however much of it there is.

Rules: exactly the records with offsets in the range, in order. What compaction took is not missed. What retention took
is: `failOnDataLoss` decides. Nothing that comes takes longer than `kafkaConsumer.pollTimeoutMs`, or the task fails.
Must not know: the driver's plan beyond one range.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pylogd.client import Consumer, RequestTimedOut
from pylogd.client.core.errors import UnknownTopic
from pylogd.errors import ErrorCode, KafkaError
from pylogd.spark.offsets import report_loss
from pylogd.spark.ranges import OffsetRange

_HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_POLL_SECONDS: Final = 1.0
_FETCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_BYTES: Final = 8 * 1024 * 1024
_FIELDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """All that an executor needs: it is sent there."""

    bootstrap: str
    client: Mapping[str, Any]
    range: OffsetRange
    include_headers: bool
    fail_on_data_loss: bool
    poll_timeout_ms: int


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The columns, as Spark expects them."""
    return pa.schema([*_FIELDS, pa.field("headers", _HEADERS)] if include_headers else _FIELDS)


def read(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The records of the range. Raises `DataLoss`, and what the client raises."""
    wanted = task.range
    place = (wanted.topic, wanted.partition)
    schema = arrow_schema(task.include_headers)
    settings = {"partition_max_bytes": _FETCH_BYTES, **task.client}
    with Consumer(task.bootstrap, auto_offset_reset="none", prefetch=False, **settings) as consumer:
        consumer.assign({place: wanted.start})
        position = wanted.start
        deadline = time.monotonic() + task.poll_timeout_ms / 1000
        while position < wanted.end:
            try:
                chunks = consumer.poll_columns(_POLL_SECONDS, headers=task.include_headers, max_bytes=_BATCH_BYTES)
            except KafkaError as error:
                position = _after_loss(consumer, task, position, error)
                continue
            for _, columns in chunks:
                yield from _rows(columns, wanted, schema, task.include_headers)
            moved = consumer.position(place)
            if moved > position:
                position, deadline = moved, time.monotonic() + task.poll_timeout_ms / 1000
            elif time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"Cannot fetch record for offset {position} of {wanted.topic}-{wanted.partition} in "
                    f"{task.poll_timeout_ms} milliseconds"
                )


def _after_loss(consumer: Consumer, task: ReadTask, position: int, error: KafkaError) -> int:
    """Where to go on after an error; the end of the range if nothing of it is left."""
    wanted = task.range
    place = (wanted.topic, wanted.partition)
    if isinstance(error, UnknownTopic):
        report_loss(f"topic {wanted.topic!r} is gone", fail=task.fail_on_data_loss)
        return wanted.end
    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
        raise error
    (first,) = consumer.beginning_offsets([place]).values()
    (last,) = consumer.end_offsets([place]).values()
    report_loss(
        f"offset {position} of {wanted.topic}-{wanted.partition} is not there: it begins with {first} and ends with "
        f"{last}",
        fail=task.fail_on_data_loss,
    )
    if not position < first < wanted.end:
        return wanted.end
    consumer.seek(place, first)
    return first


def _rows(columns: pa.RecordBatch, wanted: OffsetRange, schema: pa.Schema, headers: bool) -> Iterator[pa.RecordBatch]:
    offsets = columns.column("offset")
    count = len(offsets)
    if count and offsets[count - 1].as_py() >= wanted.end:
        count = bisect_left(range(count), wanted.end, key=lambda at: offsets[at].as_py())
        columns = columns.slice(0, count)
    if not count:
        return
    arrays = [
        columns.column("key"),
        columns.column("value"),
        pa.repeat(pa.scalar(wanted.topic), count),
        pa.repeat(pa.scalar(wanted.partition, pa.int32()), count),
        columns.column("offset"),
        columns.column("timestamp").cast(pa.timestamp("us", "UTC")),
        columns.column("timestampType"),
    ]
    if headers:
        arrays.append(_null_if_empty(columns.column("headers")))
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _null_if_empty(headers: pa.Array) -> pa.Array:
    """Spark's Kafka source has null, not an empty list, for a record without headers."""
    if not len(headers.flatten()):
        return pa.nulls(len(headers), _HEADERS)
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to load, and few ask for headers

    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers).cast(_HEADERS)
