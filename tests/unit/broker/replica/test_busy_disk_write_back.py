"""When, and for which disks, what is appended is handed over early."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogd.broker.isolation.laggards import LaggardThrottle
from pylogd.broker.log import early_write_back
from pylogd.broker.log.early_write_back import LEAST_BYTES
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.replica.busy_disk_write_back import INTERVAL, BusyDiskWriteBack
from pylogd.broker.replica.disk_calls import DiskCalls
from tests.fakes.storage import DATA, MemoryStorage, append


class Throttle:
    """The part of `LaggardThrottle` that is used."""

    on_sample: Callable[[list[str]], object]

    def throttle(self, *directories: str) -> None:
        """From now on these disks are busy, and no others."""
        self.on_sample(list(directories))


class Test(SynchronousTestCase):
    """A log that is appended to, and a thread that ends its calls when it is told to."""

    def setUp(self) -> None:
        self.handed: list[int] = []
        patch = pytest.MonkeyPatch()
        patch.setattr(
            early_write_back, "sync_file_range", lambda fd, position, length, flags: self.handed.append(length)
        )
        self.addCleanup(patch.undo)
        self.storage = MemoryStorage()
        self.log = self.storage.create()
        self.laggards, self.clock = Throttle(), Clock()
        self.calls: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self.writer = BusyDiskWriteBack(
            cast(LaggardThrottle, self.laggards), self.storage.manager, DiskCalls(self.in_thread), self.clock
        )
        self.writer.start()

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.calls.append((done, function, arguments))
        return done

    def run_calls(self) -> None:
        """Make the calls that wait for a thread."""
        calls, self.calls = self.calls, []
        for done, function, arguments in calls:
            done.callback(function(*arguments))

    def append(self) -> None:
        append(self.log, bytes(2 * LEAST_BYTES))

    def test_nothing_happens_while_no_disk_is_busy(self) -> None:
        self.append()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_is_appended_to_a_busy_disk_is_handed_over(self) -> None:
        self.laggards.throttle(DATA)
        for passes in range(1, 4):
            self.clock.advance(INTERVAL)
            self.run_calls()
            self.assertEqual(len(self.handed), passes - 1, "the first pass only looks where the end is")
            self.append()

    def test_a_pass_begins_after_the_one_before(self) -> None:
        self.laggards.throttle(DATA)
        self.clock.advance(INTERVAL)
        self.clock.advance(10 * INTERVAL)
        self.assertEqual(len(self.calls), 1)
        self.run_calls()
        self.clock.advance(INTERVAL)
        self.assertEqual(len(self.calls), 1)

    def test_another_disk_is_left_alone(self) -> None:
        self.laggards.throttle("/another")
        for _ in range(3):
            self.append()
            self.clock.advance(INTERVAL)
            self.run_calls()
        self.assertEqual(self.handed, [])

    def test_it_ends_when_no_disk_is_busy_any_more(self) -> None:
        self.laggards.throttle(DATA)
        self.laggards.throttle()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.laggards.throttle(DATA)
        self.clock.advance(INTERVAL)
        self.laggards.throttle()
        self.run_calls()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_directory_that_was_given_up_is_passed_over(self) -> None:
        self.laggards.throttle(DATA)
        self.clock.advance(INTERVAL)
        ((done, _, _),) = self.calls
        self.calls = []
        done.errback(StorageFailure(DATA, OSError(errno.EIO, "offline")))
        self.clock.advance(INTERVAL)
        self.assertEqual(len(self.calls), 1)
