"""Produce requests that repeat the last ones of their connection, while what they depend on changes between reads."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from inspect import getattr_static
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.fast import produce as fast_produce
from pylogd.broker.log.errors import LogClosed
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.wire.fast import compiled
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from pylogd.wire.schema import response_codec
from pylogd.wire.session import ClientSession
from tests.fakes.parts import RealParts, batch
from tests.property.test_request_batches import Side

_TOPIC, _VERSION = "usual", 10


class _Authorizer:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.asked: list[tuple[object, ...]] = []

    def authorize(self, *request: object) -> bool:
        self.asked.append(request)
        return self.allowed


class Rig:
    """A broker and one connection, whose next request may repeat the last one."""

    def __init__(self, folder: Path, acks: int, **settings: Any) -> None:
        self.side = Side(folder / "broker", fast=True, **settings)
        self.parts = self.side.parts
        self.partition = self.parts.partitions.by_name[_TOPIC, 0]
        self.protocol, self.transport = self.side.connect()
        self._acks = acks
        self._session = ClientSession(1 << 20, "a client")
        for _ in range(3):
            assert self.ask() == ErrorCode.NONE
        assert self.protocol.pipeline.repeats

    def frame(self, records: bytes | None = None) -> bytes:
        """Return a request. records: other ones than usual."""
        topic = TopicProduceData(_TOPIC, partition_data=[PartitionProduceData(0, records or batch(b"value"))])
        parts: list[Any] = self._session.encode_request(ProduceRequest(None, self._acks, 1000, [topic]), _VERSION)
        return b"".join(map(bytes, parts))

    def ask(self, records: bytes | None = None) -> int:
        """Send a request, and return the error of its response; -1 if there is none yet."""
        self.transport.arrive(self.frame(records))
        got: bytes = self.transport.pump()
        if not got:
            return -1
        response: ProduceResponse = response_codec(ProduceRequest.API_KEY, _VERSION).decode(memoryview(got)[9:])
        answer = response.responses[0].partition_responses[0]
        if not answer.error_code:
            assert answer.base_offset == self.partition.log.log_end_offset - 1
        return answer.error_code

    def close(self) -> None:
        """End the connection and the broker."""
        self.transport.loseConnection()
        self.transport.pump()
        self.protocol.connectionLost()
        self.transport.peer.close()
        self.parts.close()


@pytest.fixture(params=["compiled", "in Python"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled function that appends, and without it."""
    if compiled.fast is None or fast_produce._repeated is None:
        pytest.skip("there was no compiler")
    with patch.object(fast_produce, "_repeated", None) if request.param == "in Python" else nullcontext():
        yield


@pytest.fixture(params=[1, -1])
def rig(request: pytest.FixtureRequest, way: None, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("allowed", [True, False])
def test_permission_is_asked_for_before_each_append(rig: Rig, allowed: bool) -> None:
    authorizer = _Authorizer(allowed)
    rig.parts.authorizer = cast(Any, authorizer)
    end = rig.partition.log.log_end_offset
    for _ in range(2):
        assert rig.ask() == (ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert rig.partition.log.log_end_offset == end + (2 if allowed else 0)
    assert {request[2:] for request in authorizer.asked} == {(AclOperation.WRITE, ResourceType.TOPIC, _TOPIC)}
    assert len(authorizer.asked) == 2 or not allowed


def test_several_batches_are_refused(rig: Rig) -> None:
    """On a connection whose requests repeat, and after one that has had another shape."""
    end = rig.partition.log.log_end_offset
    for records in (batch(b"value") * 2, batch(b"value") + batch(b"value", compression=1), batch(b"value") * 2):
        assert rig.ask(records) == ErrorCode.INVALID_RECORD
    assert rig.partition.log.log_end_offset == end
    assert rig.ask() == ErrorCode.NONE


_CHANGES: dict[str, tuple[Callable[[Rig], object], int]] = {
    "another leader": (
        lambda rig: rig.parts.set_state(_TOPIC, replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=1),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ),
    "another leader epoch": (lambda rig: rig.parts.set_state(_TOPIC, leader_epoch=3), ErrorCode.NONE),
    "smaller batches": (
        lambda rig: setattr(rig.partition.log, "config", rig.partition.log.config._replace(max_message_bytes=10)),
        ErrorCode.MESSAGE_TOO_LARGE,
    ),
    "no log": (lambda rig: rig.partition.go_offline(), ErrorCode.KAFKA_STORAGE_ERROR),
    "no replica": (
        lambda rig: rig.parts.partitions.by_name.pop((_TOPIC, 0)),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_change_is_noticed_by_the_next_request(rig: Rig, name: str) -> None:
    change, error = _CHANGES[name]
    end = rig.partition.log.log_end_offset
    change(rig)
    assert rig.ask() == error
    if name == "another leader epoch":
        assert rig.partition.log.log_end_offset == end + 1
        assert rig.partition.log.epochs.latest == 3


def test_an_append_that_waits_for_followers_is_answered_later(way: None, tmp_path: Path) -> None:
    rig = Rig(tmp_path, -1)
    rig.parts.set_state(_TOPIC, replicas=(1, 2), isr=(1, 2), partition_epoch=1)
    before = rig.partition.high_watermark
    assert rig.ask() == -1
    assert (rig.partition.high_watermark, rig.partition.log.log_end_offset) == (before, before + 1)
    rig.close()


def test_a_slow_disk_is_noticed_by_the_next_request(way: None, tmp_path: Path) -> None:
    """With write queues for slow disks: a write that takes long makes its disk slow, and no staged one is under way."""
    rig = Rig(tmp_path, 1, log_write_queues="slow")
    log, write = rig.partition.log, rig.parts.fs.pwritev
    excluded: list[bool] = []

    def slowly(fd: int, buffers: Any, offset: int) -> int:
        excluded.append(log.writing.locked())
        rig.parts.time.rightNow += 1.0  # no timer is due meanwhile: the thread is busy
        return write(fd, buffers, offset)

    with patch.object(rig.parts.fs, "pwritev", slowly):
        assert rig.ask() == ErrorCode.NONE
    assert excluded == [True]
    assert rig.parts.disks is not None
    assert rig.parts.disks.at(log.directory).queued
    rig.close()


def test_a_quota_ends_the_repeats(rig: Rig) -> None:
    with patch.object(fast_produce, "answer_repeated_batch", side_effect=AssertionError):
        rig.parts.client_quotas.active = True
        rig.side._factory.handler._choose_handlers()  # type: ignore[attr-defined]  # as its subscription does
        assert rig.ask() == ErrorCode.NONE
        assert not rig.protocol.pipeline.repeats


def test_a_fetch_that_waits_is_woken(rig: Rig) -> None:
    woken: list[object] = []
    waits = rig.parts.replicas.fetch_waits
    waits.add(cast(Any, object()), (_TOPIC, 0))
    with patch.object(type(waits), "check", lambda _, key: woken.append(key)):
        rig.ask()
    assert woken == [(_TOPIC, 0)]


def test_produced_requests_are_counted(rig: Rig) -> None:
    before = rig.partition.produced
    rig.ask()
    assert rig.partition.produced == before + 1


@pytest.mark.parametrize("error", [LogClosed("closed"), ZeroDivisionError("a bug")])
def test_another_error_of_a_write_is_for_the_general_path(rig: Rig, error: Exception) -> None:
    """A closed log is reported by it; a bug closes the connection, with a traceback in the log."""
    end = rig.partition.log.log_end_offset
    with patch.object(rig.parts.fs, "pwritev", side_effect=error):
        rig.transport.arrive(rig.frame())
        rig.transport.pump()
    assert rig.partition.log.log_end_offset == end
    assert rig.transport.disconnected or rig.transport.disconnecting or isinstance(error, LogClosed)
    assert rig.partition.log._lock is not None
    assert rig.partition.log._lock.acquire(blocking=False)
    rig.partition.log._lock.release()


@pytest.fixture(params=[1, -1])
def disk_rig(request: pytest.FixtureRequest, way: None, tmp_path: Path) -> Iterator[Rig]:
    """A broker with real files, whose writes the compiled function makes by itself."""
    made = _on_disk(tmp_path, request.param)
    yield made
    made.close()


def _on_disk(folder: Path, acks: int) -> Rig:
    return Rig(folder, acks, kind=RealParts, log_dirs=str(folder / "logs"), log_cleaner_enable=False)


@pytest.mark.skipif(fast_produce._repeated is None or compiled.fast is None, reason="there was no compiler")
def test_files_are_those_of_python(tmp_path: Path) -> None:
    rigs = []
    for name in ("plain", "usual"):
        (tmp_path / name).mkdir()
        with patch.object(fast_produce, "_repeated", None) if name == "plain" else nullcontext():
            rigs.append(_on_disk(tmp_path / name, 1))
        for _ in range(3):
            assert rigs[-1].ask() == ErrorCode.NONE
    plain, usual = (Path(rig.partition.log.active.path).read_bytes() for rig in rigs)
    assert len(plain) == rigs[1].partition.log.active.size
    assert plain == usual
    for rig in rigs:
        rig.close()


def _assert_not_written(rig: Rig) -> None:
    """Ask for an append that the system refuses: nothing of it is left, and the lock is free."""
    log, segment = rig.partition.log, rig.partition.log.active
    end, size = log.log_end_offset, segment.size
    assert rig.ask() == ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, segment.size, Path(segment.path).stat().st_size) == (end, size, size)
    assert log._lock is not None
    assert log._lock.acquire(blocking=False)
    log._lock.release()


def test_a_write_that_fails_is_undone_and_not_tried_again(disk_rig: Rig) -> None:
    """The file can't be written by its descriptor any more."""
    segment = disk_rig.partition.log.active
    assert segment.file is not None
    unwritable = os.open(segment.path, os.O_RDONLY)
    os.dup2(unwritable, segment.file.fd)
    os.close(unwritable)
    again = patch.object(type(segment), "write", side_effect=AssertionError)
    with again if fast_produce._repeated is not None else nullcontext():
        _assert_not_written(disk_rig)


def test_a_write_that_the_system_cuts_off_is_undone(disk_rig: Rig) -> None:
    """The file may grow by less than a batch."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (disk_rig.partition.log.active.size + 40, most))
    try:
        _assert_not_written(disk_rig)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize("disk", [False, True])
def test_no_reference_is_lost_or_kept(way: None, tmp_path: Path, disk: bool) -> None:
    """After requests that are appended, refused, left to Python, and not written."""
    rig = _on_disk(tmp_path, 1) if disk else Rig(tmp_path, -1)
    log, partition = rig.partition.log, rig.partition
    segment = log.active
    known = rig.protocol.produce_shape
    kept = [log, partition, segment, known.compiled, rig.parts.replicas, rig.protocol.session, log._lock]

    def requests() -> None:
        rig.ask()
        with patch.object(rig.parts.fs, "pwritev", side_effect=LogClosed("closed")):
            rig.ask()
        rig.ask()
        rig.ask()
        rig.parts.authorizer = cast(Any, _Authorizer(False))
        rig.ask()
        rig.parts.authorizer = None
        for _ in range(3):
            rig.ask()

    requests()
    gc.collect()
    before = [sys.getrefcount(one) for one in kept]
    for _ in range(50):
        requests()
    gc.collect()  # exceptions and their tracebacks refer to each other
    after = [sys.getrefcount(one) for one in kept]
    assert [now - then for now, then in zip(after, before, strict=True)] == [0] * len(kept)
    rig.close()


def test_bad_arguments_raise(way: None) -> None:
    module = fast_produce._repeated or pytest.importorskip("pylogd.broker.api.fast._repeated")
    usual: list[Any] = [None, {}, {}, frozenset(), (1, 2), None, None, None, b"", None]
    for place, value in ((1, []), (2, None), (3, ()), (4, [1, 2]), (4, (1,)), (8, bytearray())):
        arguments = list(usual)
        arguments[place] = value
        with pytest.raises(TypeError):
            module.append_repeated(*arguments)
    with pytest.raises(TypeError):
        module.append_repeated(*usual[:-1])


def test_a_class_that_changes_is_asked_anew(rig: Rig) -> None:
    """The compiled function remembers where attributes are in the instances of a class."""
    rig.ask()
    kind, kept = type(rig.partition), {"produced": 100}
    slot, added = (
        getattr_static(kind, "produced"),
        property(lambda _: kept["produced"], lambda _, value: kept.update(produced=value)),
    )
    with patch.object(kind, "produced", added):
        rig.ask()
        assert kept == {"produced": 101}
    assert getattr_static(kind, "produced") is slot
    before = rig.partition.produced
    rig.ask()
    assert (rig.partition.produced, kept) == (before + 1, {"produced": 101})


def test_an_attribute_without_a_value_is_left_to_python(rig: Rig) -> None:
    segment = rig.partition.log.active
    state = segment.known_timestamp
    del segment._max_timestamp
    rig.transport.arrive(rig.frame())
    rig.transport.pump()
    assert rig.transport.disconnected or rig.transport.disconnecting
    segment.known_timestamp = state
