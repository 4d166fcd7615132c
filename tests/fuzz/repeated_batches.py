"""Produce requests that repeat the last batch, in odd states of the broker: the compiled append against that in Python.

Strategy: two equal brokers on file systems in memory, one connection to each. Each input empties one partition and then
offers it several reads, of requests that repeat the first one, or nearly so, or are damaged or cut. What the compiled
function looks at changes between the reads, on both brokers alike: leader, leader epoch, in-sync set, segment,
settings, time, permission, write errors, what the connection knows. The last read of an input may find an odd object in
one place: a wrong type, a number that is too large, an authorizer that raises or removes what is being used. Real files
are in `repeated_writes`, which has other sides.

`agree` asserts that the compiled function and its twin in Python return the same bytes, or raise the same, and leave
logs, indexes, producers, counts and waiting fetches alike; that the log's lock is free; and that no reference is lost
or kept.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast
from unittest.mock import patch

from twisted.logger import Logger

from pylogd.broker.api.fast import produce
from pylogd.broker.log.truncation import truncate_fully_and_start_at
from pylogd.broker.replica import storage_failures
from pylogd.broker.replica.purgatory import OperationState, Watcher
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.session import ClientSession, ServerSession
from tests.fakes.parts import FakeConnection, Parts
from tests.fakes.storage import batch, fix_crc
from tests.fuzz.damage import damaged

_TOPICS: dict[str, dict[str, str]] = {
    "usual": {},
    "rolls": {"internal_segment_bytes": "3000"},
    "index": {"index_interval_bytes": "0", "segment_index_bytes": "4800"},
    "synced": {"flush_messages": "5"},
}
_FLUSHED = "synced", 0
_NAMES = ("usual", "usual", *_TOPICS)
_MOST_BYTES = 1 << 20  # of a request
_INPUTS = 400  # with one pair of brokers
_FOLDERS = "first", "other"  # of equal length: answers may tell the path of a file
_INT64 = (1 << 63) - 1
_ODD: tuple[object, ...] = (None, "text", b"", (), [], -1, _INT64, 1 << 63, -(1 << 64))
#: What an odd object may be put at: the object that has the attribute, and the attributes.
_PLACES: dict[str, tuple[str, ...]] = {
    "partition": (
        "led_log", "leader_epoch", "alone", "enough_in_sync", "flush_visible", "flush_at", "topic", "produced",
    ),
    "log": ("_active", "_lock", "epochs", "fast_accept", "index_interval", "log_start_offset", "producers"),
    "segment": ("indexes", "max_entries", "bytes_since_index", "_max_timestamp", "cached"),
}  # fmt: skip


class _Visits(Watcher):
    """Counts how often fetches that wait for one partition are told of a change. key: the partition's."""

    def __init__(self) -> None:
        self.state, self.count = OperationState.WAITING, 0
        self.key: Hashable = None

    def try_complete(self, key: Hashable) -> bool:
        self.count += key == self.key and key != _FLUSHED  # whose flushes may end later
        return False

    def fail(self, error: Exception) -> bool:
        raise error


class Side(ABC):
    """One broker, and a connection to it. log: the partition's, which the partition itself may lose."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = bytes(folder)
        self.parts = self._make_parts(folder)
        configs: Any
        for name, configs in _TOPICS.items():
            self.parts.create(name, **configs)
        self.visits = _Visits()
        for name in _TOPICS:
            self.parts.fetch_waits.add(self.visits, (name, 0))
        self.session = ServerSession(_MOST_BYTES, {})
        self.connection: Any = FakeConnection()
        self.partition: Any = None
        self.log: Any = None
        self._written = 0  # before the input
        self.restless = False  # whether what is asked for permission changes something

    @abstractmethod
    def _make_parts(self, folder: Path) -> Parts:
        """Return a broker that has not written anything yet."""

    @property
    def offline(self) -> bool:
        """Whether a failure of the last input took the partitions of this broker away."""
        return self.log is not None and self.partition._log is None

    def begin(self, name: str) -> None:
        """Empty a partition of which this broker is the only replica, in leader epoch 0, for a new connection."""
        parts = self.parts
        self.connection, self.partition = FakeConnection(), parts.partitions.by_name[name, 0]
        partition, log = self.partition, self.partition.log
        self.log = log
        truncate_fully_and_start_at(log, 0)
        state = partition.state
        partition.state, partition.leader_epoch, partition.high_watermark, partition.produced = None, -1, 0, 0
        log.config = log.config._replace(max_message_bytes=1 << 20)
        parts.hosting.refresh(partition, replace(state, replicas=(1,), isr=(1,), leader=1, leader_epoch=0))
        self.visits.key = partition.key
        self.visits.count, self.restless, self._written = 0, False, log.written_bytes

    def state(self) -> tuple[object, ...]:
        """Return what the partition's log has and what the broker knows of it."""
        partition, log = self.partition, self.log
        active = log.active
        return (
            self.offline, partition.high_watermark, partition.produced, self.visits.count, log.log_end_offset,
            log.written_bytes - self._written,
            [(segment.base_offset, segment.size, segment.full) for segment in log.segments],
            active.bytes_since_index, active._max_timestamp, active._max_timestamp_offset, active.torn,
            active.indexes and (active.indexes.offsets.pairs(), active.indexes.times.to_bytes()),
            self.contents(), log.producers.to_snapshot(),
        )  # fmt: skip

    @abstractmethod
    def contents(self) -> object:
        """Return what is in the files of the log."""

    @abstractmethod
    def fail_write(self, stack: ExitStack, partial_bytes: int | None, after: int) -> None:
        """Have a write fail. partial_bytes: what is written of it, None if nothing. after: how many are good before."""

    def close(self) -> None:
        """Stop the broker."""
        for name in _TOPICS:
            self.parts.fetch_waits.remove(self.visits, (name, 0))
        self.parts.close()


class _MemorySide(Side):
    """A broker whose files are in memory."""

    def _make_parts(self, folder: Path) -> Parts:
        return Parts(folder, log_cleaner_enable=False, log_validate_records="true")

    def begin(self, name: str) -> None:
        """See `Side`."""
        self.parts.fs.calls.clear()
        super().begin(name)

    def contents(self) -> object:
        """Return what is in the file that is appended to."""
        file = self.log.active.file
        return file and bytes(self.parts.fs._file(file.fd)[1].data)

    def fail_write(self, stack: ExitStack, partial_bytes: int | None, after: int) -> None:
        """See `Side`."""
        fault = self.parts.fs.failing("pwritev", errno.ENOSPC, after=after, partial=partial_bytes)
        stack.enter_context(fault)


#: Changes what a read finds on a side, maybe only until the end of the read.
Change = Callable[[Side, ExitStack], object]


class RepeatedBatches:
    """Two brokers, whose states `agree` changes for each input.

    make_side: makes one of them, in a new folder.
    """

    make_side: Callable[[Path], Side] = _MemorySide

    def __init__(self) -> None:
        self._stack, self._inputs = ExitStack(), 0
        silent = Logger(
            observer=cast(Any, lambda _: None)
        )  # a full disk is no news here; kept events would keep exceptions
        self._silence = partial(patch.object, storage_failures, "log", silent), _silenced
        self.sides: tuple[Side, Side] = self._make_sides()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _make_sides(self) -> tuple[Side, Side]:
        for silence in self._silence:
            self._stack.enter_context(silence())
        folder = Path(self._stack.enter_context(TemporaryDirectory()))
        made = []
        for name in _FOLDERS:
            ids = random.Random(1)  # so that both give the same ids to their topics
            with patch.object(uuid, "uuid4", lambda ids=ids: uuid.UUID(int=ids.getrandbits(128), version=4)):
                made.append(self.make_side(folder / name))
            self._stack.callback(made[-1].close)
        return made[0], made[1]

    def agree(self, number: int, module: Any) -> bool:
        """Assert that `module` handles input `number` as Python does; return whether it appended without Python."""
        chance = random.Random(number)
        self._inputs += 1
        if self._inputs % _INPUTS == 0:
            self._stack.close()
            self.sides = self._make_sides()
        name = chance.choice(_NAMES)
        for side in self.sides:
            side.begin(name)
        requests = _Requests(chance, self.sides[0].partition)
        first = requests.read(1)
        for side in self.sides:
            produce.answer_repeated_batch(side.parts, side.connection, first, side.session)
        taken = False
        for step in range(chance.randint(1, 6)):
            change, last = self.pick_change(chance)
            taken |= self._agree_on(requests.hostile_read(), change, module, f"input {number}, read {step}")
            if last or self.sides[0].offline:
                break
        return taken

    def pick_change(self, chance: random.Random) -> tuple[Change, bool]:
        """Return what a read finds changed, and whether it is the last read of its input."""
        odd = chance.random() < 0.25
        return _odd_change(chance) if odd else _change(chance), odd

    def append(self, function: Callable[..., Any], connection: Any, data: bytes, session: ServerSession) -> Any:
        """Have the compiled function handle a read; return its answer."""
        return function(connection, data, session)

    def _agree_on(self, data: bytes, change: Change, module: Any, where: str) -> bool:
        """Assert that both sides handle a read alike; return whether the compiled one appended without Python."""
        compiled, plain = self.sides
        asked, end = 0, compiled.log.log_end_offset

        def otherwise(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return produce.answer_repeated_batch(broker, *arguments)

        broker: Any = compiled.parts
        hosted = broker.partitions
        append = partial(
            module.append_repeated, broker, hosted.by_id, hosted.by_name, INTERNAL_TOPICS, produce._PERMISSION,
            otherwise, partial(produce._answer_failure, broker),
        )  # fmt: skip
        expected, _ = _outcome(partial(produce.answer_repeated_batch, plain.parts), plain, data, change)
        found, references = _outcome(partial(self.append, append), compiled, data, change)
        if asked and compiled.restless:
            return False  # the authorizer was asked twice, and has changed something each time
        assert found == expected, f"{where}: {found!r:.300} instead of {expected!r:.300}"
        usual = not (asked or compiled.restless or compiled.offline)  # directories keep why they are offline
        assert not (usual and any(references)), f"{where}: references {references} more than before"
        assert not compiled.log.lock._is_owned(), f"{where}: the lock is held"
        for one, other in zip(compiled.state(), plain.state(), strict=True):
            assert one == other, f"{where}: {one!r:.1000} instead of {other!r:.1000}"
        return not asked and compiled.log.log_end_offset > end


@contextmanager
def _silenced() -> Iterator[None]:
    """Have logs say nothing of what is done to them."""
    logger = logging.getLogger("pylogd.broker.log")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _outcome(answer: Callable[..., Any], side: Side, data: bytes, change: Change) -> tuple[object, list[int]]:
    """Return what is answered after a change, or the type of the exception, and how many references are new."""
    kept: list[object] = [data, side.session, side.connection, side.parts, side.parts.fs, os.pwritev]
    if side.partition.key != _FLUSHED:  # of which a flush may have begun
        kept += side.partition, side.log, side.log.active, side.log.active.file
    with ExitStack() as stack:
        change(side, stack)
        before = list(map(sys.getrefcount, kept))
        try:
            found = answer(side.connection, data, side.session)
            if found is not None:
                found = found[0].replace(side.folder, b"folder"), *found[1:]
        except Exception as error:
            found = type(error)
        after = list(map(sys.getrefcount, kept))
        if after != before:
            gc.collect(1)  # exceptions and their tracebacks refer to each other
            after = list(map(sys.getrefcount, kept))
        return found, [now - then for now, then in zip(after, before, strict=True)]


class _Requests:
    """Requests of one connection for one partition."""

    def __init__(self, chance: random.Random, partition: Any) -> None:
        self._chance = chance
        self._version, self._acks = chance.choice((3, 7, 8, 9, 11, 13)), chance.choice((1, -1, -1))
        self._session = ClientSession(_MOST_BYTES, chance.choice((None, "me")))
        self._producer, self._sequence = chance.choice((-1, -1, 7)), 0
        self._partition = partition

    def read(self, count: int) -> bytes:
        """Return so many requests."""
        chance, parts = self._chance, []
        for _ in range(count):
            numbered: dict[str, Any] = {}
            if self._producer >= 0:
                numbered = {"producer_id": self._producer, "producer_epoch": 0, "base_sequence": self._sequence}
                self._sequence += 1
            size = chance.choice((0, 10, 20, 20, 20, 200, 200, 3000, 20_000))
            records = batch(b"v" * size, timestamp=self._time(), **numbered)
            if chance.random() < 0.03:
                records = damaged(chance, records)
                records = fix_crc(records) if chance.random() < 0.7 else records
            parts.append(self._request(records))
        return b"".join(parts)

    def hostile_read(self) -> bytes:
        """Return what one read brings: requests, some of which may be damaged, repeated or not complete."""
        chance = self._chance
        data = self.read(chance.choice((1, 1, 1, 2, 5, 40)))
        match chance.randrange(12):
            case 0:
                return damaged(chance, data)
            case 1:
                return data[: chance.randrange(len(data))]
            case 2:
                return data + chance.randbytes(chance.randint(1, 9))
            case 3:
                return data + data
            case 4:
                self._sequence += chance.choice((1, -1))
                return data + self.read(2)
        return data

    def _time(self) -> int:
        return 1_700_000_000_000 + self._chance.choice((0, 0, 1, -5, 50, 86_400_000, -86_400_000 * 400))

    def _request(self, records: bytes) -> bytes:
        by_id, found = self._version >= 13, self._partition
        topic = TopicProduceData(
            "" if by_id else found.topic, found.topic_id if by_id else bytes(16), [PartitionProduceData(0, records)]
        )
        parts: list[Any] = self._session.encode_request(ProduceRequest(None, self._acks, 1000, [topic]), self._version)
        return b"".join(map(bytes, parts))


# What changes between two reads. Each is made of one choice, and applied to both sides -------------------------------


def _change(chance: random.Random) -> Change:
    """Return a change that a broker sees in its life, or none."""
    epoch, low = chance.choice((1, 2, 5)), chance.random() < 0.5
    partial_bytes, after = chance.choice((None, 0, 30, 700)), chance.randrange(2)
    seconds = chance.choice((0.5, 3600.0, 86_400.0 * 8))
    allowed = chance.choice((True, False))
    changes: tuple[Change, ...] = (
        lambda side, _: side.parts.time.advance(seconds),
        lambda side, _: _set_state(side, leader_epoch=side.partition.leader_epoch + epoch),
        lambda side, _: _set_state(side, replicas=(1, 2), isr=(1, 2)),
        lambda side, _: _set_state(side, replicas=(1, 2), isr=(1,)),
        lambda side, _: _set_state(side, replicas=(1,), isr=(1,)),
        lambda side, _: _set_state(
            side, replicas=(1, 2), isr=(2,), leader=2, leader_epoch=side.partition.leader_epoch + 1
        ),
        lambda side, _: setattr(
            side.partition.log, "config", side.partition.log.config._replace(max_message_bytes=100 if low else 1 << 20)
        ),
        lambda side, _: _roll(side),
        lambda side, stack: stack.enter_context(patch.object(side.partition, "enough_in_sync", False)),
        lambda side, stack: side.fail_write(stack, partial_bytes, after),
        lambda side, stack: stack.enter_context(_authorized(side, lambda: allowed)),
        lambda side, stack: stack.enter_context(_without_partition(side)),
        lambda side, _: setattr(side.connection, "produce_shape", None),
    )
    return chance.choice(changes) if chance.random() < 0.5 else lambda side, stack: None


def _roll(side: Side) -> None:
    log = side.partition.log
    if log.active.size:
        log.roll(log.log_end_offset, side.parts.now_ms())


def _set_state(side: Side, **fields: Any) -> None:
    side.parts.set_state(*side.partition.key, **fields)


@contextmanager
def _authorized(side: Side, answer: Callable[[], Any]) -> Iterator[None]:
    """Have an authorizer decide."""
    with patch.object(side.parts, "authorizer", SimpleNamespace(authorize=lambda *_: answer())):
        yield


@contextmanager
def _without_partition(side: Side) -> Iterator[None]:
    hosted, partition = side.parts.partitions, side.partition
    with patch.dict(hosted.by_name), patch.dict(hosted.by_id):
        del hosted.by_name[partition.key], hosted.by_id[partition.topic_id, 0]
        yield


def _odd_change(chance: random.Random) -> Change:
    """Return a change that puts an odd object somewhere until the end of the read."""
    match chance.randrange(4):
        case 0:
            way = chance.randrange(6)
            return lambda side, stack: stack.enter_context(_authorized(side, partial(_odd_answer, side, stack, way)))
        case 1:
            place, odd, cut = chance.randrange(5), chance.choice(_ODD[:5]), chance.random() < 0.2
            return lambda side, stack: _make_odd_shape(side.connection, place, odd, cut)
    of = chance.choice(list(_PLACES))
    attribute, odd = chance.choice(_PLACES[of]), chance.choice(_ODD)
    return lambda side, stack: stack.enter_context(odd_attribute(side, of, attribute, odd))


def _odd_answer(side: Side, stack: ExitStack, way: int) -> Any:
    """Answer for an authorizer, which may do other things meanwhile."""
    side.restless = way > 1
    match way:
        case 0:
            raise OSError("odd")
        case 1:
            return _Undecided()
        case 2:
            stack.enter_context(_without_partition(side))
        case 3:
            side.connection.produce_shape = None
        case 4:
            stack.enter_context(patch.object(side.partition, "led_log", None))
        case 5:
            _roll(side)
    return True


def _make_odd_shape(connection: Any, place: int, odd: object, cut: bool) -> None:
    """Put an odd object into what the connection knows of its last request."""
    known = connection.produce_shape
    if known is not None:
        compiled = list(known.compiled)
        compiled[place] = odd
        known.compiled = tuple(compiled[1:]) if cut else tuple(compiled)


@contextmanager
def odd_attribute(side: Side, of: str, attribute: str, odd: object) -> Iterator[None]:
    """Put an odd object at an attribute. What was there is put back, unless there is something new."""
    log = side.partition.log
    target = {"partition": side.partition, "log": log, "segment": log.active}[of]
    before = getattr(target, attribute)
    setattr(target, attribute, odd)
    try:
        yield
    finally:
        setattr(target, attribute, before)


class _Undecided:
    """Neither true nor false."""

    def __bool__(self) -> bool:
        raise ZeroDivisionError
