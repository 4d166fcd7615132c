"""Appends in three steps leave the same log, and the same answers, as appends in one."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pylogd.base.errors import PylogdError
from pylogd.broker.log.append.result import AppendResult
from pylogd.broker.log.append.staged import AppendRequest, prepare
from pylogd.broker.log.config import LogConfig, TimestampType
from pylogd.broker.log.log import Log
from pylogd.broker.log.markers import encode_marker
from pylogd.broker.log.retention import retain
from pylogd.broker.log.transactions import VERIFICATION_OFF, TransactionTerms
from pylogd.broker.log.truncation import truncate_to
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import TRANSACTIONAL
from tests.fakes.storage import MemoryStorage, batch

Outcome = AppendResult | type[PylogdError]
#: What happens: an append, or something that must not cross one.
APPENDS = st.one_of(
    st.tuples(st.just("plain"), st.integers(1, 3), st.integers(1, 300)),
    st.tuples(st.just("many"), st.integers(2, 4), st.integers(1, 100)),
    st.tuples(st.just("idempotent"), st.integers(0, 2), st.integers(-1, 2)),
    st.tuples(st.just("compressed"), st.integers(1, 3), st.integers(1, 300)),
    st.tuples(st.just("bad"), st.integers(1, 3), st.integers(1, 30)),
    st.tuples(st.just("own"), st.integers(1, 3), st.integers(1, 30)),
    st.tuples(st.just("late"), st.integers(1, 50), st.integers(0, 0)),
    st.tuples(st.just("transactional"), st.integers(0, 2), st.integers(-1, 2)),
    st.tuples(st.just("transactional"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("marker"), st.integers(0, 2), st.integers(0, 3)),
)
OTHERS = st.one_of(
    st.tuples(st.just("epoch"), st.just(0), st.just(0)),
    st.tuples(st.just("truncate"), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("retain"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, 2000), st.just(0)),
)
#: An event, and whether what waits is written before it, in the staged log.
HISTORY = st.lists(st.tuples(st.one_of(APPENDS, APPENDS, APPENDS, OTHERS), st.booleans()), max_size=40)
CONFIGS = st.sampled_from(
    [
        {"segment_bytes": 700},
        {"segment_bytes": 700, "index_interval_bytes": 0, "segment_index_bytes": 36},
        {"segment_bytes": 1 << 20, "segment_ms": 20},
        {"segment_bytes": 900, "message_timestamp_type": TimestampType.LOG_APPEND_TIME},
        {"segment_bytes": 1 << 20},
    ]
)


class History:
    """Turns events into requests, the same for both logs."""

    def __init__(self) -> None:
        self.epoch = 0
        self.next = {0: 0, 1: 5, 2: (1 << 31) - 2}  # sequence numbers, by producer

    def request(self, kind: str, first: int, second: int, now_ms: int) -> AppendRequest:
        if kind == "marker":
            data = encode_marker(first, second // 2, now_ms, committed=bool(second & 1), coordinator_epoch=second)
            return AppendRequest(data, self.epoch, AppendOrigin.COORDINATOR, terms=TransactionTerms(version=1))
        if kind in ("idempotent", "transactional"):
            sequence = max(self.next[first] + second, 0) & ((1 << 31) - 1)  # a duplicate, the next one, or a gap
            if not second:
                self.next[first] = (sequence + 2) & ((1 << 31) - 1)
            data = batch(
                b"a", b"b", timestamp=now_ms, producer_id=first, producer_epoch=0, base_sequence=sequence,
                attributes=TRANSACTIONAL if kind == "transactional" else 0,
            )  # fmt: skip
            if kind == "transactional":
                return AppendRequest(data, self.epoch, terms=VERIFICATION_OFF)
        elif kind == "many":
            data = b"".join(batch(b"m" * second, timestamp=now_ms) for _ in range(first))
        elif kind == "late":
            data = batch(b"l", timestamp=now_ms + first)
        else:
            codec = CompressionType.GZIP if kind == "compressed" else CompressionType.NONE
            data = batch(*[b"v" * second] * first, timestamp=now_ms, compression=codec)
        if kind == "bad":
            data = data[:-1] + bytes([data[-1] ^ 1])
        return AppendRequest(data, self.epoch, AppendOrigin.COORDINATOR if kind == "own" else AppendOrigin.CLIENT)


class Staged:
    """A log to which appends are made in three steps; they wait until somebody writes."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.waiting: deque[AppendRequest] = deque()
        self.outcomes: list[Outcome] = []

    def write_all(self) -> None:
        while self.waiting:
            assert self.log.writing.acquire(blocking=False)
            try:
                staged = prepare(self.log, list(self.waiting))
                if staged.size:
                    staged.write()
                made: list[Any] = list(staged.commit())
            except PylogdError as error:
                made = [type(error)]
            finally:
                self.log.writing.release()
            for outcome in made:
                self.waiting.popleft()
                self.outcomes.append(outcome)


def do_other(log: Log, storage: MemoryStorage, kind: str, argument: int) -> None:
    if kind == "truncate":
        truncate_to(log, max(log.log_end_offset - argument, 0))
    elif kind == "retain":
        log.config = log.config._replace(retention_ms=0 if argument else -1)
        retain(log, storage.now_ms)
    elif kind == "flush":
        log.flush()
    else:
        storage.pass_time(argument)


def state(log: Log, storage: MemoryStorage) -> dict[str, object]:
    files = {
        path: bytes(inode.data)
        for path, inode in storage.fs.files.items()
        if path.startswith(log.directory) and path.endswith((".log", ".index", ".timeindex", ".txnindex", ".snapshot"))
    }
    return {
        "files": files,
        "range": (log.log_start_offset, log.log_end_offset),
        "epochs": log.epochs.entries(),
        "producers": log.producers.to_snapshot(),
        "stable": log.producers.unstable.stable_end(log.log_end_offset - 2),
        "aborted": [segment.get_indexes(allow_cold=True).aborted.entries for segment in log.segments],
        "segments": [(segment.base_offset, segment.size) for segment in log.segments],
    }


@given(CONFIGS, HISTORY)
@settings(max_examples=300, deadline=None)
def test_staged_appends_leave_the_same_log(config: dict[str, Any], history: list[tuple[Any, bool]]) -> None:
    storages = [MemoryStorage(LogConfig(**config)) for _ in range(2)]
    storages[1].manager.storage.staged_appends = True
    direct, other = (storage.create() for storage in storages)
    staged, events, outcomes = Staged(other), History(), list[Outcome]()
    for (kind, first, second), write in history:
        if kind == "epoch":
            events.epoch += 1
        elif kind in ("truncate", "retain", "flush", "time"):
            staged.write_all()
            for log, storage in zip((direct, other), storages, strict=True):
                do_other(log, storage, kind, first)
        else:
            request = events.request(kind, first, second, storages[0].now_ms)
            try:
                outcomes.append(
                    direct.append(
                        request.records, leader_epoch=request.leader_epoch, origin=request.origin, terms=request.terms
                    )
                )
            except PylogdError as error:
                outcomes.append(type(error))
            staged.waiting.append(request)
        if write:
            staged.write_all()
    staged.write_all()
    assert staged.outcomes == outcomes
    assert state(other, storages[1]) == state(direct, storages[0])
    for log, storage in zip((direct, other), storages, strict=True):
        log.close()
        storage.manager.close()
    assert {path: bytes(inode.data) for path, inode in storages[0].fs.files.items() if "/t-0/" in path} == {
        path: bytes(inode.data) for path, inode in storages[1].fs.files.items() if "/t-0/" in path
    }
