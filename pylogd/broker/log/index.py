"""The indexes of a segment: from offsets to file positions, from time stamps to offsets, and of aborted transactions.

An index is an array in memory. That of the active segment grows there. It is written to the disk when the segment is
sealed or the log closed, never by an append: whatever a crash loses of it is after the recovery point, where the
segment is scanned and its indexes are rebuilt. The indexes of older segments are read whole when they are needed, and
kept in a bounded cache. They are not memory-mapped: a page fault on a mapping blocks the thread until the disk has
answered, and can't be predicted; a read can be tried without waiting, or moved to another thread.

The formats on the disk are Kafka's. All numbers are big-endian. An entry of an offset index has 8 bytes: the last
offset of a batch, relative to the segment's base offset, and the position of the batch. In memory it is one 64-bit
number, so that `bisect` works on the array. An entry of a time index has 12 bytes: the largest time stamp so far, and
the last offset of the batch that has it. Both columns of both indexes ascend.

The transaction index has an entry of 34 bytes for each transaction that a marker in the segment aborts, in the order of
the markers: int16 version (0), producer id, first offset, offset of the marker, and the last stable offset after it
(the first offset of all transactions that were open then, or the one behind the marker). It has no file while it is
empty.

Rules: arguments and results are absolute offsets; the entries have relative ones. Nothing here accesses a file.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import attrgetter

from pylogd.broker.log.transactions import AbortedTransaction

OFFSET_ENTRY = 8
TIME_ENTRY = 12
TRANSACTION_ENTRY = 34
MAX_RELATIVE = (1 << 31) - 1  # the most of relative offsets and positions: Kafka reads them as signed numbers

_LOW = (1 << 32) - 1
_position = _LOW.__and__  # the position of an entry
_TIME = struct.Struct(">qI")
_TRANSACTION = struct.Struct(">hqqqq")
_TRANSACTION_VERSION = 0
_marker_offset = attrgetter("last_offset")
_SWAP = sys.byteorder == "little"


class IndexCorrupt(ValueError):
    """The bytes can't be an index of this segment. It can be rebuilt from the log."""


class OffsetIndex:
    """Positions of batches, about one per `index.interval.bytes`."""

    __slots__ = ("base_offset", "entries")

    def __init__(self, base_offset: int, entries: array[int] | None = None) -> None:
        self.base_offset = base_offset
        self.entries: array[int] = array("Q") if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, last_offset: int, position: int) -> None:
        """Add the batch that ends with `last_offset` and starts at `position`."""
        self.entries.append((last_offset - self.base_offset) << 32 | position)

    def lookup(self, offset: int) -> int:
        """Return the position of a batch at or before the one with `offset`, from where to read batch headers."""
        at = bisect_right(self.entries, (offset - self.base_offset) << 32 | _LOW)
        return self.entries[at - 1] & _LOW if at else 0

    def lookup_position(self, position: int) -> int:
        """Return the position of the last batch in the index that starts at or before `position`."""
        at = bisect_right(self.entries, position, key=_position)
        return self.entries[at - 1] & _LOW if at else 0

    def bound_of(self, position: int) -> int | None:
        """Return an offset that follows all batches before `position`; None if the index has none."""
        at = bisect_left(self.entries, position, key=_position)
        return self.base_offset + (self.entries[at] >> 32) if at < len(self.entries) else None

    def last_position(self) -> int:
        """Return the position in the last entry; 0 if the index is empty."""
        return self.entries[-1] & _LOW if self.entries else 0

    def pairs(self) -> list[tuple[int, int]]:
        """Return all entries as (offset, position)."""
        return [(self.base_offset + (entry >> 32), entry & _LOW) for entry in self.entries]

    def truncate(self, offset: int, position: int) -> None:
        """Remove the entries from `offset` on, and the entries from `position` on."""
        keep = bisect_left(self.entries, (offset - self.base_offset) << 32)
        while keep and self.entries[keep - 1] & _LOW >= position:
            keep -= 1
        del self.entries[keep:]

    def to_bytes(self) -> bytes:
        """Return the contents of the file."""
        return _big_endian(self.entries)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int, log_size: int) -> OffsetIndex:
        """Parse an index file. Raises IndexCorrupt if it can't be that of a segment with `log_size` bytes."""
        if len(data) % OFFSET_ENTRY:
            raise IndexCorrupt(f"{len(data)} bytes are not a whole number of entries")
        entries = array("Q", data)
        if _SWAP:
            entries.byteswap()
        if any(map(_not_ascending, entries, entries[1:])):
            raise IndexCorrupt("offsets or positions do not ascend")
        if entries and (entries[-1] & _LOW >= log_size or entries[-1] >> 32 > MAX_RELATIVE):
            raise IndexCorrupt(f"the last entry points at byte {entries[-1] & _LOW} of {log_size}")
        return cls(base_offset, entries)

    @property
    def nbytes(self) -> int:
        """The memory of the entries in bytes."""
        return len(self.entries) * OFFSET_ENTRY


class TimeIndex:
    """The largest time stamp of all records up to certain offsets."""

    __slots__ = ("base_offset", "offsets", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("I")

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry: `timestamp` is the largest up to `offset`. Ignored unless both exceed the last entry."""
        relative = offset - self.base_offset
        if self.timestamps and (timestamp <= self.timestamps[-1] or relative <= self.offsets[-1]):
            return
        self.timestamps.append(timestamp)
        self.offsets.append(relative)

    def lookup(self, timestamp: int) -> int:
        """Return an offset at or before the first record with at least `timestamp`, from where to search for it."""
        at = bisect_right(self.timestamps, timestamp)
        return self.base_offset + self.offsets[at - 1] if at else self.base_offset

    def last(self) -> tuple[int, int] | None:
        """Return the last entry as (time stamp, offset): the largest time stamp of the segment; None if none."""
        return (self.timestamps[-1], self.base_offset + self.offsets[-1]) if self.timestamps else None

    def pairs(self) -> list[tuple[int, int]]:
        """Return all entries as (time stamp, offset)."""
        return [
            (stamp, self.base_offset + offset) for stamp, offset in zip(self.timestamps, self.offsets, strict=False)
        ]

    def truncate(self, offset: int) -> None:
        """Remove the entries from `offset` on."""
        keep = bisect_left(self.offsets, offset - self.base_offset)
        del self.timestamps[keep:]
        del self.offsets[keep:]

    def to_bytes(self) -> bytes:
        """Return the contents of the file."""
        count = len(self.offsets)  # this column is appended to last: another thread may be about to do so
        pack = _TIME.pack
        return b"".join(map(pack, self.timestamps[:count], self.offsets[:count]))

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> TimeIndex:
        """Parse a time index file. Raises IndexCorrupt."""
        if len(data) % TIME_ENTRY:
            raise IndexCorrupt(f"{len(data)} bytes are not a whole number of entries")
        index = cls(base_offset)
        for stamp, offset in _TIME.iter_unpack(data):
            if index.timestamps and (stamp <= index.timestamps[-1] or offset <= index.offsets[-1]):
                raise IndexCorrupt("time stamps or offsets do not ascend")
            index.timestamps.append(stamp)
            index.offsets.append(offset)
        return index

    @property
    def nbytes(self) -> int:
        """The memory of the entries in bytes."""
        return len(self.timestamps) * TIME_ENTRY


class TransactionIndex:
    """The transactions aborted by the markers of a segment, in the order of the markers. Only `append` changes it."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[AbortedTransaction] | None = None) -> None:
        self.entries: list[AbortedTransaction] = [] if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose marker has a higher offset than all others."""
        self.entries.append(aborted)

    def overlapping(self, offset: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions with offsets from `offset` on and before `end`.

        Also return whether those are all: whether later segments have none that were open before `end`.
        """
        entries, found = self.entries, []
        for at in range(bisect_left(entries, offset, key=_marker_offset), len(entries)):
            entry = entries[at]
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False

    def truncate(self, offset: int) -> None:
        """Remove the transactions whose marker is at or after `offset`."""
        del self.entries[bisect_left(self.entries, offset, key=_marker_offset) :]

    def to_bytes(self) -> bytes:
        """Return the contents of the file."""
        return b"".join(_TRANSACTION.pack(_TRANSACTION_VERSION, *entry) for entry in tuple(self.entries))

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> TransactionIndex:
        """Parse a transaction index file. Raises IndexCorrupt."""
        if len(data) % TRANSACTION_ENTRY:
            raise IndexCorrupt(f"{len(data)} bytes are not a whole number of entries")
        entries: list[AbortedTransaction] = []
        last = base_offset - 1
        for version, *fields in _TRANSACTION.iter_unpack(data):
            entry = AbortedTransaction._make(fields)
            if version != _TRANSACTION_VERSION:
                raise IndexCorrupt(f"unknown version {version} of an aborted transaction")
            if entry.last_offset <= last or not entry.first_offset < entry.last_offset:
                raise IndexCorrupt(f"the aborted transaction of producer {entry.producer_id} has impossible offsets")
            entries.append(entry)
            last = entry.last_offset
        return cls(entries)

    @property
    def nbytes(self) -> int:
        """Roughly how many bytes of memory the entries use."""
        return len(self.entries) * 200


class Indexes:
    """The indexes of one segment, which are cached together."""

    __slots__ = ("aborted", "offsets", "times")

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, aborted: TransactionIndex) -> None:
        self.offsets = offsets
        self.times = times
        self.aborted = aborted

    @classmethod
    def empty(cls, base_offset: int) -> Indexes:
        """Return the indexes of an empty segment."""
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset), TransactionIndex())

    @property
    def nbytes(self) -> int:
        """The memory of the entries in bytes."""
        return self.offsets.nbytes + self.times.nbytes + self.aborted.nbytes


def _not_ascending(entry: int, following: int) -> bool:
    return following >> 32 <= entry >> 32 or following & _LOW <= entry & _LOW


def _big_endian(entries: array[int]) -> bytes:
    if not _SWAP:
        return entries.tobytes()
    swapped = entries[:]
    swapped.byteswap()
    return swapped.tobytes()
