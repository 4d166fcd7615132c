"""Accept a batch by its header alone, without inspecting its records. Nearly all batches can be accepted so.

Strategy: the header is unpacked once and compared, in one condition, with limits that were computed ahead for the
active segment. A batch that is not accepted need not be wrong: `check_batches` decides.
`tests/property/test_log_append.py` proves that both agree.

Must not know: which partition a batch is for, who may write what.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.files import Buffer
from pylogd.broker.log.index import MAX_RELATIVE
from pylogd.broker.log.producers import MAX_SEQUENCE, Producers
from pylogd.broker.log.segment import Segment
from pylogd.broker.log.transactions import TransactionTerms
from pylogd.broker.log.validator import MAX_CODEC
from pylogd.wire.records import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    crc32c,
)
from pylogd.wire.validation import INLINE_BYTES, batch_is_valid, frame_is_valid

_unpack_header = HEADER.unpack_from
_new_header = BatchHeader._make

#: The attributes of batches that are not transactional, without a codec and with any codec; then the same for
#: transactional batches.
_UNCOMPRESSED = frozenset({0}), frozenset({TRANSACTIONAL})
_ANY_CODEC = frozenset(range(MAX_CODEC + 1)), frozenset(range(TRANSACTIONAL, TRANSACTIONAL + MAX_CODEC + 1))
_NONE: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()
_MARKER = TRANSACTIONAL | CONTROL
#: The fields of an accepted batch: last offset delta, largest time stamp, producer id, producer epoch, first sequence
#: number.
BatchFields = tuple[int, int, int, int, int]
#: The limits of a compiled check of a client's batch outside of transactions: `max_bytes`, `segment_bytes`,
#: `last_offset`, `roll_timestamp`, `before_max_ms` and `after_max_ms` of `FastAccept`, and the highest codec.
CompiledLimits = tuple[int, int, int, int, int, int, int]
_INT64_MAX = (1 << 63) - 1


class FastAccept:
    """The limits that batches are checked against.

    max_bytes: the most bytes of a client's batch.
    max_own_bytes: the most bytes of a batch of the broker's own.
    plain: the attributes of accepted batches outside of transactions. Their codec is none, or one whose batches need
        not be decompressed.
    transactional: the attributes of accepted batches of transactions, with the same codecs.
    is_valid: checks the records of a batch.
    segment_bytes: the size up to which clients' batches may grow the segment; -1 to accept none of them.
    own_segment_bytes: the same for the broker's own batches.
    last_offset: the highest offset that the segment's index can hold.
    roll_timestamp: a batch with a later time stamp goes to a new segment.
    before_max_ms: how far a time stamp may be in the past.
    after_max_ms: how far a time stamp may be in the future.
    compiled: the same limits for a compiled check; None if it must accept no batch.
    """

    __slots__ = (
        "after_max_ms", "before_max_ms", "compiled", "is_valid", "last_offset", "max_bytes", "max_own_bytes",
        "own_segment_bytes", "plain", "roll_timestamp", "segment_bytes", "transactional",
    )  # fmt: skip

    def __init__(self) -> None:
        """Refuse every batch."""
        self.max_bytes = self.max_own_bytes = self.segment_bytes = self.own_segment_bytes = -1
        self.compiled: CompiledLimits | None = None

    def set_limits(self, config: LogConfig, active: Segment, roll_ms: int) -> None:
        """Compute the limits for the active segment."""
        validated, aged = config.validate_records, config.limits_age
        self.max_bytes = min(config.max_message_bytes, INLINE_BYTES) if validated else config.max_message_bytes
        self.plain, self.transactional = _attributes(config)
        self.is_valid = batch_is_valid if validated else frame_is_valid
        self.max_own_bytes = config.max_message_bytes
        self.own_segment_bytes = config.segment_bytes
        by_header = not config.compacts and (validated or not aged)
        self.segment_bytes = self.own_segment_bytes if by_header else -1
        self.last_offset = active.base_offset + MAX_RELATIVE
        self.roll_timestamp = active.first_timestamp + roll_ms if active.first_timestamp >= 0 else -1
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.compiled = None
        if validated and self.segment_bytes >= 0 and 0 in self.plain:  # the compiled check accepts all codecs up to one
            self.compiled = (
                self.max_bytes, self.segment_bytes, min(self.last_offset, _INT64_MAX),
                min(self.roll_timestamp, _INT64_MAX), self.before_max_ms, self.after_max_ms, max(self.plain),
            )  # fmt: skip

    def check(
        self, records: Buffer, position: int, offset: int, now_ms: int, terms: TransactionTerms | None = None
    ) -> BatchFields | None:
        """Return the fields of a batch if it can be appended at `position` with base offset `offset`, else None.

        terms: for a batch that must be transactional; None for one that must not be transactional.
        """
        size = len(records)
        if not (HEADER_SIZE <= size <= self.max_bytes and position + size <= self.segment_bytes):
            return None
        (
            base, length, _, magic, crc, attributes, delta, first, newest, producer_id, epoch, sequence, count,
        ) = _unpack_header(records)  # fmt: skip
        if (
            length + LENGTH_OVERHEAD == size
            and magic == MAGIC
            and attributes in (self.plain if terms is None else self.transactional)
            and count == delta + 1 > 0 == base
            and 0 <= first <= newest <= now_ms + self.after_max_ms
            and newest <= self.roll_timestamp
            and offset + delta <= self.last_offset
            and (producer_id == -1 or (sequence >= 0 and epoch >= 0 and producer_id >= 0))
            and crc32c(memoryview(records)[CRC_START:]) == crc
            and self.is_valid(records, now_ms - self.before_max_ms)
        ):
            return delta, newest, producer_id, epoch, sequence
        return None

    def check_own(self, records: Buffer, position: int, offset: int) -> BatchHeader | None:
        """Return the header of one batch of the broker's own if it can be appended as in `check`, else None.

        The broker's own batches are valid, except for the values that a marker's request determines. Batches of a
        producer that are not markers must be compared with the producer's earlier batches, so they are not accepted.
        """
        size = len(records)
        if not (HEADER_SIZE <= size <= self.max_own_bytes and position + size <= self.own_segment_bytes):
            return None
        header = _new_header(_unpack_header(records))
        if (
            header.batch_length + LENGTH_OVERHEAD == size
            and header.max_timestamp <= self.roll_timestamp
            and offset + header.last_offset_delta <= self.last_offset
            and (
                (header.producer_id == NO_PRODUCER_ID and 0 <= header.attributes <= MAX_CODEC)
                or (header.attributes == _MARKER and header.producer_id >= 0 and header.producer_epoch >= 0)
            )
        ):
            return header
        return None

    def check_all(
        self, batches: Sequence[memoryview], position: int, offset: int, now_ms: int, producers: Producers
    ) -> list[tuple[memoryview, int, BatchFields]]:
        """Return the batches, from the first on, that can be appended one after the other, with their base offsets.

        Idempotent batches are accepted only if they continue their producer's sequence; `Log.append` recognizes
        duplicates.
        """
        accepted: list[tuple[memoryview, int, BatchFields]] = []
        due: tuple[int, int, int] | None = None
        check = self.check
        for records in batches:
            fields = check(records, position, offset, now_ms)
            if fields is None:
                break
            delta, _, producer_id, epoch, sequence = fields
            if producer_id >= 0:
                if due != (producer_id, epoch, sequence) and (
                    accepted or not producers.due(producer_id, epoch, sequence)
                ):
                    break
                due = (producer_id, epoch, (sequence + delta + 1) & MAX_SEQUENCE)
            accepted.append((records, offset, fields))
            position += len(records)
            offset += delta + 1
        return accepted


def _attributes(config: LogConfig) -> tuple[frozenset[int], frozenset[int]]:
    """Return the attributes of batches that a log accepts by their headers: `plain` and `transactional`."""
    all_of_them = _UNCOMPRESSED if config.inspects_compressed or config.limits_age else _ANY_CODEC
    codec = config.codec
    if codec is None:
        return all_of_them
    if codec not in all_of_them[0]:
        return _NONE
    return frozenset({int(codec)}), frozenset({TRANSACTIONAL | codec})


#: Used by every log that is at rest, closed, empty or full, and by those with the broker's time stamps.
REFUSE_ALL = FastAccept()
