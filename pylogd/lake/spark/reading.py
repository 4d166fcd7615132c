"""Read a range of offsets of one partition on an executor, as Arrow batches with the columns of Spark's Kafka source.

Strategy: a blocking consumer returns fetched records as columns, without a Python object for each record. The next
fetch is under way while Spark processes the last one; no thread is needed, since the reply waits in the socket. Nothing
is fetched after the range, so that no request is in flight when the consumer is given back (`worker`) for the next
task. Each batch has a fixed cost in Spark, so fetches are 4 MiB instead of the client's default: this halved the
processor time of 1 MiB fetches, and larger fetches gained nothing. Memory holds one or two compressed fetches, and one
Arrow batch of `_BATCH_BYTES`, whatever the compression ratio.

Rules: the result has exactly the records with offsets in the range, in order. Records removed by compaction are
expected to be missing; for records removed by retention `failOnDataLoss` decides. The task fails if no record arrives
within `kafkaConsumer.pollTimeoutMs`.
Must not know: other ranges of the driver's plan.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client import Consumer, RequestTimedOut
from pylogd.client.core.errors import UnknownTopic
from pylogd.lake.spark.errors import InvalidTimestamp
from pylogd.lake.spark.offsets import report_loss
from pylogd.lake.spark.ranges import OffsetRange
from pylogd.lake.spark.worker import CONSUMERS, KeptConsumers
from pylogd.lake.tables.records import arrow_schema, as_text, representable, source_rows

_log = logging.getLogger(__name__)
_POLL_SECONDS: Final = 1.0
_FETCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A task: all that an executor needs to read one range. It is pickled and sent there.

    topic_id: the id that the topic must have, as hexadecimal digits; None for any.
    null_timestamps: whether a time stamp that Spark can't represent becomes null instead of failing the task.
    valid_utf8: whether bytes of values that are not UTF-8 are replaced.
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
    valid_utf8: bool = False


def read(task: ReadTask, kept: KeptConsumers = CONSUMERS) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of a task's range. Raises DataLoss, InvalidTimestamp and the client's errors.

    kept: the consumers of earlier tasks. A new consumer replaces one that fails before it has read anything.
    """
    settings = {"partition_max_bytes": _FETCH_BYTES, **task.client}
    lent = kept.lend(task.bootstrap, settings)
    begun = False
    while True:
        try:
            for batch in _read(task, lent.consumer):
                begun = True
                yield batch
        except BaseException as error:  # also GeneratorExit: Spark needs no more rows
            lent.close()
            if begun or not lent.was_kept or not isinstance(error, PylogdError):
                raise
            _log.info("A consumer that was kept from an earlier task failed, opening a new one: %s", error)
            lent = kept.lend(task.bootstrap, settings, fresh=True)
        else:
            kept.give_back(lent)
            return


def _read(task: ReadTask, consumer: Consumer) -> Iterator[pa.RecordBatch]:
    wanted = task.range
    partition = (wanted.topic, wanted.partition)
    schema = arrow_schema(task.include_headers, task.include_timestamp_ms)
    consumer.assign({partition: wanted.start}, until={partition: wanted.end})
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
    if not known or not any(known) or known.hex() == task.topic_id:  # the id is all zero if the broker has no topic ids
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
    if not task.null_timestamps:
        _check_times(columns, wanted)
    rows = source_rows(columns, wanted.topic, wanted.partition, schema)
    if task.valid_utf8:
        at = schema.get_field_index("value")
        rows = rows.set_column(at, schema.field(at), _valid(rows.column("value"), rows.column("timestamp")))
    yield rows


def _valid(values: pa.Array, times: pa.Array) -> pa.Array:
    """Replace bytes that are not UTF-8, except in records without a time stamp, whose bytes the quarantine keeps."""
    return pc.if_else(pc.is_valid(times), as_text(values).cast(pa.binary()), values)


def _check_times(columns: pa.RecordBatch, wanted: OffsetRange) -> None:
    """Raise InvalidTimestamp for the first time stamp that Spark can't represent."""
    stamps = columns.column("timestamp")
    is_valid = representable(stamps)
    if is_valid is not None:
        at = pc.index(is_valid, False).as_py()
        offset = columns.column("offset")[at].as_py()
        raise InvalidTimestamp(wanted.topic, wanted.partition, offset, stamps[at].cast(pa.int64()).as_py())
