"""Write queues and disks: which queue, how much it takes, and how a disk that hangs is found."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from pylogd.broker.isolation.disks import DiskOptions, Disks
from pylogd.broker.isolation.write_queue import PAUSE, WriteQueue
from tests.fakes.workers import HeldWorkers

OPTIONS = DiskOptions(queues=4, max_requests=3, max_bytes=100, threads=2, timeout=10.0)


class Found:
    """Disks on a fake clock, and which of them were found to hang."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hanging: list[tuple[str, float]] = []
        self.disks = Disks(
            ["/a", "/b"], OPTIONS, self.clock, lambda function, *args: function(*args),
            lambda path, seconds: self.hanging.append((path, seconds)), HeldWorkers,
        )  # fmt: skip


def test_a_queue_takes_so_many_requests_and_bytes() -> None:
    queue = WriteQueue("q", 3, 100, HeldWorkers("w", 1, lambda: None, lambda: 0.0), lambda: 0.0)
    assert queue.takes(500)  # an empty one takes anything
    queue.enter(500)
    assert not queue.takes(1)
    queue.leave(500)
    queue.enter(60)
    assert not queue.takes(41)
    assert queue.takes(40)
    queue.enter(40)
    assert queue.takes(0)
    queue.enter(0)
    assert not queue.takes(0)
    assert (queue.requests, queue.bytes) == (3, 100)


def test_only_those_who_are_refused_too_often_have_to_pause() -> None:
    clock = Clock()
    queue = WriteQueue("q", 3, 100, HeldWorkers("w", 1, lambda: None, lambda: 0.0), clock.seconds)
    assert [queue.refuse() for _ in range(101)] == [0.0] * 100 + [PAUSE]
    clock.advance(0.5)
    assert [queue.refuse() for _ in range(51)] == [0.0] * 50 + [PAUSE]
    clock.advance(100)
    assert [queue.refuse() for _ in range(101)] == [0.0] * 100 + [PAUSE]
    assert queue.refused == 253


def test_a_topic_has_one_queue_on_each_disk() -> None:
    disks = Found().disks
    assert disks.at("/a/t-0").queue_of("t") is disks.at("/a/t-1/00000000000000000000.log").queue_of("t")
    assert disks.at("/a/t-0").queue_of("t") is not disks.at("/b").queue_of("t")
    assert len({id(disks.at("/a").queue_of(f"topic-{n}")) for n in range(50)}) == OPTIONS.queues
    with pytest.raises(KeyError):
        disks.at("/c/t-0")


def test_a_call_that_does_not_return_in_time_is_reported_once() -> None:
    found = Found()
    found.disks.start()
    disk, failures = found.disks.at("/a"), list[Any]()
    writer = disk.queue_of("t").writer
    assert isinstance(writer, HeldWorkers)
    writer.hold = True
    for _ in range(2):
        writer.run(int).addErrback(failures.append)
    writer.begin()
    for _ in range(9):
        found.clock.advance(1)
    assert not found.hanging
    for _ in range(9):
        found.clock.advance(1)
    assert found.hanging == [("/a", 10.0)]
    assert found.disks.failed("/a", OSError("offline")) == 1
    assert found.disks.stuck == {"/a": 1}
    assert len(failures) == 2
    found.disks.call("/a/t-0", int).addErrback(failures.append)
    assert len(failures) == 3
    other: list[int] = []
    found.disks.call("/b/t-0", int).addCallback(other.append)
    assert other == [0]
    found.disks.stop()
    assert not found.clock.getDelayedCalls()


def test_a_directory_that_is_opened_again_gets_new_threads() -> None:
    found = Found()
    found.disks.failed("/a", OSError("offline"))
    found.disks.reopened("/a")
    results: list[int] = []
    found.disks.call("/a/t-0", int).addCallback(results.append)
    assert results == [0]
    assert found.disks.stuck == {}


def test_calls_of_other_threads_are_counted_until_a_failed_directory_is_opened_again() -> None:
    found = Found()
    found.disks.other_calls = {"/a": 2, "/b": 3}.__getitem__
    assert found.disks.stuck == {}
    assert found.disks.failed("/a", OSError("offline")) == 2
    assert found.disks.stuck == {"/a": 2}
    found.disks.reopened("/a")
    assert found.disks.stuck == {}
