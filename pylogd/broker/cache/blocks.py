"""Blocks of memory for the last bytes of producers: one anonymous mapping, and the order of its blocks.

Strategy: the mapping is divided into blocks of one size. A block holds consecutive bytes of one segment's file, and
belongs to that segment's range (`ranges`), which fills it. The blocks in use are in one queue in the order in which
they were taken, whatever range they belong to: the oldest bytes of the broker are evicted first, and reads do not
change the order. Since a range takes its blocks in the order of its bytes, it always loses its beginning.

The eliminator frees blocks before they are needed: when few are free, it is called in a later turn of the reactor, and
evicts a number of blocks in each turn until a share of all blocks is free. An append that finds no free block evicts
the oldest block itself. Eviction is only bookkeeping, since the bytes are in the file too, so both ways cost about the
same.

Nothing pins a block. A sender uses a block within one call on the reactor's thread, and asks again before the next
call: a block that was evicted meanwhile is a miss, and the file has the bytes. So a client that never reads its answer
keeps no block.

Threads: everything except `dropped` runs on the reactor's thread. An owner that is dropped in another thread gives its
blocks back when blocks are needed.

(Kuaishou's talk, "Cache 改造": pools of blocks, a first-in first-out queue, an index by partition and offset, an
eliminator.)
"""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from pylogd.broker.cache.cold_reads import ReadBuffers
from pylogd.broker.cache.counters import CacheCounters
from pylogd.broker.cache.page_dropper import PageDropper

#: The size of a block. The bookkeeping of a large block costs little beside the copy of its bytes. A small block leaves
#: memory to other partitions while its partition fills it.
BLOCK_BYTES = 1 << 16
_FREE_SHARE = 64  # one of this number of blocks is kept free
_EVICTED_AT_ONCE = 128

Later = Callable[[Callable[[], None]], object]


class BlockOwner(Protocol):
    """The interface of objects that have blocks."""

    def lose_first(self) -> None:
        """Forget the oldest block, which is being evicted."""

    def give_back_one(self) -> bool:
        """Give back any block, after the owner was dropped. Return whether there was one."""


class BlockPool:
    """See the module.

    blocks, block_bytes: the number of blocks, and their size.
    counters: the counters of the cache.
    read_buffers: the buffers for bytes that are in no block.
    dropper: removes the bytes in blocks, and the bytes of followers, from the page cache; None to keep them there.
    """

    def __init__(
        self, blocks: int, *, block_bytes: int = BLOCK_BYTES, later: Later | None = None,
        dropper: PageDropper | None = None, counters: CacheCounters | None = None,
    ) -> None:  # fmt: skip
        """Map the memory. It is used from its beginning, so an idle broker uses little of it. Raises OSError.

        later: has the reactor call a function in one of its next turns; None if only appends evict blocks.
        """
        self.block_bytes = block_bytes
        self.blocks = blocks
        self.counters = CacheCounters() if counters is None else counters
        self.dropper = dropper
        self.read_buffers = ReadBuffers()
        self.memory = memoryview(mmap.mmap(-1, blocks * block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._free = list(range(blocks - 1, -1, -1))
        self._queue: OrderedDict[int, BlockOwner] = OrderedDict()  # blocks in use with their owners, oldest first
        self._dropped: deque[BlockOwner] = deque()
        self._kept_free = blocks // _FREE_SHARE
        self._later = later
        self._eliminating = False

    @property
    def used(self) -> int:
        """The number of blocks that hold bytes, including blocks of dropped ranges that were not given back yet."""
        return len(self._queue)

    def take(self, owner: BlockOwner) -> int:
        """Return a block for the next bytes of `owner`, evicting the oldest one if none is free."""
        free = self._free
        self.counters.taken += 1
        if len(free) <= self._kept_free >> 1 and self._later is not None and not self._eliminating:
            self._eliminating = True
            self._later(self._eliminate)
        if not free and not self._reclaim(1):
            self.counters.evicted_in_line += 1
            self._evict()
        block = free.pop()
        self._queue[block] = owner
        return block

    def give_back(self, block: int) -> None:
        """Free a block that its range no longer needs."""
        del self._queue[block]
        self._free.append(block)

    def dropped(self, owner: BlockOwner) -> None:
        """Have the blocks of a range freed when blocks are needed. Any thread may call this."""
        self._dropped.append(owner)

    def _evict(self) -> None:
        block, owner = self._queue.popitem(last=False)
        owner.lose_first()
        self._free.append(block)

    def _reclaim(self, most: int) -> int:
        """Free up to `most` blocks of dropped ranges. Return their number."""
        count = 0
        while count < most and self._dropped:
            owner = self._dropped[0]
            if not owner.give_back_one():
                self._dropped.popleft()
            else:
                count += 1
        return count

    def _eliminate(self) -> None:
        """Free blocks until enough are free, a limited number in each turn of the reactor."""
        self._eliminating = False
        missing = min(self._kept_free - len(self._free), _EVICTED_AT_ONCE)
        missing -= self._reclaim(missing)
        for _ in range(missing):
            self._evict()
            self.counters.evicted += 1
        if len(self._free) < self._kept_free and self._later is not None:
            self._eliminating = True
            self._later(self._eliminate)
