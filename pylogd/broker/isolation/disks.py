"""The disks of a broker: each is a data directory with its own writers and threads, so that none waits for another.

Strategy: an append goes to one of a disk's write queues, by the hash of its topic. Other calls that may wait for the
disk (cold reads, flushes, new and deleted logs, checkpoints) run in the disk's other threads. If a call has not
returned within `log.dir.failure.timeout.ms`, the disk hangs. Its owner is told, and takes the directory offline; then
`failed` gives up all calls that wait for it. With `log.write.queues=slow` appends go to the queues only while the disk
is slow, which `pace` decides.

Must not know: partitions, requests, what a failed directory means to the cluster.

Source: Zhao Jianbo, "Kafka at Kuaishou" (QCon Beijing 2019): queues by topic, which refuse at once when they are full.
The name `log.dir.failure.timeout.ms` is Kafka's (KIP-858); there it limits how long the controller may be unreachable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple
from zlib import crc32

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from pylogd.broker.isolation.disk_meter import DiskMeter
from pylogd.broker.isolation.pace import SLOW_WRITE, DiskPace
from pylogd.broker.isolation.workers import FromThread, Workers
from pylogd.broker.isolation.write_queue import WriteQueue
from pylogd.config import Settings

#: Values of `log.write.queues`.
OFF: Final = "off"
ALWAYS: Final = "always"
#: The longest and the shortest time between two checks for calls that hang, in seconds.
_LOOKS = (0.05, 1.0)


class DiskOptions(NamedTuple):
    """The threads and queues of each disk: write queues with their limits, and threads for other calls.

    timeout: a call that has not returned after this many seconds hangs.
    always: whether all appends go to the queues; otherwise they do only while the disk is slow.
    """

    queues: int
    max_requests: int
    max_bytes: int
    threads: int
    timeout: float
    always: bool = True

    @classmethod
    def of(cls, settings: Settings) -> DiskOptions:
        """Return the options in the broker's settings."""
        integer = settings.integer
        return cls(
            integer("log.write.queues.per.dir"), integer("log.write.queue.max.requests"),
            integer("log.write.queue.max.bytes"), integer("background.threads"),
            integer("log.dir.failure.timeout.ms") / 1000, settings.text("log.write.queues") == ALWAYS,
        )  # fmt: skip


class Disk:
    """One data directory.

    queues: the write queues, by number.
    control: the queue for internal topics, such as the offsets of groups: the state of coordinators must not wait
        behind the data of clients.
    threads: the threads for all calls except writes of appends.
    pace: whether the disk is slow; None if all appends go to the queues.
    """

    def __init__(
        self, path: str, options: DiskOptions, workers: Callable[[str, int], Workers], seconds: Callable[[], float]
    ) -> None:
        """Arguments:

        workers: makes up to a number of threads with a name.
        seconds: a monotonic clock.
        """
        name = os.path.basename(path)
        self.pace = None if options.always else DiskPace(path, seconds())
        self._silent_since: float | None = None  # the time since which samples show no completed request of the device
        self.path = path

        def queue(number: int | str) -> WriteQueue:
            writer = workers(f"pylogd-write-{name}-{number}", 1)
            return WriteQueue(f"{path}, queue {number}", options.max_requests, options.max_bytes, writer, seconds)

        self.queues = [queue(number) for number in range(options.queues)]
        self.control = queue("control")
        self.threads = workers(f"pylogd-disk-{name}", options.threads)

    def queue_of(self, topic: str) -> WriteQueue:
        """Return the queue for appends to a topic of clients."""
        return self.queues[crc32(topic.encode()) % len(self.queues)]

    @property
    def queued(self) -> bool:
        """Whether appends go to the queues now."""
        return self.pace is None or self.pace.slow

    def write_age(self, now: float) -> float:
        """Return for how many seconds the oldest write under way has lasted; 0 without one."""
        return now - min((at for writer in self._writers() if (at := writer.oldest()) is not None), default=now)

    def call_age(self, now: float) -> float:
        """Return for how many seconds the oldest call of any kind under way has lasted; 0 without one."""
        began = self.began()
        return 0.0 if began is None else now - began

    def observe(self, meter: DiskMeter, now: float) -> None:
        """Decide from the meter's last sample whether the disk is slow."""
        usage = meter.usage(self.path)
        if usage is None or usage.completed:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        if self.pace is not None:
            self.pace.observe(now, self.write_age(now), usage, meter.pressure, meter.dirty)

    def is_silent(self, now: float, seconds: float) -> bool:
        """Return whether the device has completed nothing for this many seconds; False while its use is unknown."""
        return self._silent_since is not None and now - self._silent_since >= seconds

    @property
    def stuck(self) -> int:
        """The number of abandoned threads whose calls have not returned."""
        return sum(workers.stuck for workers in self._workers())

    def _workers(self) -> Iterable[Workers]:
        return (*self._writers(), self.threads)

    def _writers(self) -> Iterable[Workers]:
        return (*(queue.writer for queue in self.queues), self.control.writer)

    def began(self) -> float | None:
        """Return the time at which the oldest unfinished call was begun; None if all calls have returned."""
        return min((began for workers in self._workers() if (began := workers.oldest()) is not None), default=None)

    def give_up(self, error: Exception) -> None:
        """Fail all calls that wait for this disk, and all later ones."""
        for workers in self._workers():
            workers.give_up(error)

    def stop(self) -> None:
        """End the threads as soon as their calls have returned."""
        for workers in self._workers():
            workers.stop()


class Disks:
    """All data directories of a broker.

    on_hang: called once for each directory that hangs, with its path and the seconds for which a call has not returned.
    any_queued: whether appends to any disk go to its queues now.
    other_calls: returns how many threads other than the disks' own, such as those that compact logs, are in calls to
        the directory at a path.
    on_paces: called after each check of which disks are slow.
    """

    def __init__(
        self,
        directories: Iterable[str],
        options: DiskOptions,
        clock: IReactorTime,
        from_thread: FromThread,
        on_hang: Callable[[str, float], object],
        workers: Callable[..., Workers] = Workers,
    ) -> None:
        """workers: makes threads, with the arguments of `Workers`."""
        self._options = options
        self._clock = clock
        self._workers = partial(workers, from_thread=from_thread, seconds=clock.seconds)
        self._on_hang = on_hang
        self._disks = {path: self._new(path) for path in map(os.path.abspath, directories)}
        self.any_queued = options.always
        self.other_calls: Callable[[str], int] = _none
        self.on_paces: Callable[[], object] = lambda: None
        self._given_up: list[Disk] = []  # disks whose threads may still be stuck
        self._hanging: set[str] = set()
        self._look: IDelayedCall | None = None

    def _new(self, path: str) -> Disk:
        return Disk(path, self._options, self._workers, self._clock.seconds)

    def resize(self, threads: int, /) -> None:
        """Use up to this many threads for the calls of each disk that are not appends (`background.threads`)."""
        self._options = self._options._replace(threads=threads)
        for disk in self._disks.values():
            disk.threads.resize(threads)

    def __iter__(self) -> Iterator[Disk]:
        return iter(self._disks.values())

    def at(self, path: str) -> Disk:
        """Return the disk with `path`, which is a data directory or something in one. Raises KeyError."""
        found = self._disks.get(path)
        while found is None:
            parent = os.path.dirname(path)
            if parent == path:
                raise KeyError(f"{path} is in no data directory")
            found = self._disks.get(parent)
            path = parent
        return found

    def call(self, path: str, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """Call a function, which may wait for the disk below `path`, in a thread of this disk."""
        return self.at(path).threads.run(function, *arguments)

    @property
    def adaptive(self) -> bool:
        """Whether appends go to the queues only while their disk is slow."""
        return not self._options.always

    def wrote(self, path: str, took: float) -> None:
        """Record how many seconds an append below `path` took on the reactor's thread."""
        if took >= SLOW_WRITE:
            self._note_write(self.at(path), took)

    def write(self, disk: Disk, queue: WriteQueue, function: Callable[[], object]) -> Deferred[None]:
        """Make the write of an append in the thread of a queue of its disk. Fails with the write's errors."""
        if disk.pace is None:
            return queue.writer.run(function)
        return queue.writer.run(_timed, function, self._clock.seconds).addCallback(partial(self._note_write, disk))

    def _note_write(self, disk: Disk, took: float) -> None:
        if disk.pace is not None:
            disk.pace.wrote(took, self._clock.seconds())
            self._note_paces()

    def _note_paces(self) -> None:
        self.any_queued = any(disk.queued for disk in self._disks.values())
        self.on_paces()

    def observe(self, meter: DiskMeter) -> None:
        """Decide from the meter's last sample which disks are slow."""
        for disk in self._disks.values():
            disk.observe(meter, self._clock.seconds())
        self._note_paces()

    def stand_still(self, seconds: float) -> bool:
        """Return whether disks in use hang, so that this broker can't write, and nobody serves some of its topics.

        A disk hangs if a write of an append has not returned for this many seconds, and its device has completed
        nothing meanwhile. If calls of any kind to all other disks have not returned either, the devices are not
        considered: they may be unknown, and a disk may get no appends. The result is False if all appends go to the
        queues: then `log.dir.failure.timeout.ms` alone decides when to give a disk up.
        """
        if not self.adaptive:
            return False
        now = self._clock.seconds()
        used = [disk for disk in self._disks.values() if disk not in self._given_up]
        waiting = [disk for disk in used if disk.write_age(now) >= seconds]
        if not waiting:
            return False
        return all(disk.call_age(now) >= seconds for disk in used) or any(
            disk.is_silent(now, seconds) for disk in waiting
        )

    @property
    def stuck(self) -> dict[str, int]:
        """The number of abandoned threads whose calls have not returned, by data directory."""
        counts: dict[str, int] = {}
        for disk in self._given_up:
            stuck = self._stuck(disk)
            if stuck:
                counts[disk.path] = counts.get(disk.path, 0) + stuck
        return counts

    def _stuck(self, disk: Disk) -> int:
        """Return how many threads have not returned from calls to a disk that was given up."""
        reopened = self._disks[disk.path] is not disk
        return disk.stuck if reopened else disk.stuck + self.other_calls(disk.path)

    # -- disks that hang

    def start(self) -> None:
        """Begin to check for calls that hang."""
        self._look_later()

    def stop(self) -> None:
        """Stop checking, and end the threads as soon as their calls have returned."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for disk in self._disks.values():
            disk.stop()

    def _look_later(self) -> None:
        shortest, longest = _LOOKS
        self._look = self._clock.callLater(
            min(max(self._options.timeout / 4, shortest), longest), self._look_for_hanging
        )

    def _look_for_hanging(self) -> None:
        now = self._clock.seconds()
        for path, disk in self._disks.items():
            began = disk.began()
            if began is not None and now - began >= self._options.timeout and path not in self._hanging:
                self._hanging.add(path)
                self._on_hang(path, now - began)
        self._look_later()

    def failed(self, path: str, error: Exception) -> int:
        """Abandon the calls that wait for an offline directory. Return how many threads are stuck in them."""
        disk = self._disks[path]
        disk.give_up(error)
        if disk not in self._given_up:
            self._given_up.append(disk)
        return self._stuck(disk)

    def reopened(self, path: str) -> None:
        """Use a directory that had failed again."""
        if path in self._disks and self._disks[path] in self._given_up:
            disk = self._disks[path] = self._new(path)
            if disk.pace is not None:
                disk.pace.suspect("it had failed and was reopened", self._clock.seconds())
            self._note_paces()
            self._hanging.discard(path)


def make_disks(settings: Settings, reactor: Any, on_hang: Callable[[str, float], object]) -> Disks | None:
    """Return the disks of the data directories; None if `log.write.queues` is off.

    on_hang: see `Disks`.
    """
    if settings.text("log.write.queues") == OFF:
        return None
    return Disks(settings.words("log.dirs"), DiskOptions.of(settings), reactor, reactor.callFromThread, on_hang)


def _none(_: str) -> int:
    """Return 0, since no threads can be stuck."""
    return 0


def _timed(function: Callable[[], object], seconds: Callable[[], float]) -> float:
    """Call a function, in a thread. Return how many seconds it took."""
    began = seconds()
    function()
    return seconds() - began
