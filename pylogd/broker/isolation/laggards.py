"""Let lagging consumers wait while the disk that they read from is busy (the talk's throttling of consumers).

Strategy: each disk has a `DiskThrottle`. It has a token bucket, which a `ReadRate` fills at a rate that depends on how
busy the disk is, and a queue of the waiting connections, in the order of their arrival. Before a read a connection
calls `take`; afterwards it calls `charge` with the bytes that it has read. The bucket may go below zero by one read.
The talk holds back finished answers, when the disk has already done the work; here the wait is before the read.

Rules:
- A connection that has read goes to the end of the queue. If its client was answered without records and has not asked
  again yet, the connection can't be woken. It then keeps its place for `KEPT_SECONDS`, and others go first meanwhile.
- While no disk is throttled, `active` is false, and the dispatcher does not use this module.
- A disk whose use is unknown is never throttled.

Must not know: requests, logs. `pylogd.broker.api.fetch_lagging` decides who lags and what is missing in the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.broker.isolation.disk_meter import Disk, DiskMeter, DiskSampler, DiskUsage
from pylogd.broker.isolation.read_rate import Band, ReadRate
from pylogd.broker.isolation.throttled_clients import Client, ThrottledClient, ThrottledClients
from pylogd.config import Settings

log = Logger()

#: How long a connection keeps its place in the queue without waiting.
KEPT_SECONDS: Final = 5.0
#: One read takes as much as the rate allows in this time, so that reads of several connections alternate.
TURN_SECONDS: Final = 0.25
#: ... but at least this much, so that the disk does not seek for small reads.
LEAST_READ: Final = 1 << 17
#: This many bytes after a miss count as missing too: several times what kernels read ahead.
READ_AHEAD: Final = 1 << 25
#: ... for at most this time: later they have been evicted, or the client has left.
AHEAD_SECONDS: Final = 30.0
#: If a disk was used for this share of a second, it counts as busy for `BUSY_SECONDS`, even if it is not throttled.
BUSY_SHARE: Final = 0.25
BUSY_SECONDS: Final = 10
#: The number of streams whose read-ahead is remembered. The one that read last longest ago is forgotten.
_MOST_STREAMS: Final = 10_000
_ROUNDING: Final = 0.001  # seconds
_ENABLE: Final = "lagging.consumer.throttle.enable"


class _Waiting:
    """An entry of the queue.

    wake: called when it is the entry's turn; None while no connection waits.
    counted: until when the wait is counted.
    """

    __slots__ = ("client", "counted", "partition", "seen", "wake")

    def __init__(self, client: Client, partition: str, now: float) -> None:
        self.client = client
        self.partition = partition
        self.counted = self.seen = now
        self.wake: Callable[[], object] | None = None


class DiskThrottle:
    """The reads of lagging consumers from one disk.

    directory: the first data directory on the disk.
    busy: whether the disk is throttled, or was used much in the last seconds.
    """

    def __init__(self, disk: Disk, directory: str, clock: IReactorTime, clients: ThrottledClients) -> None:
        self.disk = disk
        self.directory = directory
        self.rate = ReadRate()
        self._clock = clock
        self._clients = clients
        self._tokens = 0.0  # bytes
        self._at = clock.seconds()
        self._queue: dict[object, _Waiting] = {}
        self._timer: IDelayedCall | None = None
        # How many bytes a stream may still find in memory because they were read ahead for it, and when it read last.
        self._ahead: dict[Hashable, tuple[int, float]] = {}
        self._granted = 0  # bytes since the last sample
        self._waited = False  # whether a connection had to wait since then
        self._quiet = BUSY_SECONDS  # seconds since it was used much

    def __len__(self) -> int:
        """How many connections are in the queue."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """See the class."""
        return self.rate.limit is not None or self._quiet < BUSY_SECONDS

    @property
    def most(self) -> int:
        """The most bytes that one read should take."""
        return max(int((self.rate.limit or 0.0) * TURN_SECONDS), LEAST_READ)

    def take(self, connection: object, client: Client, partition: str) -> bool:
        """Return whether a connection may read now. If not, it has a place in the queue, and calls `wait` to be told.

        partition: the partition to read, as `topic-index`.
        """
        now = self._fill()
        place = self._queue.get(connection)
        if place is not None:
            place.partition, place.seen = partition, now
        if self._tokens > 0 and self._is_next(connection):
            if place is not None:
                del self._queue[connection]
                self._count(place, now)
            return True
        self._waited = True
        if place is None:
            self._queue[connection] = _Waiting(client, partition, now)
        return False

    def charge(self, stream: Hashable, count: int, missing: int) -> None:
        """Count a read of `size` bytes, some of which were not in memory.

        stream: the reader and its partition.
        """
        self._tokens -= count
        self._granted += count
        before, _ = self._ahead.pop(stream, (0, 0.0))
        left = READ_AHEAD if missing else before - count
        if left > 0:
            self._ahead[stream] = left, self._clock.seconds()
            if len(self._ahead) > _MOST_STREAMS:
                del self._ahead[next(iter(self._ahead))]

    def reads_on(self, stream: Hashable) -> bool:
        """Return whether the next bytes of a stream were probably read ahead for it, since it had a miss recently."""
        return stream in self._ahead

    def wait(self, connection: object, wake: Callable[[], object]) -> None:
        """Call `wake` when it is the turn of a connection that `take` has refused.

        A later call replaces an earlier one. If the connection no longer has a place, `wake` is called at once: the
        disk is not throttled now, or another request of the connection has had its turn.
        """
        place = self._queue.get(connection)
        if place is None:
            wake()
            return
        place.wake = wake
        self._wake_later()

    def observe(self, usage: DiskUsage, band: Band, least: float) -> None:
        """Adjust the rate once a second."""
        now = self._fill()
        self._quiet = 0 if usage.utilisation >= BUSY_SHARE else self._quiet + 1
        for connection, place in list(self._queue.items()):
            self._count(place, now)
            if place.wake is None and now - place.seen >= KEPT_SECONDS:
                del self._queue[connection]
        self._ahead = {stream: last for stream, last in self._ahead.items() if now - last[1] < AHEAD_SECONDS}
        self.rate.observe(usage.utilisation, usage.read_rate, self._granted, self._waited, band, least)
        self._granted, self._waited = 0, bool(self._queue)

    def end(self) -> None:
        """Let all connections read, since the disk is no longer throttled."""
        self.rate = ReadRate()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue, self._queue = self._queue, {}
        for place in queue.values():
            self._count(place, self._clock.seconds())
            if place.wake is not None:
                place.wake()

    def _is_next(self, connection: object) -> bool:
        for other, place in self._queue.items():
            if other == connection:
                return True
            if place.wake is not None:
                return False
        return True

    def _count(self, place: _Waiting, now: float) -> None:
        """Count the time since the place was last counted, up to when its client was last there."""
        until = now if place.wake is not None else place.seen
        if until > place.counted:
            self._clients.add(place.client, until - place.counted, now, place.partition, self.directory, self.disk.name)
        place.counted = max(until, place.counted)

    def _fill(self) -> float:
        now = self._clock.seconds()
        self._tokens = min(self._tokens + (now - self._at) * (self.rate.limit or 0.0), self.most)
        self._at = now
        return now

    def _wake_later(self) -> None:
        if self._timer is None and self.rate.limit and any(place.wake is not None for place in self._queue.values()):
            self._timer = self._clock.callLater(max(-self._tokens, 0) / self.rate.limit + _ROUNDING, self._wake_next)

    def _wake_next(self) -> None:
        self._timer = None
        self._fill()
        for place in list(self._queue.values()):
            if self._tokens <= 0:
                break
            wake, place.wake = place.wake, None
            if wake is not None:
                wake()
        self._wake_later()


class LaggardThrottle:
    """The throttles of all disks of a broker.

    active: whether any disk is throttled now.
    clients: the clients that had to wait.
    lag_bytes: how far behind a consumer lags.
    on_sample: called once a second with the data directories whose disks are busy, and without any at the end.
    """

    _forget_settings: Callable[[], None]

    def __init__(self, settings: Settings, disks: DiskSampler, clock: IReactorTime) -> None:
        self.active = False
        self.clients = ThrottledClients()
        self.on_sample: Callable[[list[str]], object] = lambda _: None
        self._settings = settings
        self._disks = disks
        self._clock = clock
        self._throttles: dict[Disk, DiskThrottle] = {}
        self._by_directory: Mapping[str, DiskThrottle] = {}
        self._listeners: list[Callable[[bool], object]] = []
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def lag_bytes(self) -> int:
        """The number of bytes between a consumer's offset and the log's end from which on it counts as lagging."""
        return self._settings.integer("lagging.consumer.lag.bytes")

    def subscribe(self, listener: Callable[[bool], object]) -> None:
        """Call `listener` with `active` whenever that changes."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begin, and follow the settings."""
        self._forget_settings = self._settings.subscribe(self._settings_changed)
        self._settings_changed(frozenset((_ENABLE,)))

    def stop(self) -> None:
        """Let all connections read, and stop following the settings."""
        self._forget_settings()
        self._end()

    def of(self, directory: str) -> DiskThrottle | None:
        """Return the throttle of the disk below a data directory; None if it is not busy."""
        return self._by_directory.get(directory)

    def waits(self) -> list[ThrottledClient]:
        """Return the clients that had to wait in the last minute, the one that waited longest first."""
        return self.clients.list(self._clock.seconds())

    def utilisation(self, directory: str) -> float | None:
        """Return how busy the disk below a data directory was in the last second, 0 to 1; None if unknown."""
        usage = self._disks.meter.usage(directory)
        return None if usage is None else usage.utilisation

    def _settings_changed(self, names: frozenset[str]) -> None:
        if _ENABLE not in names:
            return
        if self._settings.flag(_ENABLE) and self._unsubscribe is None:
            self._unsubscribe = self._disks.subscribe(self._sampled)
        elif not self._settings.flag(_ENABLE):
            self._end()

    def _end(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        throttles, self._throttles = self._throttles, {}
        self._apply({})
        self.on_sample([])
        for throttle in throttles.values():
            throttle.end()

    def _sampled(self, meter: DiskMeter) -> None:
        settings = self._settings
        band = Band(
            settings["lagging.consumer.disk.utilization.low"], settings["lagging.consumer.disk.utilization.high"]
        )
        least = settings.integer("lagging.consumer.min.bytes.per.second")
        free: list[DiskThrottle] = []
        seen: set[Disk] = set()
        for directory, disk in meter.disks.items():
            usage = meter.usage(directory)
            if disk is None or usage is None or disk in seen:
                continue
            seen.add(disk)
            throttle = self._throttles.get(disk)
            if throttle is None:
                throttle = self._throttles[disk] = DiskThrottle(disk, directory, self._clock, self.clients)
            if self._observe(throttle, usage, band, least):
                free.append(throttle)
        free += [self._throttles.pop(disk) for disk in self._throttles.keys() - seen]
        limited = {disk: one for disk, one in self._throttles.items() if one.rate.limit is not None}
        self._apply({path: limited[disk] for path, disk in meter.disks.items() if disk in limited})
        for throttle in free:
            throttle.end()
        busy = {disk for disk, throttle in self._throttles.items() if throttle.busy}
        self.on_sample([path for path, disk in meter.disks.items() if disk in busy])

    def _observe(self, throttle: DiskThrottle, usage: DiskUsage, band: Band, least: float) -> bool:
        """Tell a throttle how its disk was used. Return whether its limit was lifted."""
        before = throttle.rate.limit
        throttle.observe(usage, band, least)
        after = throttle.rate.limit
        if before is None and after is not None:
            log.info(
                "The disk {disk} below {directory} is {used:.0%} busy: consumers that lag by {lag} bytes or more "
                "wait, and read at most {rate:.1f} MB/s from it together",
                disk=throttle.disk.name, directory=throttle.directory, used=usage.utilisation, lag=self.lag_bytes,
                rate=after / 1e6,
            )  # fmt: skip
        elif before is not None and after is None:
            log.info("The disk {disk} below {directory} is no longer busy: lagging consumers read from it without a "
                     "limit",
                     disk=throttle.disk.name, directory=throttle.directory)  # fmt: skip
        return before is not None and after is None

    def _apply(self, by_directory: Mapping[str, DiskThrottle]) -> None:
        self._by_directory = by_directory
        active = bool(by_directory)
        if active != self.active:
            self.active = active
            for listener in self._listeners:
                listener(active)
