"""Compare logs with and without a block cache: whatever is appended and removed, clients get the same bytes.

The machine does everything twice: with a tiny cache that three partitions compete for, and without one. Slices are sent
at once, or kept and sent after any number of other steps, as those of slow clients are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pylogd.broker.cache.ranges import BlockCache, BlockRange, BlockSlice
from pylogd.broker.log.append.direct import BatchList
from pylogd.broker.log.compaction.cleaner import Cleaner, CleanerConfig
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import ColdRead
from pylogd.broker.log.files import FileSlice
from pylogd.broker.log.log import Log
from pylogd.broker.log.retention import unlink_deleted
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.records import encode_batch, iter_batches
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.sending import sent
from tests.fakes.storage import MemoryStorage, batch

PARTITIONS = st.integers(0, 2)
SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=4)


class CacheMachine(RuleBasedStateMachine):
    """`plain` and `cached` have the same logs. `kept` are pairs of slices that slow clients have not been sent."""

    plain: MemoryStorage
    cached: MemoryStorage

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[FileSlice, FileSlice]] = []
        self.turns: list[Any] = []  # what the reactor is to do in its next turn
        self.caches: list[BlockCache] = []
        self.written = 0
        self.epoch = 0

    @initialize(
        blocks=st.one_of(st.integers(1, 12), st.integers(20, 130)), block_bytes=st.sampled_from([16, 64, 1000]),
        segment_bytes=st.sampled_from([300, 2000]), policy=st.sampled_from(["delete", "compact"]),
        eliminates=st.booleans(),
    )  # fmt: skip
    def build(self, blocks: int, block_bytes: int, segment_bytes: int, policy: str, eliminates: bool) -> None:
        def make_cache() -> BlockCache:
            later = self.turns.append if eliminates else None
            self.caches.append(BlockCache(blocks, block_bytes=block_bytes, later=later))
            return self.caches[-1]

        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=100, retention_bytes=3000,
            cleanup_policy=frozenset({policy}), min_cleanable_dirty_ratio=0.0,
        )  # fmt: skip
        self.plain, self.cached = MemoryStorage(config), MemoryStorage(config, make_cache=make_cache)
        for storage in self.both:
            for partition in range(3):
                storage.create("t", partition)

    @property
    def both(self) -> list[MemoryStorage]:
        return [self.plain, self.cached]

    def logs(self, partition: int) -> tuple[Log, Log]:
        plain, cached = [storage.manager.logs["t", partition] for storage in self.both]
        assert (plain.log_start_offset, plain.log_end_offset) == (cached.log_start_offset, cached.log_end_offset)
        return plain, cached

    def make_batch(self, sizes: list[int]) -> bytes:
        values = []
        for size in sizes:
            self.written += 1
            values.append(b"%d" % self.written + bytes(size))
        return batch(*values, timestamp=self.plain.now_ms, key=b"%d" % (self.written % 3))

    # -- what changes logs

    @rule(partition=PARTITIONS, batches=st.lists(SIZES, min_size=1, max_size=3))
    def produce(self, partition: int, batches: list[list[int]]) -> None:
        data = b"".join(map(self.make_batch, batches))
        if len(data) <= self.plain.config.segment_bytes:
            for log in self.logs(partition):
                origin = AppendOrigin.CLIENT if len(batches) == 1 else AppendOrigin.COORDINATOR
                log.append(data, leader_epoch=self.epoch, origin=origin)

    @rule(partition=PARTITIONS, batches=st.lists(SIZES, min_size=1, max_size=9))
    def produce_together(self, partition: int, batches: list[list[int]]) -> None:
        made = [self.make_batch(sizes) for sizes in batches]
        counts = {
            log.append_batches(BatchList([memoryview(data) for data in made]), leader_epoch=self.epoch)
            for log in self.logs(partition)
        }
        assert len(counts) == 1

    @rule(partition=PARTITIONS, sizes=SIZES)
    def follow(self, partition: int, sizes: list[int]) -> None:
        """Append what a leader sent, which is not to be held."""
        for log in self.logs(partition):
            base = log.log_end_offset
            data = encode_batch([(b"k", bytes(size), log.now_ms(), ()) for size in sizes], base_offset=base)
            data = data[:12] + self.epoch.to_bytes(4, "big") + data[16:]
            log.append(data, leader_epoch=self.epoch, origin=AppendOrigin.REPLICATION)

    def new_leader(self, partition: int, data: st.DataObject) -> None:
        self.epoch += 1

    def truncate(self, partition: int, data: st.DataObject) -> None:
        plain, _ = self.logs(partition)
        least = max(plain.log_start_offset, plain.cleaned_offset)  # committed, and so never truncated
        offset = data.draw(st.integers(min(least, plain.log_end_offset), plain.log_end_offset))
        for storage in self.both:
            storage.manager.truncate_to("t", partition, offset)

    def begin_at(self, partition: int, data: st.DataObject) -> None:
        offset = self.logs(partition)[0].log_end_offset + data.draw(st.integers(0, 20))
        for storage in self.both:
            storage.manager.begin_at("t", partition, offset)

    def delete_records(self, partition: int, data: st.DataObject) -> None:
        plain, cached = self.logs(partition)
        offset = data.draw(st.integers(plain.log_start_offset, plain.log_end_offset))
        for log in (plain, cached):
            log.delete_records_before(offset)

    def delete_and_create(self, partition: int, data: st.DataObject) -> None:
        for storage in self.both:
            storage.manager.delete("t", partition)
            storage.create("t", partition)

    def tick(self, partition: int, data: st.DataObject) -> None:
        milliseconds = data.draw(st.sampled_from([0, 1000, 100_000]))
        for storage in self.both:
            storage.pass_time(milliseconds)
            storage.manager.tick()
            for log in storage.manager.logs.values():
                log.seal()
                unlink_deleted(log)

    def compact(self, partition: int, data: st.DataObject) -> None:
        """Replace sealed segments by compacted ones, which take over the name of an older one."""
        config = CleanerConfig(dedupe_buffer_bytes=2400, io_buffer_bytes=256)
        for storage in self.both:
            now_ms = storage.now_ms
            cleaner = Cleaner(storage.manager, config, now_ms=partial(int, now_ms), seconds=lambda: 0.0)
            runner = cleaner.new_runner()
            while cleaner.clean_one(runner) is not None:
                pass

    def restart(self, partition: int, data: st.DataObject) -> None:
        clean = data.draw(st.booleans())
        self.kept = []
        for storage in self.both:
            if clean:
                storage.restart()
            else:
                storage.kill()

    @rule(
        how=st.sampled_from([*["truncate", "tick", "compact"] * 3, "delete_records", "new_leader", "begin_at",
                             "delete_and_create", "restart"]),
        partition=PARTITIONS, data=st.data(),
    )  # fmt: skip
    def disturb(self, how: str, partition: int, data: st.DataObject) -> None:
        """Change logs other than by appending. One rule for all, so that most steps append and read."""
        getattr(self, how)(partition, data)

    @rule()
    def next_turn(self) -> None:
        turns, self.turns = self.turns, []
        for turn in turns:
            turn()

    # -- what clients get

    @rule(partition=PARTITIONS)
    def read_batch_by_batch(self, partition: int) -> None:
        plain, cached = self.logs(partition)
        offset = plain.log_start_offset
        while offset < plain.log_end_offset:
            found = [log.read(offset, 1, allow_cold=True) for log in (plain, cached)]
            assert sent(found[0]) == sent(found[1])
            if found[0] is None:
                break
            offset = [header for header, _ in iter_batches(found[0].read())][-1].next_offset

    @rule(partition=PARTITIONS, data=st.data(), max_bytes=st.integers(1, 3000), most=st.integers(1, 500))
    def read(self, partition: int, data: st.DataObject, max_bytes: int, most: int) -> None:
        pair = self.slices(partition, data, max_bytes)
        assert sent(pair[0]) == sent(pair[1], most)

    @rule(partition=PARTITIONS, data=st.data(), max_bytes=st.integers(1, 3000))
    def read_slowly(self, partition: int, data: st.DataObject, max_bytes: int) -> None:
        plain, cached = self.slices(partition, data, max_bytes)
        if plain is not None and cached is not None:
            self.kept.append((plain, cached))

    def slices(self, partition: int, data: st.DataObject, max_bytes: int) -> tuple[FileSlice | None, FileSlice | None]:
        plain, cached = self.logs(partition)
        offset = data.draw(st.integers(plain.log_start_offset, plain.log_end_offset))
        end = data.draw(st.integers(offset, plain.log_end_offset))
        pair = (
            plain.read(offset, max_bytes, end_offset=end, allow_cold=True),
            cached.read(offset, max_bytes, end_offset=end, allow_cold=True),
        )
        assert pair[0] is None or isinstance(pair[1], BlockSlice)
        return pair

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), most=st.integers(1, 500))
    def send_kept(self, data: st.DataObject, most: int) -> None:
        plain, cached = self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))
        assert sent(plain) == sent(cached, most)

    @rule(partition=PARTITIONS)
    def what_is_held_needs_no_disk(self, partition: int) -> None:
        """Read what the active segment has in blocks while nothing of its file is in the page cache."""
        _, log = self.logs(partition)
        held, fs = log.active.cached, self.cached.fs
        assert isinstance(held, BlockRange) and isinstance(fs, MemoryFileSystem)
        if held.low >= held.high or held.high != log.active.size:
            return
        last = log.active.last_batch(allow_cold=True)
        assert last is not None
        if last.base_offset < log.log_start_offset or not held.holds(log.active.size - last.size, last.size):
            return
        fs.cold.add(log.active.path)
        try:
            found = log.read(last.base_offset, 1 << 20)
        except ColdRead:
            assert not held.holds(0, log.active.size), "the look-up began in front of what is held"
            return
        finally:
            fs.cold.clear()
        assert isinstance(found, BlockSlice) and found.is_hit
        assert sent(found) is not None

    @invariant()
    def blocks_are_accounted_for(self) -> None:
        for cache in self.caches[-1:]:
            assert len(cache._free) + cache.used == cache.blocks
            assert sorted([*cache._free, *cache._queue]) == list(range(cache.blocks))

    def teardown(self) -> None:
        if not hasattr(self, "cached"):
            return
        for plain, cached in self.kept:
            assert sent(plain) == sent(cached)
        for storage in self.both:
            storage.check()


TestBlockCache = CacheMachine.TestCase
TestBlockCache.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
