"""Compare a log with a list: after any operations, in any order, both have the same records, and the files are valid.

The machine appends, rolls, reads, truncates, deletes records, advances the clock, stops, is killed and loses power. A
second machine does the same on a file system that fails.
"""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.errors import LogClosed, StorageError, StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.validator import AppendOrigin
from tests.fakes.filesystem import Fault
from tests.fakes.storage import MemoryStorage, batch, read_all

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


class LogMachine(RuleBasedStateMachine):
    """`model` holds (offset, value, time stamp) of every record that the log should have."""

    storage: MemoryStorage

    def __init__(self) -> None:
        super().__init__()
        self.model: list[tuple[int, bytes, int]] = []
        self.end = 0
        self.flushed = 0
        self.start = 0
        self.epoch = 0
        self.epochs: dict[int, int] = {}  # the leader epoch of each offset that was ever appended, as of the last time

    @property
    def log(self) -> Log:
        return self.storage.manager.logs["t", 0]

    @initialize(
        segment_bytes=st.sampled_from([300, 700, 5000]),
        interval=st.sampled_from([0, 100, 1000]),
        retention_ms=st.sampled_from([-1, 1000]),
    )
    def build(self, segment_bytes: int, interval: int, retention_ms: int) -> None:
        self.storage = MemoryStorage(
            LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval, retention_ms=retention_ms)
        )
        self.storage.create()

    @rule(batches=st.lists(VALUES, min_size=1, max_size=3), age=st.integers(0, 2000), codec=st.integers(0, 4))
    def append(self, batches: list[list[bytes]], age: int, codec: int) -> None:
        stamp = self.storage.now_ms - age
        data = b"".join(batch(*values, timestamp=stamp, compression=codec) for values in batches)
        if len(data) > self.log.config.segment_bytes:
            return
        origin = AppendOrigin.CLIENT if len(batches) == 1 else AppendOrigin.COORDINATOR
        result = self.log.append(data, leader_epoch=self.epoch, origin=origin)
        assert result.base_offset == self.end
        self.note(batches, stamp)
        assert result.last_offset == self.end - 1

    def note(self, batches: list[list[bytes]], stamp: int) -> None:
        for values in batches:
            for at, value in enumerate(values):
                self.model.append((self.end, value, stamp + at))
                self.epochs[self.end] = self.epoch
                self.end += 1

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule(data=st.data(), max_bytes=st.integers(1, 2000))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        found = [(record.offset, record.value) for record in read_all(self.log, offset, max_bytes)]
        assert found == [entry[:2] for entry in self.model if entry[0] >= offset]

    @rule(back=st.integers(0, 3000))
    def find_time_stamp(self, back: int) -> None:
        stamp = self.storage.now_ms - back
        found = self.log.offset_for_timestamp(stamp, allow_cold=True)
        expected = next(((when, offset) for offset, _, when in self.model if when >= stamp), None)
        assert (None if found is None else found[:2]) == expected

    @rule()
    def find_largest_time_stamp(self) -> None:
        found = self.log.max_timestamp(allow_cold=True)
        largest = max((when for _, _, when in self.model), default=None)
        expected = next(((when, offset) for offset, _, when in self.model if when == largest), None)
        assert (None if found is None else found[:2]) == expected

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.end = self.storage.manager.truncate_to("t", 0, offset)
        assert self.end <= offset
        self.model = [entry for entry in self.model if entry[0] < self.end]
        self.start = min(self.start, self.end)
        self.flushed = min(self.flushed, self.end)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.end))
        assert self.log.delete_records_before(self.start) == self.start
        self.model = [entry for entry in self.model if entry[0] >= self.start]

    @rule(milliseconds=st.integers(0, 3000))
    def tick(self, milliseconds: int) -> None:
        self.storage.pass_time(milliseconds)
        self.storage.manager.tick()
        self.follow_start()
        self.flushed = max(self.flushed, self.log.recovery_point)

    def follow_start(self) -> None:
        """Take over the log start offset after retention; check that only old enough segments were removed."""
        now, limit = self.storage.now_ms, self.log.config.retention_ms
        gone = [entry for entry in self.model if entry[0] < self.log.log_start_offset]
        assert not gone or (limit >= 0 and all(now - when > limit for _, _, when in gone))
        self.start = self.log.log_start_offset
        self.model = [entry for entry in self.model if entry[0] >= self.start]

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.storage.manager.checkpoint()
        self.flushed = self.end

    @rule()
    def restart(self) -> None:
        self.storage.restart()

    @rule()
    def kill(self) -> None:
        self.storage.manager.checkpoint()
        self.storage.kill()

    @precondition(lambda self: self.log.recovery_point == self.flushed == self.end)
    @rule()
    def lose_power(self) -> None:
        """Check that everything that was flushed survives."""
        self.log.flush()
        self.storage.manager.checkpoint()
        self.storage.lose_power()
        if ("t", 0) not in self.storage.manager.logs:
            assert not self.model
            self.storage.create()
            self.end = self.start = self.flushed = 0

    @invariant()
    def ends_are_as_expected(self) -> None:
        if hasattr(self, "storage"):
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        """A follower whose log says other epochs than its leader's truncates records that both have."""
        if hasattr(self, "storage"):
            for offset, _, _ in self.model:
                assert self.log.epochs.epoch_of(offset) == self.epochs[offset], offset
            if self.model:
                assert self.log.epochs.latest == self.epochs[self.model[-1][0]]

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            found = [(record.offset, record.value) for record in read_all(self.log)]
            assert found == [entry[:2] for entry in self.model]
            self.storage.check()


class FaultyMachine(LogMachine):
    """The same on a disk that fails: after any byte of a write, at a sync, because it is full, or during a start."""

    @rule(torn=st.integers(0, 300), zeros=st.booleans())
    def lose_power_any_time(self, torn: int, zeros: bool) -> None:
        """Check that the log has a prefix of what was appended, which includes everything that was flushed."""
        flushed = self.log.recovery_point
        self.storage.lose_power(torn, zeros=zeros)
        if ("t", 0) not in self.storage.manager.logs:
            assert not flushed
            self.storage.create()
        assert flushed <= self.log.log_end_offset <= max(self.end, self.start)
        self.end = self.log.log_end_offset
        self.start = min(self.start, self.end)
        self.log.delete_records_before(self.start)
        self.model = [entry for entry in self.model if self.start <= entry[0] < self.end]
        found = [(record.offset, record.value) for record in read_all(self.log)]
        assert found == [entry[:2] for entry in self.model]
        self.flushed = min(self.flushed, self.end)

    @rule(
        operation=st.sampled_from(["fsync", "fsync_dir"]),
        after=st.integers(0, 3),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
    )
    def sync_fails(self, operation: str, after: int, error: int) -> None:
        """Fail a sync, which takes the data directory offline until the next start."""
        self.storage.manager.checkpoint()
        with self.storage.fs.failing(operation, error, path="/t-0", after=after, lasting=True):
            before = self.log.recovery_point
            try:
                self.log.flush()
            except StorageFailure as failure:
                log = self.log
                assert log.recovery_point < log.log_end_offset or operation == "fsync_dir" or before == self.end
                assert self.storage.manager.storage_failed(failure)
                assert not self.storage.manager.logs
                with pytest.raises(LogClosed):
                    log.append(batch(b"more"), leader_epoch=self.epoch)
                self.storage.manager.close()
            else:
                return
        self.storage.kill()

    @rule(values=VALUES, suffix=st.sampled_from([".log", ".index", ".timeindex", ".snapshot.tmp", "checkpoint.tmp"]))
    def no_room_for_a_file(self, values: list[bytes], suffix: str) -> None:
        """Make a segment, index or snapshot impossible to create now; it is created later."""
        stamp = self.storage.now_ms
        with self.storage.fs.failing("open", errno.ENOSPC, path=suffix, lasting=True):
            try:
                self.log.append(batch(*values, timestamp=stamp), leader_epoch=self.epoch)
                self.note([values], stamp)
                self.log.flush()
            except StorageFailure as failure:
                assert not self.storage.manager.storage_failed(failure)
        self.log.flush()
        assert self.log.recovery_point == self.end

    @rule(
        operation=st.sampled_from(["pread", "open", "listdir", "ftruncate", "fsync", "pwritev", "rename", "unlink"]),
        after=st.integers(0, 6),
    )
    def start_fails(self, operation: str, after: int) -> None:
        """Start on a disk that fails, which must not lose anything that a later start needs."""
        self.storage.manager.checkpoint()
        self.storage.fs.kill()
        with self.storage.fs.failing(operation, errno.EIO, after=after, lasting=True), suppress(StorageError):
            self.storage.start()
        self.storage.kill()

    @rule(
        values=VALUES,
        partial=st.one_of(st.none(), st.integers(0, 200)),
        cut_fails=st.booleans(),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
    )
    def append_fails(self, values: list[bytes], partial: int | None, cut_fails: bool, error: int) -> None:
        fs = self.storage.fs
        data = batch(*values, timestamp=self.storage.now_ms)
        partial = None if partial is None else min(partial, len(data) - 1)
        before = self.log.log_end_offset
        with fs.failing("pwritev", error, path=".log", partial=partial):
            fs.faults += [] if not cut_fails else [Fault("ftruncate", errno.EIO)]
            try:
                self.log.append(data, leader_epoch=self.epoch)
            except StorageFailure:
                pass
            else:
                raise AssertionError("the append should have failed")
            finally:
                fs.faults = fs.faults[:1]
        assert self.log.log_end_offset == before

    @rule(values=VALUES, partial=st.integers(1, 60))
    def append_in_pieces(self, values: list[bytes], partial: int) -> None:
        stamp = self.storage.now_ms
        with self.storage.fs.failing("pwritev", 0, path=".log", partial=partial):
            self.log.append(batch(*values, timestamp=stamp), leader_epoch=self.epoch)
        self.note([values], stamp)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestFaultyLog = FaultyMachine.TestCase
TestFaultyLog.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
