"""Appends to a topic that several processes write, each only to what it has read.

Strategy: all writers share one producer id. Of an idempotent producer a partition's leader accepts only the batch whose
sequence number follows the last one, so a writer that sends the number after the last record it has read can append
only if nobody has written since: compare and append, decided by the log. The numbers are in a header of each record,
where every reader finds them. A writer that is refused reads on and works its change out again.

Rules:
- A leader answers a batch it has with the offset of the first, and can't tell whose it was. So a batch is a writer's
  own only once its token was read back from that offset.
- Where the topic no longer says which number is next (its last records were deleted, or others wrote to it), a writer
  appends a takeover record in the next producer epoch. Once that is read back everything before it was read too, and
  numbers of the epochs before are refused.
- Writers without that producer id, such as a registry of another make, are not kept out.

One thread at a time. Source: KIP-98 (sequence numbers, epochs).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.admin.offsets import leader_of
from pylogd.client.core.model import TopicPartition
from pylogd.clock import wall_ms
from pylogd.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch

#: Brokers hand out producer ids from 0 on; they never reach this one.
PRODUCER_ID = int.from_bytes(b"_schemas", "big")
_HEADER = "pylogd.writer"
_LAST_WITH_NAMES = 12  # of Produce
_LATEST = -1
_REFUSED = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.PRODUCER_FENCED,
    }
)


class Outrun(PylogdError):
    """Somebody else has written since, or nobody knows which number is next."""


class Turn(NamedTuple):
    """The producer epoch and sequence number of a record."""

    epoch: int
    sequence: int


class Stamp(NamedTuple):
    """What the header of a record says: its turn, and the token of the append that it belongs to."""

    turn: Turn
    token: str


FIRST = Turn(0, 0)


def stamp_of(headers: Iterable[tuple[str, bytes | None]]) -> Stamp | None:
    """The stamp of a record; None of one that another kind of writer has written."""
    for name, value in headers:
        if name == _HEADER and value is not None:
            epoch, _, rest = value.decode("ascii", "replace").partition(":")
            sequence, _, token = rest.partition(":")
            if epoch.isdigit() and sequence.isdigit():
                return Stamp(Turn(int(epoch), int(sequence)), token)
    return None


class TopicAppender:
    """Appends to partition 0 of a topic. `timeout`, in seconds, bounds a call with all its retries."""

    def __init__(self, bootstrap: str, topic: str, timeout: float) -> None:
        self._cluster = Cluster(bootstrap, request_timeout=timeout, retry_timeout=timeout)
        self._partition = TopicPartition(topic, 0)
        self._timeout_ms = round(timeout * 1000)

    def append(self, turn: Turn, token: str, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append (key, value) pairs as one batch, which begins with `turn`; the offset of the first.

        The caller has to read `token` back from there. Raises Outrun; any other PylogdError leaves open whether they
        were written.
        """
        now_ms = wall_ms()
        batch = encode_batch(
            [
                (key, value, now_ms, ((_HEADER, f"{turn.epoch}:{turn.sequence + at}:{token}".encode()),))
                for at, (key, value) in enumerate(records)
            ],
            producer_id=PRODUCER_ID,
            producer_epoch=turn.epoch,
            base_sequence=turn.sequence,
        )
        data = TopicProduceData(self._partition.topic, partition_data=[PartitionProduceData(0, batch)])
        request = ProduceRequest(acks=-1, timeout_ms=self._timeout_ms, topic_data=[data])

        async def attempt() -> int:
            response = await self._ask_leader(request, _LAST_WITH_NAMES)
            answer = response.responses[0].partition_responses[0]
            code = error_for(answer.error_code)
            if code in _REFUSED:
                raise Outrun(f"{self._partition}: {answer.error_message or code.text}")
            if code:
                raise KafkaError(code, answer.error_message or code.text)
            return int(answer.base_offset)

        return self._cluster.call(attempt)

    def end_offset(self) -> int:
        """The offset after the last committed record."""
        partition = ListOffsetsPartition(0, timestamp=_LATEST)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(self._partition.topic, [partition])])

        async def attempt() -> int:
            answer = (await self._ask_leader(request)).topics[0].partitions[0]
            if answer.error_code:
                raise KafkaError(error_for(answer.error_code))
            return int(answer.offset)

        return self._cluster.call(attempt)

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    async def _ask_leader(self, request: Any, highest: int | None = None) -> Any:
        calls = self._cluster.evented
        leader = await leader_of(calls, self._partition)
        return await calls.send(Question(type(request), lambda _: request, leader, highest))
