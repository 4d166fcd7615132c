"""Read a range of offsets of one partition on an executor, as Arrow batches with the columns of Spark's Kafka source.

Strategy: a blocking consumer returns fetched records as columns, without a Python object for each record. The next
fetch is under way while Spark processes the last one; no thread is needed, since the reply waits in the socket. Each
batch has a fixed cost in Spark, so fetches are 4 MiB instead of the client's default: that halved the processor time
of 1 MiB fetches, and larger ones gained nothing. Memory holds one or two fetches, compressed as received, and one Arrow
batch of `_BATCH_BYTES`, whatever the compression ratio.

Rules: the result has exactly the records with offsets in the range, in order. Records removed by compaction are
expected to be missing; for records removed by retention `failOnDataLoss` decides. The task fails if no record arrives
within `kafkaConsumer.pollTimeoutMs`.
Must not know: the driver's plan beyond one range.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.client import Consumer, RequestTimedOut
from pylogd.client.core.errors import UnknownTopic
from pylogd.errors import ErrorCode, KafkaError
from pylogd.spark.errors import InvalidTimestamp
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
#: The range of Spark's timestamps, years 1 to 9999, in milliseconds since 1970.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A task: all that an executor needs to read one range. It is pickled and sent there.

    topic_id: the id that the topic must have, as hexadecimal digits; None for any. null_timestamps: whether a time
    stamp that Spark can't represent becomes null instead of failing the task.
    """

    bootstrap: str
    client: Mapping[str, Any]
    range: OffsetRange
    include_headers: bool
    fail_on_data_loss: bool
    poll_timeout_ms: int
    topic_id: str | None = None
    null_timestamps: bool = False
    include_timestamp_ms: bool = False


def arrow_schema(include_headers: bool, include_timestamp_ms: bool = False) -> pa.Schema:
    """Return the schema of the batches, with the columns of Spark's Kafka source."""
    headers = [pa.field("headers", _HEADERS)] if include_headers else []
    number = [pa.field("timestampMs", pa.int64())] if include_timestamp_ms else []
    return pa.schema([*_FIELDS, *headers, *number])


def read(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's range. Raises DataLoss, InvalidTimestamp and the client's errors."""
    wanted = task.range
    partition = (wanted.topic, wanted.partition)
    schema = arrow_schema(task.include_headers, task.include_timestamp_ms)
    settings = {"partition_max_bytes": _FETCH_BYTES, **task.client}
    with Consumer(task.bootstrap, auto_offset_reset="none", prefetch=False, **settings) as consumer:
        consumer.assign({partition: wanted.start})
        position = wanted.start
        deadline = time.monotonic() + task.poll_timeout_ms / 1000
        while position < wanted.end:
            try:
                chunks = consumer.poll_columns(_POLL_SECONDS, headers=task.include_headers, max_bytes=_BATCH_BYTES)
            except KafkaError as error:
                position = _after_loss(consumer, task, position, error)
                continue
            if chunks and _is_another_topic(consumer, task):
                return
            for _, columns in chunks:
                yield from _rows(columns, task, schema)
            moved = consumer.position(partition)
            if moved > position:
                position, deadline = moved, time.monotonic() + task.poll_timeout_ms / 1000
            elif time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"Cannot fetch record for offset {position} of {wanted.topic}-{wanted.partition} in "
                    f"{task.poll_timeout_ms} milliseconds"
                )


def _is_another_topic(consumer: Consumer, task: ReadTask) -> bool:
    """Return whether the topic was deleted and created again since the query was planned. May raise DataLoss.

    The client fetches by topic id, and looks the id up again if brokers reject it. So the fetched records belong to the
    expected topic if the client still has the expected id after the fetch.
    """
    topic = task.range.topic
    known = task.topic_id and consumer.cluster.topic(topic).topic_id
    if not known or not any(known) or known.hex() == task.topic_id:  # all zero: a broker without topic ids
        return False
    report_loss(f"topic {topic!r} was deleted and created again", fail=task.fail_on_data_loss)
    return True


def _after_loss(consumer: Consumer, task: ReadTask, position: int, error: KafkaError) -> int:
    """Return the offset to continue with after an error; the end of the range if none of its records exists."""
    wanted = task.range
    partition = (wanted.topic, wanted.partition)
    if isinstance(error, UnknownTopic):
        report_loss(f"topic {wanted.topic!r} no longer exists", fail=task.fail_on_data_loss)
        return wanted.end
    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
        raise error
    (first,) = consumer.beginning_offsets([partition]).values()
    (last,) = consumer.end_offsets([partition]).values()
    report_loss(
        f"offset {position} of {wanted.topic}-{wanted.partition} does not exist: the partition begins with {first} "
        f"and ends with {last}",
        fail=task.fail_on_data_loss,
    )
    if not position < first < wanted.end:
        return wanted.end
    consumer.seek(partition, first)
    return first


def _rows(columns: pa.RecordBatch, task: ReadTask, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    wanted = task.range
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
        _times(columns, task).cast(pa.timestamp("us", "UTC")),
        columns.column("timestampType"),
    ]
    if task.include_headers:
        arrays.append(_null_if_empty(columns.column("headers")))
    if task.include_timestamp_ms:
        arrays.append(columns.column("timestamp").cast(pa.int64()))
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _times(columns: pa.RecordBatch, task: ReadTask) -> pa.Array:
    """Return the time stamps, with null for those that Spark can't represent, or raise InvalidTimestamp for them."""
    stamps = columns.column("timestamp")
    numbers = stamps.cast(pa.int64())
    bounds = pc.min_max(numbers)
    if bounds["min"].as_py() >= _FIRST_MS and bounds["max"].as_py() <= _LAST_MS:
        return stamps
    is_valid = pc.and_(pc.greater_equal(numbers, _FIRST_MS), pc.less_equal(numbers, _LAST_MS))
    if not task.null_timestamps:
        at = pc.index(is_valid, False).as_py()
        offset = columns.column("offset")[at].as_py()
        raise InvalidTimestamp(task.range.topic, task.range.partition, offset, numbers[at].as_py())
    return pc.if_else(is_valid, stamps, pa.scalar(None, stamps.type))


def _null_if_empty(headers: pa.Array) -> pa.Array:
    """Replace empty lists by null, which Spark's Kafka source has for a record without headers."""
    if not len(headers.flatten()):
        return pa.nulls(len(headers), _HEADERS)
    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers).cast(_HEADERS)
