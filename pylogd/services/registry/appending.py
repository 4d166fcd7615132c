"""Append to a topic with several writers, on condition that the writer has read all records of the topic.

Strategy: all writers share one producer id. The partition's leader accepts an idempotent producer's batch only if its
sequence number follows the previous one. A writer sends the number after that of the last record it has read, so its
append succeeds only if no other writer has appended since (compare and append). Each record has its sequence number in
a header, where every reader finds it. A writer whose append is refused reads the new records and computes its change
again.

Rules:
- If two writers send the same number, the leader takes the second batch for a retry, and answers with the first batch's
  offset. So each append has a random token in its headers; it has succeeded only if the token is read back at this
  offset.
- If no record shows the next number (the last ones were deleted, or other programs wrote to the topic), a writer
  appends   a takeover record with the next producer epoch. Once it has read this record back, it has read all earlier
  records too,   and the leader refuses numbers of earlier epochs.
- These rules do not stop writers without this producer id, such as other registries.

Not thread-safe. Source: KIP-98 (producer epochs and sequence numbers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pylogd.base.clock import wall_ms
from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.admin.offsets import leader_of
from pylogd.client.core.model import TopicPartition
from pylogd.client.deferred import Cluster
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch

#: The shared producer id. Brokers give out ids from 0 on, and never reach this one.
PRODUCER_ID = int.from_bytes(b"_schemas", "big")
_HEADER = "pylogd.writer"
_LAST_WITH_NAMES = 12  # the last version of Produce with names of topics; later ones have topic ids
_LATEST = -1
_CONSUMER = -1  # the replica id of all clients that are not brokers
_REFUSED = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.PRODUCER_FENCED,
    }
)


class ConcurrentAppend(PylogdError):
    """The append was refused: another writer appended first, or the sequence number was wrong."""


class BatchSequence(NamedTuple):
    """The producer epoch and the sequence number of a record."""

    epoch: int
    number: int


class AppendStamp(NamedTuple):
    """The header of a record: its sequence number, and the token of the append that wrote it."""

    sequence: BatchSequence
    token: str


FIRST = BatchSequence(0, 0)


def stamp_of(headers: Iterable[tuple[str, bytes | None]]) -> AppendStamp | None:
    """Return the stamp in the headers of a record, or None if another program wrote the record."""
    for name, value in headers:
        if name == _HEADER and value is not None:
            epoch, _, rest = value.decode("ascii", "replace").partition(":")
            sequence, _, token = rest.partition(":")
            if epoch.isdigit() and sequence.isdigit():
                return AppendStamp(BatchSequence(int(epoch), int(sequence)), token)
    return None


class TopicAppender:
    """Appends to partition 0 of a topic. `timeout`, in seconds, bounds a call with all its retries."""

    def __init__(self, cluster: Cluster, topic: str, timeout: float) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(topic, 0)
        self._timeout = timeout

    async def append(self, sequence: BatchSequence, token: str, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append (key, value) pairs as one batch that begins with `sequence`. Returns the offset of the first record.

        The append succeeded only if the caller then reads `token` at that offset. Raises ConcurrentAppend if nothing
        was written; after any other PylogdError the records may have been written.
        """
        now_ms = wall_ms()
        batch = encode_batch(
            [
                (key, value, now_ms, ((_HEADER, f"{sequence.epoch}:{sequence.number + at}:{token}".encode()),))
                for at, (key, value) in enumerate(records)
            ],
            producer_id=PRODUCER_ID,
            producer_epoch=sequence.epoch,
            base_sequence=sequence.number,
        )
        data = TopicProduceData(self._partition.topic, partition_data=[PartitionProduceData(0, batch)])
        request = ProduceRequest(acks=-1, timeout_ms=round(self._timeout * 1000), topic_data=[data])

        async def attempt() -> int:
            response = await self._ask_leader(request, _LAST_WITH_NAMES)
            answer = response.responses[0].partition_responses[0]
            code = error_for(answer.error_code)
            if code in _REFUSED:
                raise ConcurrentAppend(f"{self._partition}: {answer.error_message or code.text}")
            if code:
                raise KafkaError(code, answer.error_message or code.text)
            return int(answer.base_offset)

        return await self._cluster.call(attempt, self._timeout)

    async def end_offset(self) -> int:
        """Return the offset after the last committed record."""
        partition = ListOffsetsPartition(0, timestamp=_LATEST)
        request = ListOffsetsRequest(_CONSUMER, topics=[ListOffsetsTopic(self._partition.topic, [partition])])

        async def attempt() -> int:
            answer = (await self._ask_leader(request)).topics[0].partitions[0]
            if answer.error_code:
                raise KafkaError(error_for(answer.error_code))
            return int(answer.offset)

        return await self._cluster.call(attempt, self._timeout)

    async def _ask_leader(self, request: Any, highest: int | None = None) -> Any:
        leader = await leader_of(self._cluster, self._partition)
        return await self._cluster.send(Question(type(request), lambda _: request, leader, highest))
