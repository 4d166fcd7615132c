"""Measure how busy the disks below the data directories are, from the kernel's counters.

Strategy: the block device of each directory is looked up once (`find_disk`). Once a second its counters in
/sys/dev/block/MAJ:MIN/stat and those of /proc/pressure/io are read, and compared with the previous ones. The dirty
pages of the machine are read from /proc/vmstat. Pure functions parse the texts. `DiskMeter` remembers the last
counters, and `DiskSampler` is the timer around it.

Rules: the figures of a disk partition are those of its whole disk, since its partitions share it. If the kernel names
no block device (tmpfs, overlay, network file systems), the use is unknown: `usage` returns None, which is logged once.
Samples are taken on the reactor's thread. They read three files in the kernel's memory, which takes 0.1 ms and does not
wait for a disk; the broker's threads may all wait for a disk that hangs.

Gaps: utilisation is the share of time with at least one request in flight. A disk that serves many requests at once
(SSD, RAID) may be far from its limit at 100 %. Bytes that `blkio.throttle` or `io.max` hold back do not reach the
device and do not count for it, except below a loop device, whose request is in flight meanwhile. Pressure counts them.

Dirty pages are counted for the whole machine. Control groups and devices may have their own limits, which the kernel
shows only in debugfs. Writes that wait because of these limits are noticed by how long they take.

Source: Documentation/block/stat.rst and Documentation/accounting/psi.rst of Linux.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()

SAMPLE_SECONDS: Final = 1.0
SYS_BLOCK: Final = "/sys/dev/block"
IO_PRESSURE: Final = "/proc/pressure/io"
VMSTAT: Final = "/proc/vmstat"
MOUNTINFO: Final = "/proc/self/mountinfo"
_SECTOR_BYTES: Final = 512
_MS: Final = 1000.0
_SHORTEST_WINDOW: Final = 0.01  # seconds; the kernel counts in milliseconds


class BlockCounters(NamedTuple):
    """The kernel's counters of a block device since the start of the machine. Times are in milliseconds.

    in_flight: requests that the device has now and has not completed.
    busy_ms: the time with any request in flight.
    weighted_ms: the sum of the times of all requests.
    """

    reads: int
    read_sectors: int
    read_ms: int
    writes: int
    written_sectors: int
    write_ms: int
    in_flight: int
    busy_ms: int
    weighted_ms: int


class DiskUsage(NamedTuple):
    """The use of a disk between two samples.

    utilisation: the share of the time in which it had requests, 0 to 1.
    read_rate, write_rate: bytes per second.
    queue: the average number of requests in flight.
    in_flight: the requests in flight at the end.
    completed: requests per second.
    read_latency, write_latency: the average seconds from a request's arrival at the device's queue to its completion;
        None if no request completed.
    """

    utilisation: float
    read_rate: float
    write_rate: float
    queue: float
    in_flight: int
    completed: float
    read_latency: float | None
    write_latency: float | None

    @property
    def stalled(self) -> bool:
        """Whether requests were in flight and none completed: the disk hangs, or is slower than the sample interval."""
        return self.in_flight > 0 and not self.completed


class PressureCounters(NamedTuple):
    """The contents of /proc/pressure/io.

    The fields with avg10 are shares of the last ten seconds, 0 to 1; the others are microseconds since the start.
    """

    some_avg10: float
    full_avg10: float
    some_us: int
    full_us: int


class Pressure(NamedTuple):
    """Shares of the time, 0 to 1, in which tasks of this machine waited for I/O.

    some: the share in which at least one task waited, between two samples.
    full: the share in which all tasks that were not idle waited, between two samples.

    The other fields are the same shares for the last ten seconds.
    """

    some: float
    full: float
    some_avg10: float
    full_avg10: float


class DirtyPages(NamedTuple):
    """Pages of this machine that wait to be written, and how many there may be.

    background: from this number on the kernel writes them in the background.
    limit: the most that there may be.
    """

    dirty: int
    background: int
    limit: int

    @property
    def bound(self) -> int:
        """The number of dirty pages above which the kernel makes writers wait."""
        return (self.background + self.limit) // 2

    @property
    def share(self) -> float:
        """The dirty pages as a share of `bound`."""
        return self.dirty / max(self.bound, 1)


class Disk(NamedTuple):
    """A block device.

    name: its name in the kernel, such as `sda`.
    stat_path: the path of the file with its counters.
    """

    name: str
    stat_path: str


def parse_block_stat(text: str) -> BlockCounters:
    """Return the counters in a device's `stat` file. Raises ValueError for any other text."""
    fields = [int(word) for word in text.split()]
    if len(fields) < 11:
        raise ValueError(f"not the stat file of a block device: {text!r}")
    reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, in_flight, busy_ms, weighted_ms = fields[:11]
    return BlockCounters(
        reads, read_sectors, read_ms, writes, written_sectors, write_ms, in_flight, busy_ms, weighted_ms
    )


def parse_pressure(text: str) -> PressureCounters:
    """Return the figures in /proc/pressure/io. Raises ValueError for any other text."""
    lines: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        lines[kind] = dict(word.split("=", 1) for word in words)
    try:
        some, full = lines["some"], lines["full"]
        return PressureCounters(
            float(some["avg10"]) / 100, float(full["avg10"]) / 100, int(some["total"]), int(full["total"])
        )
    except KeyError as error:
        raise ValueError(f"not a pressure file: {text!r}") from error


def parse_dirty(text: str) -> DirtyPages:
    """Return the dirty pages in /proc/vmstat. Raises ValueError for any other text."""
    counts = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith("nr_dirty"))
    try:
        return DirtyPages(
            int(counts["nr_dirty"]), int(counts["nr_dirty_background_threshold"]), int(counts["nr_dirty_threshold"])
        )
    except KeyError as error:
        raise ValueError(f"no counts of dirty pages: {text[:100]!r}") from error


def usage_between(before: BlockCounters, after: BlockCounters, seconds: float) -> DiskUsage | None:
    """Return the use of a disk between two samples; None unless they are successive samples of one device."""
    reads, writes = after.reads - before.reads, after.writes - before.writes
    if seconds < _SHORTEST_WINDOW or reads < 0 or writes < 0 or after.busy_ms < before.busy_ms:
        return None
    return DiskUsage(
        utilisation=_share((after.busy_ms - before.busy_ms) / _MS, seconds),
        read_rate=(after.read_sectors - before.read_sectors) * _SECTOR_BYTES / seconds,
        write_rate=(after.written_sectors - before.written_sectors) * _SECTOR_BYTES / seconds,
        queue=max(after.weighted_ms - before.weighted_ms, 0) / _MS / seconds,
        in_flight=after.in_flight,
        completed=(reads + writes) / seconds,
        read_latency=(after.read_ms - before.read_ms) / _MS / reads if reads else None,
        write_latency=(after.write_ms - before.write_ms) / _MS / writes if writes else None,
    )


def pressure_between(before: PressureCounters, after: PressureCounters, seconds: float) -> Pressure | None:
    """Return the pressure between two samples; None unless they are successive."""
    if seconds < _SHORTEST_WINDOW or after.some_us < before.some_us or after.full_us < before.full_us:
        return None
    return Pressure(
        _share((after.some_us - before.some_us) / 1e6, seconds),
        _share((after.full_us - before.full_us) / 1e6, seconds),
        after.some_avg10,
        after.full_avg10,
    )


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0)


def device_number(device: int) -> str:
    """Return a `st_dev` or `st_rdev` in the kernel's notation, such as `254:0`."""
    return f"{os.major(device)}:{os.minor(device)}"


def mount_source(mountinfo: str, number: str) -> str | None:
    """Return the device file of a file system, such as btrfs, that does not have a block device's number.

    mountinfo: the text of /proc/self/mountinfo, which has the device file.
    number: the file system's number, from `device_number`.
    """
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number and len(source.split()) > 1 and source.split()[1].startswith("/dev/"):
            return source.split()[1]
    return None


def find_disk(path: str, sys_block: str = SYS_BLOCK, mountinfo: str = MOUNTINFO) -> Disk | None:
    """Return the disk below a directory; None if the kernel names none. May wait for the disk. Raises OSError."""
    number = device_number(os.stat(path).st_dev)
    found = disk_of(number, sys_block)
    if found is None:
        source = mount_source(read_text(mountinfo), number)
        if source is not None:
            found = disk_of(device_number(os.stat(source).st_rdev), sys_block)
    return found


def disk_of(number: str, sys_block: str = SYS_BLOCK) -> Disk | None:
    """Return the disk with a device number, or the disk of the partition with this number; None if there is none."""
    directory = os.path.realpath(os.path.join(sys_block, number))
    if os.path.exists(os.path.join(directory, "partition")):
        directory = os.path.dirname(directory)
    stat_path = os.path.join(directory, "stat")
    return Disk(os.path.basename(directory), stat_path) if os.path.exists(stat_path) else None


def find_disks(paths: Iterable[str]) -> dict[str, Disk | None]:
    """Return the disk of each directory, None if it is unknown. May wait for disks: run it in a thread."""
    disks: dict[str, Disk | None] = {}
    for path in paths:
        try:
            disks[path] = find_disk(path)
        except OSError as error:
            log.warn("Can't find the disk below {path}: {error}", path=path, error=error)
            disks[path] = None
    return disks


def read_text(path: str) -> str:
    """Return the text of a file of the kernel. Raises OSError."""
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


class DiskMeter:
    """The use of the disks below data directories, as of the last sample.

    disks: the disk of each directory, None if it is unknown.
    pressure, dirty: the pressure and the dirty pages of the whole machine, None if unknown.
    """

    def __init__(self, read: Callable[[str], str] = read_text) -> None:
        """read: returns the text of a file, or raises OSError."""
        self.disks: Mapping[str, Disk | None] = {}
        self.pressure: Pressure | None = None
        self.dirty: DirtyPages | None = None
        self._read = read
        self._usage: dict[Disk, DiskUsage] = {}
        self._counters: dict[Disk, BlockCounters] = {}
        self._pressure_counters: PressureCounters | None = None
        self._at: float | None = None

    def watch(self, disks: Mapping[str, Disk | None]) -> None:
        """Measure the disks of these directories, which `find_disks` has found."""
        self.disks = disks
        for path, disk in disks.items():
            if disk is None:
                log.info(
                    "The use of the disk below {path} is unknown: the kernel names no block device for its file "
                    "system. The broker never treats this disk as busy.", path=path,
                )  # fmt: skip

    def usage(self, path: str) -> DiskUsage | None:
        """Return the use of the disk below a data directory; None while it is unknown."""
        disk = self.disks.get(path)
        return None if disk is None else self._usage.get(disk)

    def sample(self, now: float) -> None:
        """Read the counters.

        now: the time in seconds of a monotonic clock.
        """
        seconds = 0.0 if self._at is None else now - self._at
        self._at = now
        self._usage = {}
        for disk in {disk for disk in self.disks.values() if disk is not None}:
            try:
                counters = parse_block_stat(self._read(disk.stat_path))
            except (OSError, ValueError):
                self._counters.pop(disk, None)  # the device was removed
                continue
            before = self._counters.get(disk)
            self._counters[disk] = counters
            usage = None if before is None else usage_between(before, counters, seconds)
            if usage is not None:
                self._usage[disk] = usage
        self._sample_pressure(seconds)
        try:
            self.dirty = parse_dirty(self._read(VMSTAT))
        except (OSError, ValueError):
            self.dirty = None  # another system than Linux

    def _sample_pressure(self, seconds: float) -> None:
        before, self.pressure = self._pressure_counters, None
        try:
            self._pressure_counters = parse_pressure(self._read(IO_PRESSURE))
        except (OSError, ValueError):
            self._pressure_counters = None  # a kernel without CONFIG_PSI, or with psi=0
        else:
            if before is not None:
                self.pressure = pressure_between(before, self._pressure_counters, seconds)


class DiskSampler:
    """Takes a sample once a second while it has listeners, and passes it to them."""

    def __init__(
        self,
        meter: DiskMeter,
        directories: Callable[[], list[str]],
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        """directories: returns the paths of the data directories, whose disks are looked up at the first use."""
        self.meter = meter
        self._directories = directories
        self._clock = clock
        self._in_thread = in_thread
        self._listeners: list[Callable[[DiskMeter], object]] = []
        self._call: IDelayedCall | None = None
        self._looking_up = False

    def subscribe(self, listener: Callable[[DiskMeter], object]) -> Callable[[], None]:
        """Call `listener` with the meter after each sample. Return a function that ends this."""
        self._listeners.append(listener)
        if self.meter.disks:
            self._begin()
        elif not self._looking_up:
            self._looking_up = True
            self._in_thread(find_disks, self._directories()).addCallbacks(self._found, self._not_found)

        def unsubscribe() -> None:
            self._listeners.remove(listener)
            if not self._listeners and self._call is not None:
                self._call.cancel()
                self._call = None

        return unsubscribe

    def _found(self, disks: dict[str, Disk | None]) -> None:
        self._looking_up = False
        self.meter.watch(disks)
        self._begin()

    def _not_found(self, failure: Failure) -> None:
        self._looking_up = False
        log.failure("Could not look up the disks below the data directories", failure)

    def _begin(self) -> None:
        if self._call is None and self._listeners:
            self._sample()

    def _sample(self) -> None:
        self._call = self._clock.callLater(SAMPLE_SECONDS, self._sample)
        self.meter.sample(self._clock.seconds())
        for listener in list(self._listeners):
            try:
                listener(self.meter)
            except Exception:
                log.failure("Unexpected error in a part of the broker that follows the use of the disks")
