"""Flushes partitions: when their logs are written to disk by fsync.

Strategy: an append compares its offset with `Partition.flush_at`; everything else happens here. A flush runs in a
thread, one at a time for a partition. Batches that are appended during a flush are flushed by the next one, so that
under load one fsync serves many appends (group commit).

Rules:
- `flush.messages` and `flush.ms` count from the last flush.
- With `flush.visible` every append is followed by a flush, and the high watermark is the end of what was flushed.
- Segments that were rolled are flushed at once.
- If only rolled segments of a partition have to be flushed, it gets its flusher at its first roll. Most partitions of a
  large broker never roll, and so cost nothing here.
- A flush that fails is reported to `on_failure`, which returns whether to give up. It does after a failed fsync, since
  then nobody knows what is on the disk. If the disk was full, the flush is tried again.

Must not know: requests, which thread pool runs flushes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.machine import MachineTable
from pylogd.broker.log.config import NO_LIMIT
from pylogd.broker.log.errors import LogClosed, StorageError
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.broker.replica.partition import Partition

if TYPE_CHECKING:
    from pylogd.broker.log.config import LogConfig
    from pylogd.broker.log.log import Log

log = Logger()

NEVER = NO_LIMIT
_RETRY_SECONDS = 1.0  # the pause after a flush that failed because the disk was full

InThread = Callable[..., "Deferred[Any]"]


class FlusherState(Enum):
    """The state of a flusher: what it waits for."""

    IDLE = "No flush is due before another append."
    SCHEDULED = "A flush is due at a certain time: after `flush.ms`, or after a flush that failed."
    FLUSHING = "A thread flushes the log, or seals its segments."
    STOPPED = "Nothing is flushed any more."


class FlusherEvent(Enum):
    """An event of a flusher."""

    SCHEDULE = "Records were appended that may wait for `flush.ms`."
    CANCEL = "The settings have changed."
    FLUSH = "A flush is due now."
    DONE = "The thread has finished."
    FAILED = "The disk was full; the flush is tried again."
    GIVE_UP = "The log was closed, or a flush failed, so that it is unknown what is on the disk."
    CLOSE = "The partition is removed, or the broker stops and flushes all logs itself."


_S, _E = FlusherState, FlusherEvent
_WAITING = (_S.IDLE, _S.SCHEDULED)

FLUSHER = MachineTable(
    "Partition flusher",
    "Flushes one partition's log, one flush at a time.",
    _S.IDLE,
    {
        _S.IDLE: {_E.SCHEDULE: _S.SCHEDULED, _E.FLUSH: _S.FLUSHING, _E.CANCEL: _S.IDLE},
        _S.SCHEDULED: {_E.FLUSH: _S.FLUSHING, _E.CANCEL: _S.IDLE},
        _S.FLUSHING: {
            _E.DONE: _S.IDLE,
            _E.FAILED: _S.SCHEDULED,
            _E.GIVE_UP: _S.STOPPED,
            _E.CANCEL: _S.FLUSHING,
        },
        _S.STOPPED: {_E.DONE: _S.STOPPED, _E.FAILED: _S.STOPPED, _E.GIVE_UP: _S.STOPPED, _E.CANCEL: _S.STOPPED},
    },
    everywhere={_E.CLOSE: _S.STOPPED},
)


class PartitionFlusher:
    """Flushes one partition. Reactor thread only.

    on_visible: called when the high watermark has moved.
    on_failure: called when a flush has failed; returns whether to give up.
    """

    __slots__ = (
        "_clock", "_config", "_in_thread", "_log", "_machine", "_on_failure", "_on_visible", "_partition", "_rolled",
        "_timer",
    )  # fmt: skip

    def __init__(
        self,
        partition: Partition,
        config: LogConfig,
        clock: IReactorTime,
        in_thread: InThread,
        on_visible: Callable[[Partition], object],
        on_failure: Callable[[Partition, Failure], bool],
    ) -> None:
        self._partition = partition
        self._clock = clock
        self._in_thread = in_thread
        self._on_visible = on_visible
        self._on_failure = on_failure
        self._machine = FLUSHER.machine()
        self._rolled = False  # whether segments have to be sealed, which the next thread does in any state
        self._timer: IDelayedCall | None = None
        self._config = config
        self._log = partition.log
        self._log.on_roll = self.note_roll
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        if not self._partition.online:
            return
        self._config = config
        strict, self._partition.flush_visible = self._partition.flush_visible, config.flush_visible
        if strict and not config.flush_visible:
            self._show()
        self._machine.handle(FlusherEvent.CANCEL)
        self._stop_timer()
        self.appended()

    def close(self) -> None:
        """Flush no more, because the partition is removed, or the broker stops and flushes all logs."""
        self._machine.handle(FlusherEvent.CLOSE)
        self._stop_timer()
        self._partition.flush_at = NEVER
        self._log.on_roll = _ignore  # otherwise the log, its partition and this object would keep each other alive

    def appended(self) -> None:
        """Flush or schedule a flush, after an append at `flush_at` or later, or after another change."""
        config, stored = self._config, self._partition.log
        if self._machine.state in _WAITING:
            unflushed = stored.log_end_offset - stored.recovery_point
            if unflushed >= config.flush_messages or (config.flush_visible and unflushed):
                self._flush()
            elif self._rolled:
                self._start(stored.seal)
            elif not unflushed:
                pass
            elif config.flush_ms < NO_LIMIT and self._machine.state is FlusherState.IDLE:
                self._schedule(FlusherEvent.SCHEDULE, config.flush_ms / 1000)
        self._arm()

    def _arm(self) -> None:
        """Set the offset at and after which an append must call `appended`."""
        config, partition = self._config, self._partition
        state = self._machine.state
        if state not in _WAITING:
            partition.flush_at = NEVER  # the end of the flush finds out what is due
        elif config.flush_visible or (config.flush_ms < NO_LIMIT and state is FlusherState.IDLE):
            partition.flush_at = 0
        else:
            partition.flush_at = min(partition.log.recovery_point + config.flush_messages - 1, NEVER)

    def _time_is_up(self) -> None:
        self._timer = None
        if self._machine.state is FlusherState.SCHEDULED:
            self._flush()
        self._arm()

    def note_roll(self, _: object = None) -> None:
        """Note that an append rolled a segment. At its end the append calls `appended`."""
        self._rolled = True
        if self._machine.state in _WAITING:
            self._partition.flush_at = 0

    def _flush(self) -> None:
        self._stop_timer()
        self._start(self._partition.log.flush)

    def _schedule(self, event: FlusherEvent, seconds: float) -> None:
        self._machine.handle(event)
        self._timer = self._clock.callLater(seconds, self._time_is_up)

    def _start(self, work: Callable[[], None]) -> None:
        self._machine.handle(FlusherEvent.FLUSH)
        self._rolled = False
        self._in_thread(work).addCallbacks(self._done, self._failed)

    def _done(self, _: object) -> None:
        partition = self._partition
        state = self._machine.handle(FlusherEvent.DONE)
        if state is FlusherState.STOPPED or not partition.online or partition.log.closed:
            return
        if self._timer is not None:  # only segments were sealed, so the time of the next flush stays
            self._machine.handle(FlusherEvent.SCHEDULE)
        if partition.flush_visible:
            self._show()
        self.appended()

    def _show(self) -> None:
        if self._partition.advance():
            self._on_visible(self._partition)

    def _failed(self, failure: Failure) -> None:
        """Try again later, or give up."""
        self._stop_timer()
        if self._on_failure(self._partition, failure):
            self._machine.handle(FlusherEvent.GIVE_UP)
        elif self._machine.state is FlusherState.FLUSHING:
            self._schedule(FlusherEvent.FAILED, _RETRY_SECONDS)
            self._partition.flush_at = NEVER

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None


def _ignore(_: object) -> None:
    """Ignore a roll."""


def _flushes(config: LogConfig) -> bool:
    """Return whether the active segment has to be flushed, and not only rolled segments."""
    return config.flush_visible or config.flush_messages < NO_LIMIT or config.flush_ms < NO_LIMIT


class Flushers:
    """The flushers of all partitions that have a log.

    by_key: the existing flushers, by the partition's key, for `PartitionFlusher.appended`. Each partition with a
        `Partition.flush_at` that an offset can reach has one.
    """

    def __init__(
        self,
        clock: IReactorTime,
        disk_calls: DiskCalls,
        threads: int,
        on_visible: Callable[[Partition], object],
        report: Callable[[StorageError], bool],
        partitions: Mapping[tuple[str, int], Partition],
    ) -> None:
        """Use at most half of `threads` for flushes, since reads need the others.

        threads: how many threads there are; for each disk, if disks have their own threads.
        on_visible: called when a high watermark has moved.
        report: called with errors of storage. It returns whether the log directory is offline, so that nothing is
            flushed again.
        partitions: the hosted partitions, by key.
        """
        self.by_key: dict[tuple[str, int], PartitionFlusher] = {}
        self._clock = clock
        self._disk_calls = disk_calls
        self._at_once = max(threads // 2, 1)
        self._slots: dict[str | None, DeferredSemaphore] = {}  # by data directory, if disks have their own threads
        self._on_visible = on_visible
        self._report = report
        self._partitions = partitions
        self._closed = False
        self._on_first_roll = self._first_roll  # one object for all logs

    def resize(self, threads: int) -> None:
        """Use at most half of `threads` for flushes that begin after this call."""
        self._at_once = max(threads // 2, 1)
        self._slots = {}  # flushes that wait keep the old slots

    def add(self, partition: Partition, config: LogConfig) -> None:
        """Flush a partition, which has a log, by the settings in `config`."""
        if _flushes(config):
            self._make(partition, config)
        else:
            partition.log.on_roll = self._on_first_roll

    def _make(self, partition: Partition, config: LogConfig) -> PartitionFlusher:
        in_slot = partial(self._in_slot, partition.log.directory)
        flusher = self.by_key[partition.key] = PartitionFlusher(
            partition, config, self._clock, in_slot, self._on_visible, self._failed
        )
        return flusher

    def _first_roll(self, rolled: Log) -> None:
        partition = self._partitions.get((rolled.topic, rolled.partition))
        if partition is not None and not self._closed:
            self._make(partition, rolled.config).note_roll()

    def configure(self, partition: Partition, config: LogConfig) -> None:
        """Use other settings for a partition that was added."""
        flusher = self.by_key.get(partition.key)
        if flusher is not None:
            flusher.configure(config)
        elif _flushes(config):
            self._make(partition, config)

    def remove(self, partition: Partition) -> None:
        """Stop flushing a partition, before its log is taken from it. Ignored if the partition was not added."""
        flusher = self.by_key.pop(partition.key, None)
        if flusher is not None:
            flusher.close()
        elif partition.online:
            partition.log.on_roll = None

    def close(self) -> None:
        """Flush nothing more."""
        self._closed = True
        for flusher in self.by_key.values():
            flusher.close()

    def _in_slot(self, directory: str, function: Callable[..., Any]) -> Deferred[Any]:
        key = self._disk_calls.directory_of(directory)
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = DeferredSemaphore(self._at_once)
        return slots.run(self._disk_calls.at, key, function)

    def _failed(self, partition: Partition, failure: Failure) -> bool:
        error = failure.value
        if isinstance(error, LogClosed):
            return True
        if isinstance(error, StorageError):
            return self._report(error)
        log.failure("Could not flush {topic}-{index}", failure, topic=partition.topic, index=partition.index)
        return True
