"""The part of a segment that is in the block cache: a range of consecutive bytes, and slices that use it.

Strategy: a range begins with its oldest block and ends with the last byte of a producer. So two comparisons show
whether it has some bytes, and one division gives their block. Bytes that do not follow the last ones, because a
follower's append is between them, begin a new range.

Rules: the bytes at a position never change while they are in a range: a log drops the range when it is truncated, and a
new range begins empty. A thread that copies bytes checks afterwards whether they were in the range all the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.broker.cache.blocks import BlockPool
from pylogd.broker.cache.cold_reads import LoadedBytes
from pylogd.broker.log.files import Buffer, FileSlice, SegmentFile

#: A written part of a file is passed to the page dropper when it has this many bytes.
_HANDED_BYTES = 1 << 18
#: The most views, fewer than the limit of one `sendmsg`.
_MOST_VIEWS = 256


class BlockRange:
    """See the module.

    low, high: the position of the first byte in the range, and the position after the last one.
    """

    __slots__ = ("_at", "_blocks", "_cache", "_first", "_generation", "_handed", "_origin", "_room", "high", "low")

    def __init__(self, cache: BlockPool) -> None:
        self._cache = cache
        self.low = self.high = 0
        self._blocks: dict[int, int] = {}  # blocks by number: (position - origin) // block size
        self._origin = 0  # the position of the first byte of block number 0
        self._first = 0  # the number of the oldest block
        self._at = 0  # the position of the next byte in the cache's memory
        self._room = 0  # the number of free bytes in the last block
        self._generation = 0  # grows when a new range begins
        self._handed = -1  # the end of what the page dropper got; -1 before the first write

    # Filling (reactor thread) --------------------------------------------------------------------------------------

    def wrote(self, file: SegmentFile, position: int, buffers: Sequence[Buffer], size: int, keep: bool) -> None:
        """Keep the bytes written at `position` of the file, if they should be kept, and have their pages dropped."""
        if keep and position == self.high and size <= self._room:
            memory, at = self._cache.memory, self._at
            for buffer in buffers:
                end = at + len(buffer)
                memory[at:end] = buffer
                at = end
            self._at = at
            self._room -= size
            self.high = position + size
            return
        if keep:
            if position != self.high:
                self._begin(position)
            for buffer in buffers:
                self._fill(buffer)
        self._hand_over(file, position, position + size)

    def _fill(self, data: Buffer) -> None:
        """Keep bytes that need a new block."""
        cache = self._cache
        rest = memoryview(data)
        while rest:
            if not self._room:
                if not self._blocks:  # the block of the last bytes may have been evicted
                    self._begin(self.high)
                self._blocks[(self.high - self._origin) // cache.block_bytes] = block = cache.take(self)
                self._at = block * cache.block_bytes
                self._room = cache.block_bytes
            count = min(len(rest), self._room)
            cache.memory[self._at : self._at + count] = rest[:count]
            self._at += count
            self._room -= count
            self.high += count
            rest = rest[count:]

    def _begin(self, position: int) -> None:
        """Free all blocks of the range, and begin at `position`."""
        self._generation += 1
        for block in self._blocks.values():
            self._cache.give_back(block)
        self._blocks = {}
        self._room = self._first = 0
        self.low = self.high = self._origin = position

    def _hand_over(self, file: SegmentFile, position: int, end: int) -> None:
        """Have the bytes up to `end` removed from the page cache, if there are many."""
        dropper = self._cache.dropper
        if dropper is None:
            return
        if self._handed < 0:
            self._handed = position
        if end - self._handed >= _HANDED_BYTES:
            dropper.written(file, self._handed, end)
            self._handed = end

    # Eviction --------------------------------------------------------------------------------------------------------

    def lose_first(self) -> None:
        """Forget the oldest block, which is being evicted."""
        first = self._first
        self._first = first + 1
        low = self._origin + self._first * self._cache.block_bytes
        if low >= self.high:  # and the bytes that were to follow it
            self._generation += 1
            self.low = self.high
            self._room = 0
        else:
            self.low = low
        del self._blocks[first]

    def drop(self) -> BlockRange:
        """Drop all bytes. Return a new, empty range for the segment. Any thread may call this."""
        self._generation += 1
        self.low = self.high = -1
        self._cache.dropped(self)
        return BlockRange(self._cache)

    def give_back_one(self) -> bool:
        """Free one block of a dropped range. Return whether there was one."""
        if not self._blocks:
            return False
        self._cache.give_back(self._blocks.popitem()[1])
        return True

    # Reading -------------------------------------------------------------------------------------------------------

    def holds(self, position: int, length: int) -> bool:
        """Return whether all of these bytes are in the range now."""
        return self.low <= position and position + length <= self.high

    def views(self, position: int, length: int) -> list[memoryview]:
        """Return views of at most `length` bytes from `position` on; none if the first byte is not in the range.

        Use the views before anything can be appended: they show the blocks' contents, whichever range these belong to.
        """
        if not self.low <= position < self.high:
            return []
        cache, left, found = self._cache, min(length, self.high - position), []
        number, inside = divmod(position - self._origin, cache.block_bytes)
        while left > 0:
            count = min(left, cache.block_bytes - inside)
            start = self._blocks[number] * cache.block_bytes + inside
            found.append(cache.memory[start : start + count])
            left -= count
            number, inside = number + 1, 0
        return found

    def copy(self, position: int, length: int) -> bytes | None:
        """Return a copy of `length` bytes if all of them are in the range, else None. Any thread may call this."""
        generation = self._generation
        if not self.holds(position, length):
            return None
        try:
            data = b"".join(self.views(position, length))
        except KeyError:  # the reactor's thread has evicted the block
            return None
        if generation != self._generation or position < self.low:
            return None
        return data

    def slice(self, file: SegmentFile, position: int, length: int, *, sealed: bool) -> BlockSlice:
        """Return a slice of the file. The part that is in the cache when it is sent is sent from memory.

        sealed: whether the file is no longer written to.
        """
        return BlockSlice(file, position, length, self, sealed)

    @property
    def cache(self) -> BlockPool:
        """The cache that has the blocks."""
        return self._cache


class BlockCache(BlockPool):
    """The part of the pool that logs need: see `pylogd.broker.log.caching`."""

    def new_range(self) -> BlockRange:
        """Return an empty range for a segment."""
        return BlockRange(self)


class BlockSlice(FileSlice):
    """A range of bytes in a segment file of a broker with a block cache.

    Whether bytes are sent from blocks is decided when they are sent. Other bytes are read from the file in a thread,
    and leave nothing in the page cache.
    """

    __slots__ = ("_loaded", "_range", "_sealed")

    #: Whether the sender asks for `views` and `load`, instead of using `sendfile`.
    in_blocks = True

    def __init__(self, file: SegmentFile, position: int, length: int, held: BlockRange, sealed: bool) -> None:
        """sealed: whether the file is no longer written to."""
        super().__init__(file, position, length)
        self._range = held
        self._sealed = sealed
        self._loaded: LoadedBytes | None = None  # the result of the last `load`

    @property
    def is_hit(self) -> bool:
        """Whether the block cache has all of the slice now, so that sending it reads no file."""
        return self._range.holds(self.position, self.length)

    def missing(self, position: int, length: int) -> int:
        """Return how many of the `length` bytes at `position` of the file have to be read from the disk."""
        held = self._range
        if held.low < min(position + length, held.high):
            length = max(held.low - position, 0)
        return super().missing(position, length)

    def views(self, position: int, length: int) -> list[memoryview]:
        """Return views of at most `length` bytes from `position` on; none if they have to be loaded first.

        Use the views at once, on the reactor's thread.
        """
        loaded = self._loaded
        if loaded is not None:
            if loaded.position <= position < loaded.end:
                return [loaded.view(position, length)]
            self._loaded = None
        return self._range.views(position, min(length, _MOST_VIEWS * self._range.cache.block_bytes))

    def sent(self, position: int, length: int) -> None:
        """Count `size` bytes of the views that `views` has just returned as sent."""
        if self._loaded is None:
            counters = self._range.cache.counters
            counters.hit_bytes += length
            if position == self.position:
                counters.hits += 1

    def load(self, position: int, length: int) -> None:
        """Read the bytes from `position` on that are not in the cache, for the next `views`. Leave none in the page
        cache.

        Reads at most `length` bytes, and none at the end of the file. Blocks on the disk: run it in a thread. Raises
        OSError.
        """
        self._loaded = None  # so that its buffer may be reused
        low, cache = self._range.low, self._range.cache
        if position < low:
            length = min(length, low - position)
        loaded = cache.read_buffers.read(self.file, position, length, direct=self._sealed)
        self._loaded = loaded
        count = loaded.end - position
        cache.counters.miss_bytes += count
        if position == self.position:
            cache.counters.misses += 1
        if cache.dropper is not None:
            cache.dropper.drop_now(self.file.fd, position, count)

    def copy(self) -> bytes | None:
        """Return a copy of the bytes; None if they are not in the cache."""
        data = self._range.copy(self.position, self.length)
        if data is not None:
            counters = self._range.cache.counters
            counters.hits += 1
            counters.hit_bytes += self.length
        return data

    def head(self, length: int) -> BlockSlice:
        """Return a slice of the first `length` bytes."""
        return BlockSlice(self.file, self.position, length, self._range, self._sealed)
