"""Blocks of memory for the bytes that producers appended last: one anonymous mapping, and the order of its blocks.

Strategy: the mapping is divided into blocks of one size. A block holds consecutive bytes of one segment's file, and
belongs to that segment's range (`ranges`), which fills it. The blocks in use stand in one queue in the order
in which they were taken, whatever they belong to: the oldest bytes of the broker leave first, and nothing that is read
changes that. Since a range takes its blocks in the order of its bytes, what it loses is always its beginning.

The eliminator frees blocks ahead of need: when few are free, it is called in a later turn of the reactor, and evicts so
many a turn until a share of all is free. An append that finds none evicts the oldest block in line. Eviction is
bookkeeping alone, since the bytes are in the file anyway, so either costs about as much.

Nothing pins a block. Whoever sends from one does so within one call on the reactor's thread, and asks again before the
next: a block that was taken meanwhile is a miss, and the file has the bytes. So a client that never reads its answer
holds no block.

Threads: everything runs on the reactor's thread but `dropped`: an owner that is dropped in another thread gives its
blocks back when some are needed.

(Kuaishou's talk, "Cache 改造": pools of blocks, a first-in first-out queue, an index by partition and offset, an
eliminator.)
"""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from pylogd.cache.cold_reads import ReadBuffers
from pylogd.cache.counters import CacheCounters
from pylogd.cache.page_dropper import PageDropper

#: Large enough that a block's bookkeeping costs little beside the copy of its bytes, small enough that the block that
#: each partition is filling leaves most of the memory to the others.
BLOCK_BYTES = 1 << 16
_FREE_SHARE = 64  # one block of so many is kept free
_EVICTED_AT_ONCE = 128

Later = Callable[[Callable[[], None]], object]


class BlockOwner(Protocol):
    """Interface of the objects that hold blocks."""

    def lose_first(self) -> None:
        """Let go of the oldest block, which is being evicted."""

    def give_back_one(self) -> bool:
        """Give back any block, after the owner was dropped; return whether there was one."""


class BlockPool:
    """See the module.

    blocks, block_bytes: how many, and their size. counters: what was done. read_buffers: for what is in no block.
    dropper: removes from the page cache what is in blocks, and what followers write; None to leave it there.
    """

    def __init__(
        self, blocks: int, *, block_bytes: int = BLOCK_BYTES, later: Later | None = None,
        dropper: PageDropper | None = None, counters: CacheCounters | None = None,
    ) -> None:  # fmt: skip
        """Map the memory; it is used from its start on, so that an idle broker has little. Raises OSError.

        later: has the reactor call a function in one of its next turns; None to evict in line only.
        """
        self.block_bytes = block_bytes
        self.blocks = blocks
        self.counters = CacheCounters() if counters is None else counters
        self.dropper = dropper
        self.read_buffers = ReadBuffers()
        self.memory = memoryview(mmap.mmap(-1, blocks * block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._free = list(range(blocks - 1, -1, -1))
        self._queue: OrderedDict[int, BlockOwner] = OrderedDict()  # blocks in use, oldest first, and whose they are
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
        """Free a block of a range that has no more use for it."""
        del self._queue[block]
        self._free.append(block)

    def dropped(self, owner: BlockOwner) -> None:
        """Have the blocks of a range freed when some are needed. Any thread may call it."""
        self._dropped.append(owner)

    def _evict(self) -> None:
        block, owner = self._queue.popitem(last=False)
        owner.lose_first()
        self._free.append(block)

    def _reclaim(self, most: int) -> int:
        """Free blocks of ranges that were dropped, up to `most`; return how many."""
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
