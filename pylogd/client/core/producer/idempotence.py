"""Assign sequence numbers to an idempotent producer's batches, so that a broker recognizes retries (KIP-98, KIP-360).

Strategy: the producer gets an id from any broker (InitProducerId). Each partition has its own epoch and its own
sequence number of the next record. A batch is numbered when it is first sent and keeps its numbers when it is sent
again. The broker accepts a batch only directly after the previous one, and recognizes the last five.

What follows from an answer:
- An acknowledged batch acknowledges all earlier batches of its epoch, because the broker accepted it after them.
  Earlier batches whose own answer was lost are written, at an unknown offset.
- OUT_OF_ORDER_SEQUENCE_NUMBER or UNKNOWN_PRODUCER_ID does not mean that a batch is not written: a restarted broker
  remembers fewer batches. So all batches that may be written are sent again together. If the broker recognizes none of
  them, there is a gap, and none of them is written.
- Then, and after a batch was given up, the partition starts the next epoch at sequence 0, and waiting batches get new
  numbers. The epoch is raised here and not by InitProducerId, which gives an idempotent producer a new id: only a
  higher epoch of the same id makes the broker refuse a request with the old numbers that is still on its way.
- INVALID_PRODUCER_EPOCH means that another producer raised the epoch: a new id is needed, as after the last epoch.
- A transactional producer gets its id and epoch from its coordinator. Where another producer would start a new epoch or
  request another id, the transaction is broken, and the coordinator gives another epoch when it is aborted
  (`transactions.py`).

Rules: until a partition's first batch of an epoch is acknowledged, only one batch is in flight: a broker that does not
know the producer accepts any sequence number, so the second batch could be written without the first. No I/O: the send
queue (`send_queue.py`) calls this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.producer.accumulator import MAX_SEQUENCE, Batch
from pylogd.client.core.producer.options import MAX_IN_FLIGHT
from pylogd.wire.records import NO_PRODUCER_ID, NO_SEQUENCE

MAX_EPOCH = (1 << 15) - 1

OUT_OF_ORDER = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED})

#: Errors of a broker that has appended nothing. After any other error the batch may be written.
_NOT_WRITTEN = (
    OUT_OF_ORDER
    | FENCED
    | {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def may_be_written(error: PylogdError) -> bool:
    """Whether a batch may be in the log although its request failed with `error`."""
    return not (isinstance(error, KafkaError) and error.code in _NOT_WRITTEN)


@dataclass(slots=True, eq=False)
class ProducerId:
    """The producer id that was received last.

    wanted: whether another id is needed.
    transactional: whether a coordinator gives the ids and the epochs.
    """

    transactional: bool = field(default=False, kw_only=True)
    producer_id: int = NO_PRODUCER_ID
    epoch: int = 0
    wanted: bool = True

    def given(self, producer_id: int, epoch: int) -> None:
        """Store the answer to InitProducerId."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.wanted = False


class Numbering:
    """The numbers of one partition. `waiting` has its batches that are not in flight and have no result, in order."""

    __slots__ = ("_confirmed", "_epoch", "_given_up", "_id", "_next", "_producer_id")

    def __init__(self, producer_id: ProducerId) -> None:
        """Numbering begins once `producer_id` is known."""
        self._id = producer_id
        self._producer_id = NO_PRODUCER_ID
        self._epoch = 0
        self._next = 0
        self._confirmed = False  # whether a batch of this epoch was acknowledged
        self._given_up: float | None = None  # the last given-up batch with numbers, if no later one is acknowledged

    def next(self, waiting: Sequence[Batch], in_flight: int) -> Batch | None:
        """Return the batch that may be sent now, with its sequence numbers, given the number of batches in flight.

        Returns None if there is none, or if a producer id is needed first.
        """
        if self._producer_id == NO_PRODUCER_ID:
            if self._id.wanted:
                return None
            self._start(self._id.producer_id, self._id.epoch)
        first = waiting[0]
        if first.out_of_order:
            probes = [batch for batch in waiting if batch.maybe_written and not batch.out_of_order]
            return probes[0] if probes else None
        if in_flight and not self._confirmed:  # this also holds for parts of a split batch, which have numbers
            return None
        if first.sequence == NO_SEQUENCE:
            first.producer_id, first.epoch, first.sequence = self._producer_id, self._epoch, self._next
            self._next = (self._next + first.count) & MAX_SEQUENCE
        return first if in_flight < MAX_IN_FLIGHT else None

    def acked(self, batch: Batch, waiting: Sequence[Batch]) -> list[Batch]:
        """Record that a batch is written. Return the waiting batches that are thereby known to be written too."""
        if (batch.producer_id, batch.epoch) == (self._producer_id, self._epoch):
            self._confirmed = True
            if self._given_up is not None and self._given_up < batch.number:
                self._given_up = None
        confirmed = []
        for other in waiting:
            if other.number > batch.number:
                break  # all that follow have higher numbers too; there may be thousands
            if other.maybe_written and (other.producer_id, other.epoch) == (batch.producer_id, batch.epoch):
                confirmed.append(other)
        return confirmed

    def refused(self, batch: Batch, code: ErrorCode) -> bool:
        """Record an error of the sequence numbers, after which the batch is sent again. Return False for any other
        error.
        """
        if code in FENCED:
            if self._id.transactional:
                return False
            if batch.producer_id == self._producer_id:
                self._want_another()
        elif code not in OUT_OF_ORDER:
            return False
        batch.out_of_order = True
        return True

    def gave_up(self, batch: Batch) -> None:
        """Record that a batch will not be sent again."""
        if batch.sequence != NO_SEQUENCE:
            self._given_up = batch.number

    def settle(self, waiting: Sequence[Batch]) -> bool:
        """Start a new epoch if that is necessary and safe. None of the partition's batches is in flight.

        Returns False if a new epoch is necessary, but only the coordinator may start it.
        """
        numbered = [batch for batch in waiting if batch.sequence != NO_SEQUENCE]
        if self._given_up is None and not (numbered and numbered[0].out_of_order):
            for batch in numbered:
                batch.out_of_order = False  # it failed only because an earlier batch failed
            return True
        if any(batch.maybe_written and not batch.out_of_order for batch in numbered):
            return True  # first these batches are sent again with their old numbers
        if self._id.transactional:
            return False
        for batch in numbered:
            batch.sequence = NO_SEQUENCE
            batch.maybe_written = batch.out_of_order = False
        if self._producer_id != NO_PRODUCER_ID:
            if self._epoch < MAX_EPOCH:
                self._start(self._producer_id, self._epoch + 1)
            else:
                self._want_another()
        return True

    def _start(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._next = 0
        self._confirmed = False
        self._given_up = None

    def _want_another(self) -> None:
        if self._id.producer_id == self._producer_id:
            self._id.wanted = True
        self._producer_id = NO_PRODUCER_ID
