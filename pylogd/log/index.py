"""The two sparse indexes of a segment: offset -> file position, and time stamp -> offset.

Strategy: an index is an array in memory. The active segment's grows there and is written to disk when the segment is
sealed, flushed or closed, never on the append path: whatever a crash loses of it is past the recovery point, where the
segment is scanned and its indexes are rebuilt anyway. Indexes of older segments are read whole when they are asked for
and kept in a bounded cache. They are not memory-mapped: a page fault on a mapping stops the thread for as long as the
disk takes and nobody can ask beforehand, while a read can be asked of the kernel first, or moved to another thread.

Formats on disk are Kafka's. An offset index has 8 bytes an entry: offset relative to the segment's base, position of
the batch that ends at that offset; an entry is one 64-bit number here, so that `bisect` works on the array itself. A
time index has 12 bytes an entry: the largest time stamp so far, and the last offset of the batch that has it.
Numbers are big-endian, and both columns of both indexes ascend.

Rules: offsets are absolute outside and relative inside. Nothing here reads or writes a file.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

OFFSET_ENTRY = 8
TIME_ENTRY = 12
MAX_RELATIVE = (1 << 31) - 1  # of offsets and positions: Kafka reads them as signed

_LOW = (1 << 32) - 1
_position = _LOW.__and__  # of an entry; both halves of the entries ascend
_TIME = struct.Struct(">qI")
_SWAP = sys.byteorder == "little"


class IndexCorrupt(ValueError):
    """Bytes that can't be an index of this segment; it is rebuilt from the log."""


class OffsetIndex:
    """Where batches start, about every `index.interval.bytes`."""

    __slots__ = ("base_offset", "entries")

    def __init__(self, base_offset: int, entries: array[int] | None = None) -> None:
        self.base_offset = base_offset
        self.entries: array[int] = array("Q") if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, last_offset: int, position: int) -> None:
        """Say that the batch ending with `last_offset` starts at `position`."""
        self.entries.append((last_offset - self.base_offset) << 32 | position)

    def lookup(self, offset: int) -> int:
        """The position of a batch at or before the one that holds `offset`: where to start walking."""
        at = bisect_right(self.entries, (offset - self.base_offset) << 32 | _LOW)
        return self.entries[at - 1] & _LOW if at else 0

    def lookup_position(self, position: int) -> int:
        """Where the last batch starts that is known to start at or before `position`."""
        at = bisect_right(self.entries, position, key=_position)
        return self.entries[at - 1] & _LOW if at else 0

    def last_position(self) -> int:
        """The position in the last entry, 0 if there is none."""
        return self.entries[-1] & _LOW if self.entries else 0

    def pairs(self) -> list[tuple[int, int]]:
        """Each entry as (offset, position)."""
        return [(self.base_offset + (entry >> 32), entry & _LOW) for entry in self.entries]

    def truncate(self, offset: int, position: int) -> None:
        """Drop entries about `offset` and what follows, and about `position` and what follows."""
        keep = bisect_left(self.entries, (offset - self.base_offset) << 32)
        while keep and self.entries[keep - 1] & _LOW >= position:
            keep -= 1
        del self.entries[keep:]

    def to_bytes(self) -> bytes:
        """The file's content."""
        return _big_endian(self.entries)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int, log_size: int) -> OffsetIndex:
        """The index in `data`, checked against the size of its segment; `IndexCorrupt` if it can't be its index."""
        if len(data) % OFFSET_ENTRY:
            raise IndexCorrupt(f"{len(data)} bytes are no whole number of entries")
        entries = array("Q", data)
        if _SWAP:
            entries.byteswap()
        if any(map(_not_ascending, entries, entries[1:])):
            raise IndexCorrupt("offsets or positions don't ascend")
        if entries and (entries[-1] & _LOW >= log_size or entries[-1] >> 32 > MAX_RELATIVE):
            raise IndexCorrupt(f"the last entry points at byte {entries[-1] & _LOW} of {log_size}")
        return cls(base_offset, entries)

    @property
    def nbytes(self) -> int:
        """Memory that the entries take."""
        return len(self.entries) * OFFSET_ENTRY


class TimeIndex:
    """The largest time stamp seen up to certain offsets."""

    __slots__ = ("base_offset", "offsets", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("I")

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, offset: int) -> None:
        """Say that no record up to and with `offset` is younger than `timestamp`; nothing new adds no entry."""
        relative = offset - self.base_offset
        if self.timestamps and (timestamp <= self.timestamps[-1] or relative <= self.offsets[-1]):
            return
        self.timestamps.append(timestamp)
        self.offsets.append(relative)

    def lookup(self, timestamp: int) -> int:
        """An offset at or before the first record that is as young as `timestamp`: where to start walking."""
        at = bisect_right(self.timestamps, timestamp)
        return self.base_offset + self.offsets[at - 1] if at else self.base_offset

    def last(self) -> tuple[int, int] | None:
        """The last entry: the segment's largest time stamp and the last offset of its batch."""
        return (self.timestamps[-1], self.base_offset + self.offsets[-1]) if self.timestamps else None

    def pairs(self) -> list[tuple[int, int]]:
        """Each entry as (time stamp, offset)."""
        return [
            (stamp, self.base_offset + offset) for stamp, offset in zip(self.timestamps, self.offsets, strict=False)
        ]

    def truncate(self, offset: int) -> None:
        """Drop entries about `offset` and what follows."""
        keep = bisect_left(self.offsets, offset - self.base_offset)
        del self.timestamps[keep:]
        del self.offsets[keep:]

    def to_bytes(self) -> bytes:
        """The file's content."""
        count = len(self.offsets)  # the column appended last: the writer may be between the two
        pack = _TIME.pack
        return b"".join(map(pack, self.timestamps[:count], self.offsets[:count]))

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> TimeIndex:
        """The index in `data`; `IndexCorrupt` if it can't be one."""
        if len(data) % TIME_ENTRY:
            raise IndexCorrupt(f"{len(data)} bytes are no whole number of entries")
        index = cls(base_offset)
        for stamp, offset in _TIME.iter_unpack(data):
            if index.timestamps and (stamp <= index.timestamps[-1] or offset <= index.offsets[-1]):
                raise IndexCorrupt("time stamps or offsets don't ascend")
            index.timestamps.append(stamp)
            index.offsets.append(offset)
        return index

    @property
    def nbytes(self) -> int:
        """Memory that the entries take."""
        return len(self.timestamps) * TIME_ENTRY


class Indexes:
    """Both indexes of one segment, as they are kept and cached together."""

    __slots__ = ("offsets", "times")

    def __init__(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        self.offsets = offsets
        self.times = times

    @classmethod
    def empty(cls, base_offset: int) -> Indexes:
        """Indexes of a segment with nothing in it."""
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset))

    @property
    def nbytes(self) -> int:
        """Memory that the entries take."""
        return self.offsets.nbytes + self.times.nbytes


def _not_ascending(entry: int, following: int) -> bool:
    return following >> 32 <= entry >> 32 or following & _LOW <= entry & _LOW


def _big_endian(entries: array[int]) -> bytes:
    if not _SWAP:
        return entries.tobytes()
    swapped = entries[:]
    swapped.byteswap()
    return swapped.tobytes()
