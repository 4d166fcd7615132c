"""What a log with a block cache sends after truncations, changes of its leader, and its end."""

from __future__ import annotations

from pylogd.broker.cache.ranges import BlockCache, BlockRange
from pylogd.broker.log.append.staged import AppendRequest, prepare
from pylogd.broker.log.log import Log
from pylogd.broker.log.validator import AppendOrigin
from tests.fakes.sending import sent
from tests.fakes.storage import MemoryStorage, append, batch, values


def cached_log() -> tuple[MemoryStorage, Log]:
    storage = MemoryStorage(make_cache=lambda: BlockCache(64, block_bytes=64))
    return storage, storage.create()


def held(log: Log) -> BlockRange:
    """Return what is held of the active segment."""
    found = log.active.cached
    assert isinstance(found, BlockRange)
    return found


def test_a_follower_that_truncated_its_log_does_not_send_what_it_appended_as_a_leader() -> None:
    storage, log = cached_log()
    append(log, b"common")
    append(log, b"old" * 20)
    waiting = log.read(1, 1000)
    storage.manager.truncate_to("t", 0, 1)
    assert held(log).high <= 0
    other = batch(b"new" * 20)
    other = (1).to_bytes(8, "big") + other[8:12] + (0).to_bytes(4, "big") + other[16:]
    log.append(other, leader_epoch=0, origin=AppendOrigin.REPLICATION)
    assert sent(log.read(1, 1000)) == other
    assert sent(waiting) == other, "what the file has by now, as without a cache"
    storage.check()


def test_a_follower_that_becomes_leader_begins_with_an_empty_cache() -> None:
    storage, log = cached_log()
    append(log, b"as a leader")
    as_follower = batch(b"as a follower")
    as_follower = (1).to_bytes(8, "big") + as_follower[8:12] + (0).to_bytes(4, "big") + as_follower[16:]
    log.append(as_follower, leader_epoch=0, origin=AppendOrigin.REPLICATION)
    begin = log.active.size
    append(log, b"as a leader again")
    assert (held(log).low, held(log).high) == (begin, log.active.size)
    storage.check()


def stage(log: Log, *appends: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    """Append as a broker with write queues does, in as many writes as it takes."""
    left = [AppendRequest(data, 0, origin) for data in appends]
    while left:
        with log.writing:
            staged = prepare(log, left)
            staged.write()
            staged.commit()
        left = left[len(staged.results) :]


def test_appends_behind_write_queues_are_held_also_in_a_new_segment() -> None:
    storage = MemoryStorage(make_cache=lambda: BlockCache(64, block_bytes=64), segment_bytes=300)
    log = storage.create()
    stage(log, batch(b"one"), batch(b"two"))
    assert (held(log).low, held(log).high) == (0, log.active.size)
    first = log.active
    stage(log, batch(bytes(200)))
    assert log.active is not first and (held(log).low, held(log).high) == (0, log.active.size)
    assert [values(log, offset) for offset in (0, 2)] == [[b"one", b"two", bytes(200)], [bytes(200)]]
    storage.check()


def test_what_a_follower_writes_behind_queues_is_not_held() -> None:
    storage, log = cached_log()
    stage(log, batch(b"fetched"), origin=AppendOrigin.REPLICATION)
    assert log.log_end_offset == 1 and held(log).high == 0
    begin = log.active.size
    stage(log, batch(b"as a leader"))
    assert (held(log).low, held(log).high) == (begin, log.active.size)
    storage.check()


def test_a_deleted_log_gives_its_blocks_to_others() -> None:
    storage, log = cached_log()
    append(log, bytes(3000))
    gone = held(log)
    storage.manager.delete("t", 0)
    assert gone.high < 0
    other = storage.create("u")
    for _ in range(3):
        append(other, bytes(1000))
    assert held(other).low == 0
    cache = storage.manager.storage.cache
    assert isinstance(cache, BlockCache)
    assert cache.counters.evicted_in_line == 0
