"""Find out how the transactions in a part of a log ended, so that compaction never keeps an aborted record.

The batch headers are read once, in order, and the records of control batches too. A transaction belongs to a producer
and extends from its first batch to its marker. Only logs that have transactional batches are read for this.

Source: KIP-98.
"""

from __future__ import annotations

from pylogd.broker.log.compaction.rewrite import read_columns
from pylogd.broker.log.errors import CorruptRecord
from pylogd.broker.log.markers import END_MARKERS
from pylogd.wire.records import BatchHeader, Buffer, ControlType

_TYPE = slice(2, 4)  # the type in the key of a control record, which is int16 version, int16 type


class TransactionOutcomes:
    """Which transactional batches were aborted, and where the first open transaction starts."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> offset of the first batch
        self._aborted: dict[int, list[tuple[int, int]]] = {}  # producer id -> offsets of first batch and marker

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        """Add the next batch. Batches must be added in the order of the log."""
        if header.is_control:
            kind = control_type(header, batch)
            first = self._open.pop(header.producer_id, None) if kind in END_MARKERS else None
            if first is not None and kind == ControlType.ABORT:
                self._aborted.setdefault(header.producer_id, []).append((first, header.base_offset))
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)

    @property
    def first_open(self) -> int | None:
        """The offset of the first batch of an open transaction; None if no transaction is open."""
        return min(self._open.values(), default=None)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        return any(first <= header.base_offset < end for first, end in self._aborted.get(header.producer_id, ()))


def control_type(header: BatchHeader, batch: Buffer) -> int:
    """Return the type of a control batch, as in `ControlType`; -1 if compaction has removed its record."""
    keys = read_columns(batch, header).keys
    if not keys:
        return -1
    if keys[0] is None or len(keys[0]) < _TYPE.stop:
        raise CorruptRecord("a control record has no type")
    return int.from_bytes(keys[0][_TYPE], "big")
