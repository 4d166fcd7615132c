"""What a plain batch is: a client's, whole and sound, for an active segment that has room for it, as nearly all are.

Strategy: one unpack of the header and one condition, against limits that the log works out ahead. What is not plain
need not be wrong: `check_batches` looks at that, and says what is. A property test holds that both agree.
Must not know: where a batch goes, who may write what.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.log.config import LogConfig
from pylogd.log.files import Buffer
from pylogd.log.index import MAX_RELATIVE
from pylogd.log.producers import MAX_SEQUENCE, Producers
from pylogd.log.segment import Segment
from pylogd.log.validator import MAX_CODEC
from pylogd.wire.records import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, crc32c
from pylogd.wire.validation import INLINE_BYTES, batch_is_valid, frame_is_valid

_unpack_header = HEADER.unpack_from

#: Last offset delta, largest time stamp, producer id, producer epoch, first sequence number.
Plain = tuple[int, int, int, int, int]


class PlainBatches:
    """The limits, and the look at a batch.

    max_bytes: of a batch. max_codec: the largest number of a codec that need not be looked into. is_valid: what holds
    for the records. segment_bytes: what the segment may grow to, -1 where nothing is plain. last_offset: the
    last that fits the segment's index. roll_timestamp: records that are younger go to a new segment. before_max_ms,
    after_max_ms: how far time stamps may be off.
    """

    __slots__ = (
        "after_max_ms", "before_max_ms", "is_valid", "last_offset", "max_bytes", "max_codec", "roll_timestamp",
        "segment_bytes",
    )  # fmt: skip

    def set_limits(self, config: LogConfig, active: Segment, roll_ms: int, usable: bool) -> None:
        """Work them out for this active segment, which is `usable` or takes no plain batch at all."""
        validated, aged = config.validate_records, config.limits_age
        self.max_bytes = min(config.max_message_bytes, INLINE_BYTES) if validated else config.max_message_bytes
        self.max_codec = 0 if config.validate_compressed or aged else MAX_CODEC
        self.is_valid = batch_is_valid if validated else frame_is_valid
        self.segment_bytes = config.segment_bytes if usable and (validated or not aged) else -1
        self.last_offset = active.base_offset + MAX_RELATIVE
        self.roll_timestamp = active.first_timestamp + roll_ms if active.first_timestamp >= 0 else -1
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = config.message_timestamp_after_max_ms

    def look(self, records: Buffer, position: int, offset: int, now_ms: int) -> Plain | None:
        """What there is to know of `records`, if a plain batch to stand at `position` and begin with `offset`."""
        size = len(records)
        if not (HEADER_SIZE <= size <= self.max_bytes and position + size <= self.segment_bytes):
            return None
        (
            base, length, _, magic, crc, attributes, delta, first, newest, producer_id, epoch, sequence, count,
        ) = _unpack_header(records)  # fmt: skip
        if (
            length + LENGTH_OVERHEAD == size
            and magic == MAGIC
            and 0 <= attributes <= self.max_codec
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

    def place(
        self, run: Sequence[memoryview], position: int, offset: int, now_ms: int, producers: Producers
    ) -> list[tuple[memoryview, int, Plain]]:
        """Those from the front that are plain batches one behind the other, each with its base offset.

        Of idempotent ones only what goes on where its producer was: what else may come of them is not for here.
        """
        placed: list[tuple[memoryview, int, Plain]] = []
        due: tuple[int, int, int] | None = None
        look = self.look
        for records in run:
            plain = look(records, position, offset, now_ms)
            if plain is None:
                break
            delta, _, producer_id, epoch, sequence = plain
            if producer_id >= 0:
                if due != (producer_id, epoch, sequence) and (
                    placed or not producers.due(producer_id, epoch, sequence)
                ):
                    break
                due = (producer_id, epoch, (sequence + delta + 1) & MAX_SEQUENCE)
            placed.append((records, offset, plain))
            position += len(records)
            offset += delta + 1
        return placed
