"""Simulated disks with write queues (`log.write.queues`): their threads take simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogd.broker.isolation.disks import ALWAYS, OFF, DiskOptions, Disks
from pylogd.broker.isolation.workers import Workers
from pylogd.broker.log.append.staged import wait_to_begin
from pylogd.broker.log.log import Log
from pylogd.broker.replica import staged_writes
from tests.fakes.filesystem import MemoryFileSystem
from tests.fakes.workers import set_pace


class WouldWait(BaseException):
    """A thread would wait for a write under way, which in a simulation means to make the call again later.

    It is made again from its beginning, so it may have changed nothing before that, or nothing that matters then.
    """


_exclude_appends, _wait_to_begin = Log.exclude_appends, wait_to_begin


class SimFiles(MemoryFileSystem):
    """The files of a simulated broker: only for logs in them threads do not wait."""


def _check_free(log: Log) -> None:
    if isinstance(log.storage.fs, SimFiles) and log.storage.staged_appends and log.writing.locked():
        raise WouldWait


def _exclude_appends_now(log: Log) -> Any:
    _check_free(log)
    return _exclude_appends(log)


def _begin_now(log: Log) -> None:
    _check_free(log)
    _wait_to_begin(log)


def let_threads_wait() -> None:
    """Have the threads of simulated disks wait for each other in simulated time."""
    Log.exclude_appends = _exclude_appends_now  # type: ignore[method-assign, assignment]
    staged_writes.wait_to_begin = _begin_now  # type: ignore[attr-defined]


class SimWorkers(Workers):
    """Threads of a disk: a call begins after a while, takes effect, and returns after another while."""

    def __init__(self, broker: Any, name: str, most: int, **how: Any) -> None:
        super().__init__(name, most, **how)
        self._broker = broker
        self._from_thread = self._later
        self._busy = 0

    def _start_thread(self, name: str) -> None:
        """Start none."""

    def _later(self, function: Callable[..., object], *args: Any) -> None:
        call, result = args
        if isinstance(result, Failure) and result.check(WouldWait):
            self._broker.time.callLater(self._delay(), self._make, call)
        else:
            self._broker.time.callLater(self._delay(), self._end, function, args)

    def _delay(self) -> float:
        return float(self._broker.world.rng.uniform(0, 0.01))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        done = super().run(function, *arguments)
        self._begin()
        return done

    def _begin(self) -> None:
        if self._busy < self._most and not self._queue.empty():
            self._busy += 1
            call = self._queue.get_nowait()
            assert call is not None
            self._broker.time.callLater(self._delay(), self._make, call)

    def _end(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._busy -= 1
        self._begin()
        function(*args)


def make_disks(broker: Any) -> Disks | None:
    """Return a broker's disk with its write queues, None if the settings want none."""
    if broker.settings.text("log.write.queues") == OFF:
        return None
    let_threads_wait()
    options = DiskOptions(queues=2, max_requests=4, max_bytes=1 << 20, threads=2, timeout=1000.0,
                          always=broker.settings.text("log.write.queues") == ALWAYS)  # fmt: skip

    def workers(name: str, most: int, **how: Any) -> SimWorkers:
        return SimWorkers(broker, name, most, **how)

    def at_once(function: Callable[..., object], *args: Any) -> None:
        function(*args)

    return Disks(["/data"], options, broker.clock, at_once, lambda path, seconds: None, workers)


def change_pace(broker: Any) -> None:
    """Have a broker's disk become slow and quick again at random times, if that matters to it. Before logs are made."""
    disks = broker.disks
    if disks is None or not disks.adaptive:
        return
    broker.logs.storage.appended = disks.wrote

    def change() -> None:
        set_pace(disks, slow=not disks.any_queued)
        broker.time.callLater(broker.world.rng.uniform(0, 0.2), change)

    change()


def tell_of_writes(broker: Any) -> None:
    """Report every staged write of a leader to the broker's world."""
    staged = broker.replicas._staged
    if staged is None:
        return
    appended = staged._appended

    def note(partition: Any, log: Any) -> None:
        appended(partition, log)
        if partition.leading and partition.log.epochs.latest == partition.leader_epoch:
            broker.world.accepted(broker, partition)

    staged._appended = note
