"""Write the rows of an epoch to topics in one transaction, exactly once.

An epoch is a micro-batch of a streaming query; a batch query is one epoch without a number.

Strategy: tasks write nothing. Each encodes its rows as record batches (`encode`), which Spark takes to the driver with
the task's commit message. Once all tasks have succeeded, the driver sends the batches in one transaction (`commit`).
The transaction also commits an offset of a group that belongs to the query alone: the number of the epoch.

Exactly once follows from the order of steps in `commit`:
1. The new producer fences earlier producers with the same transactional id. From then on their transaction is decided.
2. The number of the last committed epoch is read. Spark repeats an epoch if it died between this commit and its own
commit log; it repeats no earlier epoch. An epoch    that was committed already is not written again.
3. Rows and number are committed together. A driver that was thought dead is fenced by step 1 of its successor, so only
one of them can commit.

Tasks do not write to the open transaction themselves, although that would avoid the way through the driver. A partition
accepts the sequence numbers of a producer from one writer only, and a Python data source can't ask Spark to shuffle
rows by partition. Also, rows of failed and speculative attempts would be in the transaction, so each repeated task
would force Spark to repeat the epoch, and consumers of committed records would wait for the slowest task.

Rules: `encode` runs on executors, `commit` on the driver; they share only the options.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pylogd.base.clock import wall_ms
from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client import (
    Admin,
    GroupMetadata,
    Producer,
    ProducerFenced,
    RequestTimedOut,
    TopicPartition,
    TransactionAborted,
)
from pylogd.client.blocking.encoded import BatchEncoder, send_encoded
from pylogd.client.core.model import OffsetAndMetadata
from pylogd.client.core.producer.columns import EncodedBatch
from pylogd.lake.spark.errors import EpochNotCommitted, StaleCheckpoint, WriteError
from pylogd.lake.spark.sink_options import SinkOptions
from pylogd.lake.spark.writing import by_topic

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"  # StreamExecution.QUERY_ID_KEY, a local property of Spark's tasks
_TRIES: Final = 3
#: Error codes of a batch whose producer was fenced. A retry would fence the producer that has taken over.
_OUTDATED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_RECORDED: Final = "the last epoch that a Spark query has committed"
_REPEAT: Final = "Consumers of committed records see none of its rows. Start the query again, which repeats it."
_UNKNOWN: Final = "It is not known whether its rows were committed."
_FENCED: Final = (
    "Either the transaction took longer than 'kafka.transaction.timeout.ms', or another query has the same sink option "
    "'transactional': give each query a name of its own. Then start the query again, which repeats what was not "
    "committed."
)


@dataclass
class EncodedRows(WriterCommitMessage):
    """The encoded rows of a task.

    query_id: the id of the streaming query; None in a batch query.
    """

    rows: int
    query_id: str | None
    batches: list[EncodedBatch] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Epoch:
    """A micro-batch: its number, and the id of its query, which is the same after a restart from the checkpoint."""

    number: int
    query_id: str

    def group_of(self, transactional_id: str) -> str:
        """Return the name of the group whose committed offset is the number of the last committed epoch."""
        return f"{transactional_id}-{self.query_id}"


def encode(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> EncodedRows:
    """Return the rows of a task as record batches. Raises WriteError and the client's errors."""
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
    count = 0
    with BatchEncoder(options.bootstrap, **options.producer()) as encoder:
        for topic, rows in by_topic(options, batches):
            try:
                encoder.add(topic, rows, wall_ms())
            except ValueError as error:
                raise WriteError(str(error)) from error
            count += rows.num_rows
        return EncodedRows(count, query_id, encoder.finish())


def epoch_of(messages: Sequence[EncodedRows], number: int) -> Epoch | None:
    """Return the epoch that the tasks' messages name; None if there are no rows. Raises EpochNotCommitted."""
    query_ids = {message.query_id for message in messages if message.rows}
    if not query_ids:
        return None
    query_id = query_ids.pop()
    if query_ids or query_id is None:
        raise EpochNotCommitted(number, f"its tasks do not have one and the same local property '{_QUERY_ID}'", _REPEAT)
    return Epoch(number, query_id)


def commit(options: SinkOptions, messages: Sequence[EncodedRows], epoch: Epoch | None) -> bool:
    """Write the rows of all tasks in one transaction, with the number of the epoch unless it is None.

    Returns False if the epoch was committed before, or if there are no rows. Tries again if the transaction was
    aborted, or if its outcome is unknown, since the next try finds it out. Raises EpochNotCommitted, and
    StaleCheckpoint if a later epoch was committed.
    """
    batches = [batch for message in messages for batch in message.batches]
    if not batches:
        return False
    number = None if epoch is None else epoch.number
    tries = 1 if epoch is None else _TRIES
    while True:
        tries -= 1
        try:
            return _commit(options, batches, epoch)
        except StaleCheckpoint:
            raise
        except ProducerFenced as error:
            raise EpochNotCommitted(number, str(error), _FENCED) from error
        except (TransactionAborted, RequestTimedOut) as error:
            if isinstance(error.__cause__, KafkaError) and error.__cause__.code in _OUTDATED:
                raise EpochNotCommitted(
                    number, str(error), _FENCED
                ) from error  # a leader reported the fencing before the coordinator
            if not tries:
                open_outcome = epoch is None and isinstance(error, RequestTimedOut)
                raise EpochNotCommitted(number, str(error), _UNKNOWN if open_outcome else _REPEAT) from error
            _log.warning("Spark epoch %s was not committed, trying again: %s", number, error)
        except PylogdError as error:
            raise EpochNotCommitted(number, str(error), _REPEAT) from error


def _commit(options: SinkOptions, batches: Sequence[EncodedBatch], epoch: Epoch | None) -> bool:
    assert options.transactional is not None
    with Producer(options.bootstrap, **options.producer()) as producer:
        producer.init_transactions()
        if epoch is not None and _is_committed(options, epoch):
            _log.info("Spark epoch %d was committed before: its rows are not written again", epoch.number)
            return False
        with producer.transaction() as transaction:
            for batch in batches:
                send_encoded(producer, batch)
            if epoch is not None:
                place = TopicPartition(min(batch.topic for batch in batches), 0)
                record = OffsetAndMetadata(epoch.number, _RECORDED)
                transaction.send_offsets({place: record}, GroupMetadata(epoch.group_of(options.transactional)))
    return True


def _is_committed(options: SinkOptions, epoch: Epoch) -> bool:
    """Return whether an epoch is the last that was committed. Raises StaleCheckpoint if a later one is."""
    assert options.transactional is not None
    group = epoch.group_of(options.transactional)
    with Admin(options.bootstrap, **options.admin()) as admin:
        found = admin.group_offsets(group)
    last = max((offset.offset for offset in found.values()), default=-1)
    if last > epoch.number:
        raise StaleCheckpoint(epoch.number, last, group)
    return last == epoch.number
