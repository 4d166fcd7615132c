"""Sequence numbers of an idempotent producer: what makes a retry known as one (KIP-98, KIP-360).

Strategy: the producer gets an id from any broker (InitProducerId). Each partition counts for itself: an epoch, and the
sequence number of the next record. A batch is numbered when it is first sent and keeps its numbers through all of its
tries; the broker takes a batch only right behind the one before it, and knows the last five again.

What follows from an answer:
- an ack of a batch is one of all before it in its epoch, since the broker took it behind them: those whose own answer
  was lost are written, at an offset that is not known;
- OUT_OF_ORDER_SEQUENCE_NUMBER or UNKNOWN_PRODUCER_ID does not say that a batch is not written: a broker that was
  restarted remembers fewer batches. So all batches that may be written are tried again together; if none of them is
  known to the broker, there is a gap, and nothing of them is written;
- then, and after a batch was given up, the partition starts a new epoch, one higher, at sequence 0, and what waits is
  numbered anew. The epoch is raised here and not by InitProducerId, which gives an idempotent producer a new id: only
  a higher epoch of the same id keeps the broker from taking a try of the old numbers that is still on its way.
- INVALID_PRODUCER_EPOCH means that somebody else raised it: a new id is needed, and so it is after the last epoch.

Rules: until a partition's first batch of an epoch is acked, one batch is under way: a broker that does not know the
producer takes any sequence number, so the second could go in without the first.
Sans I/O; `outbox.py` asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.client.core.producer.accumulator import MAX_SEQUENCE, Batch
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.wire.records import NO_PRODUCER_ID, NO_SEQUENCE

MAX_EPOCH = (1 << 15) - 1
#: More than this many batches of a partition under way, and the broker would not know a retry of the first.
MAX_IN_FLIGHT = 5

OUT_OF_ORDER = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED})

#: Answers before anything is appended. After any other error the batch may be written.
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
    }
)


def may_be_written(error: PylogdError) -> bool:
    """Whether a batch whose try came to this may be in the log nevertheless."""
    return not (isinstance(error, KafkaError) and error.code in _NOT_WRITTEN)


class ProducerId:
    """The id that was given to this producer last. `wanted` says that InitProducerId is to be asked."""

    __slots__ = ("epoch", "producer_id", "wanted")

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = 0
        self.wanted = True

    def given(self, producer_id: int, epoch: int) -> None:
        """InitProducerId was answered."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.wanted = False


class Numbering:
    """The numbers of one partition. `waiting` are its batches that have no result and are not under way, in order."""

    __slots__ = ("_confirmed", "_epoch", "_given_up", "_id", "_next", "_producer_id")

    def __init__(self, producer_id: ProducerId) -> None:
        """Starts with `producer_id`, once that is given."""
        self._id = producer_id
        self._producer_id = NO_PRODUCER_ID
        self._epoch = 0
        self._next = 0
        self._confirmed = False  # a batch of this epoch was acked
        self._given_up: float | None = None  # the last numbered batch that was, if none behind it is acked

    def next(self, waiting: Sequence[Batch], flying: int) -> Batch | None:
        """Which batch may be sent now, numbered, with that many under way. None: none, or an id is wanted first."""
        if self._producer_id == NO_PRODUCER_ID:
            if self._id.wanted:
                return None
            self._start(self._id.producer_id, self._id.epoch)
        first = waiting[0]
        if first.out_of_order:
            probes = [batch for batch in waiting if batch.maybe_written and not batch.out_of_order]
            return probes[0] if probes else None
        if flying and not self._confirmed:  # also of the parts of a batch that was split, which have their numbers
            return None
        if first.sequence == NO_SEQUENCE:
            first.producer_id, first.epoch, first.sequence = self._producer_id, self._epoch, self._next
            self._next = (self._next + first.count) & MAX_SEQUENCE
        return first if flying < MAX_IN_FLIGHT else None

    def acked(self, batch: Batch, waiting: Sequence[Batch]) -> list[Batch]:
        """A batch is written. Which of those that wait for another try are written thereby?"""
        if (batch.producer_id, batch.epoch) == (self._producer_id, self._epoch):
            self._confirmed = True
            if self._given_up is not None and self._given_up < batch.number:
                self._given_up = None
        return [
            other
            for other in waiting
            if other.number < batch.number
            and other.maybe_written
            and (other.producer_id, other.epoch) == (batch.producer_id, batch.epoch)
        ]

    def refused(self, batch: Batch, code: ErrorCode) -> bool:
        """Note an answer about numbers, after which the batch is to be tried again; False if it was not one."""
        if code in FENCED:
            if batch.producer_id == self._producer_id:
                self._want_another()
        elif code not in OUT_OF_ORDER:
            return False
        batch.out_of_order = True
        return True

    def gave_up(self, batch: Batch) -> None:
        """A batch will not be tried again."""
        if batch.sequence != NO_SEQUENCE:
            self._given_up = batch.number

    def settle(self, waiting: Sequence[Batch]) -> None:
        """Nothing of the partition is under way. Start a new epoch if that is due, and safe."""
        numbered = [batch for batch in waiting if batch.sequence != NO_SEQUENCE]
        if self._given_up is None and not (numbered and numbered[0].out_of_order):
            for batch in numbered:
                batch.out_of_order = False  # only since one before it failed
            return
        if any(batch.maybe_written and not batch.out_of_order for batch in numbered):
            return  # those are tried again with their old numbers first
        for batch in numbered:
            batch.sequence = NO_SEQUENCE
            batch.maybe_written = batch.out_of_order = False
        if self._producer_id != NO_PRODUCER_ID:
            if self._epoch < MAX_EPOCH:
                self._start(self._producer_id, self._epoch + 1)
            else:
                self._want_another()

    def _start(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._next = 0
        self._confirmed = False
        self._given_up = None

    def _want_another(self) -> None:
        if self._id.producer_id == self._producer_id:
            self._id.wanted = True
        self._producer_id = NO_PRODUCER_ID
