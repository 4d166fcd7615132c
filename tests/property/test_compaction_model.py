"""Compare a compacted log with a dict: random keys, tombstones, codecs and segment sizes, and a crash at every step."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.broker.log.manager import LogManager
from tests.fakes.compaction import CompactedStorage, Pair, contents_of, final, put
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.storage import read_all

PAIRS = st.tuples(st.sampled_from([b"%d" % n for n in range(12)] + [b""]), st.one_of(st.none(), st.binary(max_size=60)))
BATCH = st.tuples(st.lists(PAIRS, min_size=1, max_size=8), st.integers(0, 4), st.booleans())
ROUND = st.tuples(st.lists(BATCH, max_size=12), st.integers(0, 2000))


def fill(storage: CompactedStorage, batches: list[tuple[list[Pair], int, bool]], sequences: list[int]) -> None:
    """Append the batches; idempotent ones continue their producer's sequence."""
    log = storage.manager.logs["t", 0]
    for pairs, codec, idempotent in batches:
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequences[0]}
        options: dict[str, Any] = producer if idempotent else {}
        put(storage, log, *pairs, compression=codec, **options)
        sequences[0] += len(pairs) * idempotent


@settings(max_examples=120, deadline=None)
@given(
    rounds=st.lists(ROUND, min_size=1, max_size=4), segment_bytes=st.integers(1000, 3000), keys=st.integers(16, 60),
    retention=st.sampled_from([0, 500, 100_000]),
)  # fmt: skip
def test_the_compacted_log_equals_a_dict(
    rounds: list[tuple[list[tuple[list[Pair], int, bool]], int]], segment_bytes: int, keys: int, retention: int
) -> None:
    storage = CompactedStorage(keys=keys, segment_bytes=segment_bytes, delete_retention_ms=retention)
    log = storage.create()
    ever: dict[int, tuple[bytes | None, bytes | None]] = {}
    sequences = [0]
    for batches, wait in rounds:
        start = log.log_end_offset
        fill(storage, batches, sequences)
        ever |= {offset: (key, value) for offset, key, value in contents_of(log) if offset >= start}
        state = final(read_all(log))
        if log.active.size:
            with log.lock:
                log.roll(log.log_end_offset, storage.now_ms)
        storage.clean()
        left = contents_of(log)
        assert [offset for offset, _, _ in left] == sorted({offset for offset, _, _ in left})
        assert all(ever[offset] == (key, value) for offset, key, value in left)
        assert final(read_all(log)) == state
        live = [key for _, key, value in left if value is not None]
        assert len(live) == len(set(live)) == len(state)
        storage.check()
        storage.pass_time(wait)
    end, left = log.log_end_offset, contents_of(log)
    log = storage.restart()
    assert (log.log_end_offset, contents_of(log)) == (end, left)
    storage.check()


def filled(fs: MemoryFileSystem) -> CompactedStorage:
    """Create the same log each time, with several groups of segments, one of which is compacted already."""
    storage = CompactedStorage(fs, delete_retention_ms=0)
    log = storage.create()
    for at in range(40):
        put(storage, log, (b"k%d" % (at % 5), None if at % 7 == 6 else b"%d" % at * 20), (b"u%d" % at, b"u" * 9))
        if at == 20:
            storage.clean()
    log.flush()
    storage.manager.checkpoint()
    read_all(log)  # so that the caches have the same contents each time
    return storage


def operations() -> int:
    """Return how many calls of the file system one compaction makes."""
    fs = MemoryFileSystem()
    storage = filled(fs)
    before = len(fs.calls)
    storage.clean()
    return len(fs.calls) - before


class Crash(BaseException):
    """Raised when the simulated machine stops at a call."""


@pytest.mark.parametrize("ending", [MemoryFileSystem.kill, MemoryFileSystem.lose_power], ids=["kill", "power"])
def test_a_crash_at_any_step_loses_nothing(ending: Callable[[MemoryFileSystem], None]) -> None:
    count = operations()
    assert count > 50
    outcomes = set()
    for stop in range(count):
        fs = MemoryFileSystem()
        storage = filled(fs)
        log = storage.manager.logs["t", 0]
        before, state, end = contents_of(log), final(read_all(log)), log.log_end_offset
        limit = len(fs.calls) + stop
        call = fs._call

        def failing(operation: str, path: str, fs: MemoryFileSystem = fs, limit: int = limit, call=call):  # type: ignore[no-untyped-def]
            if len(fs.calls) >= limit:
                raise Crash(f"{operation} {path}")
            return call(operation, path)

        fs._call = failing  # type: ignore[method-assign]
        with pytest.raises(Crash):
            storage.clean()
        fs._call = call  # type: ignore[method-assign]
        ending(fs)
        log = storage.start().logs["t", 0]
        left = contents_of(log)
        assert final(read_all(log)) == state, stop
        assert set(left) <= set(before) and left == sorted(left), stop
        assert log.log_end_offset == end, stop
        assert not [name for name in fs.listdir("/data/t-0") if name.endswith((".cleaned", ".swap"))], stop
        storage.check()
        outcomes.add(len(left))
        storage.clean()
        assert final(read_all(storage.manager.logs["t", 0])) == state, stop
        storage.check()
    assert len(outcomes) > 2  # stop before each call, between groups, and after the last call


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_any_step_loses_nothing(error: int) -> None:
    """The broker goes on with the log as it was, with the compacted log, or with the log closed; it never has less.

    Any failure takes the data directory offline, except a full disk, and that one too if it makes a sync fail.
    """
    endings = set()
    for stop in range(operations()):
        fs = MemoryFileSystem()
        storage = filled(fs)
        log = storage.manager.logs["t", 0]
        state = final(read_all(log))
        _fail_once_after(fs, stop, storage.clean, error)
        endings.add(log.closed)
        if not log.closed:
            assert final(read_all(log)) == state, stop
            put(storage, log, (b"after", b"all"))
            state[b"after"] = b"all"
            log.flush()
            storage.check()
            storage.pass_time(100_000)
            storage.clean()
            assert final(read_all(log)) == state, stop
        fs.kill()
        log = storage.start().logs["t", 0]
        assert final(read_all(log)) == state, stop
        storage.check()
    assert endings == ({True} if error == errno.EIO else {True, False})


def _fail_once_after(fs: MemoryFileSystem, count: int, action: Callable[[], object], error: int = errno.EIO) -> None:
    """Run the action while one call of the file system fails."""
    call, limit = fs._call, len(fs.calls) + count

    def failing(operation: str, path: str):  # type: ignore[no-untyped-def]
        if len(fs.calls) == limit:
            fs.calls.append(f"{operation} {path} fails")
            raise OSError(error, os.strerror(error), path)
        return call(operation, path)

    fs._call = failing  # type: ignore[method-assign]
    try:
        action()
    finally:
        fs._call = call  # type: ignore[method-assign]


def test_an_interrupted_start_is_completed_by_the_next() -> None:
    fs = MemoryFileSystem()
    storage = filled(fs)
    state = final(read_all(storage.manager.logs["t", 0]))
    renames = [at for at, call in enumerate(_calls_of_a_clean()) if call.startswith("rename")][::2]
    for stop in renames:
        fs = MemoryFileSystem()
        storage = filled(fs)
        _stop_after(fs, stop, storage.clean)
        fs.kill()
        for again in range(60):
            if _stop_after(fs, again, _manager(storage).load):
                fs.kill()
            else:
                break
        fs.kill()
        log = storage.start().logs["t", 0]
        assert final(read_all(log)) == state
        storage.check()


def _calls_of_a_clean() -> list[str]:
    fs = MemoryFileSystem()
    storage = filled(fs)
    before = len(fs.calls)
    storage.clean()
    return fs.calls[before:]


def _manager(storage: CompactedStorage) -> LogManager:
    return LogManager(
        ["/data"], config=storage.config, fs=storage.fs, now_ms=lambda: storage.now_ms, node_id=1, cluster_id="c",
        recovery_threads=1,
    )  # fmt: skip


def _stop_after(fs: MemoryFileSystem, count: int, action: Callable[[], object]) -> bool:
    """Run the action until the given number of calls was made; return whether it was interrupted there."""
    call, limit = fs._call, len(fs.calls) + count

    def failing(operation: str, path: str):  # type: ignore[no-untyped-def]
        if len(fs.calls) >= limit:
            raise Crash(f"{operation} {path}")
        return call(operation, path)

    fs._call = failing  # type: ignore[method-assign]
    try:
        action()
    except Crash:
        return True
    finally:
        fs._call = call  # type: ignore[method-assign]
    return False
