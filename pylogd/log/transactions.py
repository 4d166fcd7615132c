"""How the transactions in a stretch of a log ended, for the cleaner, which must not take an aborted value for the last.

Strategy: the headers of the stretch are walked once, and of control batches the record. A transaction is known by its
producer and runs from its first batch to the marker. This is only done for logs that have transactional batches.
Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogd.log.errors import CorruptRecord
from pylogd.log.rewrite import walk
from pylogd.wire.records import BatchHeader, Buffer, ControlType

_TYPE = slice(2, 4)  # of a control record's key: version (2), type (2)


class Outcomes:
    """Which transactional batches were aborted, and where the first one lies whose end is not known."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> offset of the first batch
        self._aborted: dict[int, list[tuple[int, int]]] = {}  # producer id -> first batch, marker

    def note(self, header: BatchHeader, batch: Buffer) -> None:
        """Take in the next batch of the stretch, in order."""
        if header.is_control:
            kind = control_kind(header, batch)
            first = self._open.pop(header.producer_id, None) if kind in ENDS else None
            if first is not None and kind == ControlType.ABORT:
                self._aborted.setdefault(header.producer_id, []).append((first, header.base_offset))
        elif header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)

    def note_all(self, batches: Iterable[tuple[BatchHeader, Buffer]]) -> None:
        """Take in a stretch."""
        for header, batch in batches:
            self.note(header, batch)

    @property
    def first_open(self) -> int | None:
        """The offset of the first batch whose transaction has no end yet; `None` if all have."""
        return min(self._open.values(), default=None)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch is of a transaction that was aborted."""
        if not header.is_transactional or header.is_control:
            return False
        return any(first <= header.base_offset < end for first, end in self._aborted.get(header.producer_id, ()))


ENDS = frozenset({int(ControlType.ABORT), int(ControlType.COMMIT)})


def control_kind(header: BatchHeader, batch: Buffer) -> int:
    """What a control batch says, as in `ControlType`; -1 of one that was emptied."""
    keys = walk(batch, header).keys
    if not keys:
        return -1
    if keys[0] is None or len(keys[0]) < _TYPE.stop:
        raise CorruptRecord("a control record without its type")
    return int.from_bytes(keys[0][_TYPE], "big")
