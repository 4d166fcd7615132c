"""The order in which blocks are taken, evicted and given back, and what ranges hold meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

from pylogd.broker.cache.ranges import BlockCache, BlockRange
from pylogd.broker.log.files import SegmentFile

BLOCK = 100
FILE = cast(SegmentFile, object())  # of no interest without a page dropper


def fill(held: BlockRange, position: int, size: int) -> bytes:
    """Write so many random bytes at a position; return them."""
    data = os.urandom(size)
    held.wrote(FILE, position, [data], size, True)
    return data


def test_bytes_are_held_from_block_to_block() -> None:
    held = BlockCache(4, block_bytes=BLOCK).new_range()
    data = fill(held, 1000, 70) + fill(held, 1070, 70) + fill(held, 1140, 160)
    assert (held.low, held.high) == (1000, 1300)
    assert held.copy(1000, 300) == data
    assert held.copy(1090, 20) == data[90:110]
    assert b"".join(held.views(1250, 1000)) == data[250:]
    assert held.copy(999, 2) is held.copy(1299, 2) is None
    assert held.views(999, 10) == held.views(1300, 10) == []


def test_several_buffers_of_one_write() -> None:
    held = BlockCache(4, block_bytes=BLOCK).new_range()
    for start in (0, 50, 100):
        held.wrote(FILE, start, [b"prefix", memoryview(b"x" * 44)], 50, True)
    assert held.copy(0, 150) == (b"prefix" + b"x" * 44) * 3


def test_the_oldest_block_of_all_ranges_is_evicted_first() -> None:
    cache = BlockCache(3, block_bytes=BLOCK)
    first, second = cache.new_range(), cache.new_range()
    fill(first, 0, BLOCK)
    other = fill(second, 0, BLOCK)
    kept = fill(first, BLOCK, BLOCK)
    assert first.views(0, 1), "to read a block does not make it younger"
    third = fill(second, BLOCK, BLOCK)
    assert (first.low, first.high) == (BLOCK, 2 * BLOCK)
    assert second.copy(0, 2 * BLOCK) == other + third
    fill(first, 2 * BLOCK, BLOCK)
    assert second.copy(0, 1) is None
    assert second.copy(BLOCK, BLOCK) == third
    assert first.copy(BLOCK, BLOCK) == kept
    assert cache.counters.evicted_in_line == 2


def test_a_write_larger_than_the_cache_leaves_its_end() -> None:
    held = BlockCache(2, block_bytes=BLOCK).new_range()
    data = fill(held, 0, 7 * BLOCK + 30)
    assert (held.low, held.high) == (6 * BLOCK, 7 * BLOCK + 30)
    assert held.copy(6 * BLOCK, BLOCK + 30) == data[6 * BLOCK :]


def test_an_evicted_block_that_was_being_filled_begins_the_range_anew() -> None:
    cache = BlockCache(1, block_bytes=BLOCK)
    idle, busy = cache.new_range(), cache.new_range()
    fill(idle, 0, 30)
    fill(busy, 0, 30)
    assert idle.copy(0, 30) is None
    data = fill(idle, 30, 20)
    assert (idle.low, idle.high) == (30, 50)
    assert idle.copy(30, 20) == data


def test_what_a_follower_writes_is_not_held_and_begins_the_range_anew() -> None:
    cache = BlockCache(4, block_bytes=BLOCK)
    held = cache.new_range()
    fill(held, 0, 50)
    held.wrote(FILE, 50, [bytes(10)], 10, False)
    assert (held.low, held.high) == (0, 50)
    data = fill(held, 60, 50)
    assert (held.low, held.high) == (60, 110)
    assert held.copy(60, 50) == data
    assert cache.used == 1


def test_a_dropped_range_holds_nothing_and_gives_its_blocks_back_when_some_are_needed() -> None:
    cache = BlockCache(4, block_bytes=BLOCK)
    gone, other = cache.new_range(), cache.new_range()
    fill(other, 0, BLOCK)
    fill(gone, 0, 3 * BLOCK)
    anew = gone.drop()
    assert gone.copy(0, 1) is None
    assert gone.views(0, 1) == []
    assert anew.copy(0, 1) is None
    fill(other, BLOCK, 3 * BLOCK)
    assert (other.low, other.high) == (0, 4 * BLOCK)
    assert cache.counters.evicted_in_line == 0


def test_dropped_ranges_without_blocks_are_in_nobodys_way() -> None:
    cache = BlockCache(1, block_bytes=BLOCK)
    cache.new_range().drop()
    fill(cache.new_range(), 0, BLOCK)
    held = cache.new_range()
    data = fill(held, 0, BLOCK)
    assert held.copy(0, BLOCK) == data


def test_the_eliminator_keeps_blocks_free_in_turns_of_the_reactor() -> None:
    turns: list[Callable[[], None]] = []
    blocks = 64 * 300
    cache = BlockCache(blocks, block_bytes=1, later=turns.append)
    held = cache.new_range()
    fill(held, 0, blocks - 150)
    assert not turns, "half of the 300 that should be free are"
    fill(held, blocks - 150, 1)
    assert len(turns) == 1, "it is called once"
    ends = []
    while turns:
        turns.pop()()
        ends.append(held.low)
    assert ends == [128, 151], "so many a turn"
    assert blocks - cache.used == 300
    assert cache.counters.evicted == 151
    assert cache.counters.evicted_in_line == 0


def test_an_append_that_finds_no_free_block_does_not_wait_for_the_eliminator() -> None:
    turns: list[Callable[[], None]] = []
    cache = BlockCache(128, block_bytes=1, later=turns.append)
    held = cache.new_range()
    fill(held, 0, 130)
    assert (held.low, held.high) == (2, 130)
    assert cache.counters.evicted_in_line == 2
    assert len(turns) == 1
