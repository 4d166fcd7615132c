"""Decide whether a disk is slow. Threads write the appends to a slow disk; otherwise the reactor writes them itself.

Strategy: once a second each disk is judged by what was observed of it (`Signs`): how long its writes took, how near the
machine is to the number of dirty pages at which the kernel makes writers wait, and the kernel's counters of the device.
`trouble` and `is_calm` are pure functions with different bounds. A disk for which neither holds stays as it is. A write
on the reactor's thread that takes `LONG_WRITE` makes its disk slow at once.

Rules:
- A slow disk is quick again when it has been calm for `LEAST_CALM` seconds without interruption. This time doubles each
  time the disk is slow again soon after, since each return to the reactor may end with a write that stops the broker
  for a moment.
- A write that has not returned counts with its time so far, so a disk that hangs is never calm.
- A disk whose device is unknown is judged by its writes and the dirty pages alone.

This can't foresee a disk that stops from one moment to the next; `log.write.queues=always` is for that.

Source: balance_dirty_pages in mm/page-writeback.c of Linux, which lets writers continue freely until dirty pages are
half way between the background limit and the limit.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from twisted.logger import Logger

from pylogd.base.machine import MachineTable
from pylogd.broker.isolation.disk_meter import DirtyPages, DiskUsage, Pressure

log = Logger()

#: Seconds. Shorter writes are normal: the page cache takes them in microseconds, and a thread gets the interpreter back
#: after some milliseconds.
SLOW_WRITE: Final = 0.02
#: Seconds of slow writes, in one write or in several within a second, that make a disk slow.
LONG_WRITE: Final = 0.05
#: The least and the most seconds for which a slow disk has to be calm before the reactor writes to it again.
LEAST_CALM: Final = 10.0
MOST_CALM: Final = 320.0
#: If a disk is slow again within this many seconds, it was trusted too soon.
_SOON: Final = 300.0
#: Dirty pages, as a share of the number at which the kernel makes writers wait.
_MANY_DIRTY: Final = 0.9
_FEW_DIRTY: Final = 0.6
#: Utilisation, seconds that a write takes at the device, and share of the time in which tasks wait for I/O.
_BUSY, _SLOW_DEVICE, _PRESSED = 0.95, 0.1, 0.5
_IDLE, _QUICK_DEVICE = 0.8, 0.05


class Pace(Enum):
    """The pace of a disk."""

    QUICK = "Writes return at once: appends are written on the reactor's thread."
    SLOW = "Writes may wait: appends are written by threads of the disk."
    CALMING = (
        "No write has waited in the last seconds. Threads still write, until the disk has been calm for long enough."
    )


class PaceEvent(Enum):
    """The result of a check of a disk."""

    TROUBLED = "There is a sign that writes to the disk wait, or will soon."
    UNDECIDED = "There is no sign of trouble, but the disk is not calm either."
    CALM = "There is no sign of trouble, with a margin."
    PROVEN = "It has been calm for long enough."


PACE: Final = MachineTable(
    "Pace of a disk",
    "With `log.write.queues=slow`: where appends to the logs of a data directory are written.",
    Pace.QUICK,
    {
        Pace.QUICK: {
            PaceEvent.TROUBLED: Pace.SLOW,
            PaceEvent.UNDECIDED: Pace.QUICK,
            PaceEvent.CALM: Pace.QUICK,
        },
        Pace.SLOW: {
            PaceEvent.TROUBLED: Pace.SLOW,
            PaceEvent.UNDECIDED: Pace.SLOW,
            PaceEvent.CALM: Pace.CALMING,
        },
        Pace.CALMING: {
            PaceEvent.TROUBLED: Pace.SLOW,
            PaceEvent.UNDECIDED: Pace.SLOW,
            PaceEvent.CALM: Pace.CALMING,
            PaceEvent.PROVEN: Pace.QUICK,
        },
    },
)


class Signs(NamedTuple):
    """Observations of a disk since the last check. None means unknown.

    waited: the seconds of all writes that took `SLOW_WRITE` or longer, including those that have not returned.
    usage: the use of the device.
    pressure: the pressure of the machine.
    dirty: the dirty pages of the machine.
    """

    waited: float
    usage: DiskUsage | None
    pressure: Pressure | None
    dirty: DirtyPages | None


def trouble(signs: Signs) -> str | None:
    """Return why writes to a disk may wait; None if there is no sign of this."""
    waited, usage, pressure, dirty = signs
    if waited >= LONG_WRITE:
        return f"writes to it took {waited * 1000:.0f} ms"
    if dirty is not None and dirty.share >= _MANY_DIRTY:
        return f"{dirty.dirty} pages of this machine wait to be written, and at {dirty.bound} the kernel stops writers"
    if usage is None:
        return None
    if usage.stalled:
        return f"{usage.in_flight} requests wait for it, and it has completed none for a second"
    latency = usage.write_latency or 0.0
    if usage.utilisation >= _BUSY and latency >= _SLOW_DEVICE and pressure is not None and pressure.some >= _PRESSED:
        return (
            f"it is {usage.utilisation:.0%} busy, takes {latency * 1000:.0f} ms for a write, and tasks wait for I/O in "
            f"{pressure.some:.0%} of the time"
        )
    return None


def is_calm(signs: Signs) -> bool:
    """Return whether there is no sign at all against writing to a disk on the reactor's thread."""
    waited, usage, _, dirty = signs
    if waited or (dirty is not None and dirty.share >= _FEW_DIRTY):
        return False
    if usage is None:
        return True
    return not usage.stalled and (usage.utilisation < _IDLE or (usage.write_latency or 0.0) < _QUICK_DEVICE)


class DiskPace:
    """Whether the disk of one data directory is slow.

    slow: whether threads write its appends.
    switches: how often `slow` has changed.
    """

    def __init__(self, path: str, now: float) -> None:
        """Arguments:

        path: the path of the data directory.
        now: the time in seconds of a monotonic clock.
        """
        self.slow = False
        self.switches = 0
        self._path = path
        self._machine = PACE.machine()
        self._waited = 0.0
        self._since = now  # when it became quick, slow or calm
        self._needed = LEAST_CALM

    @property
    def pace(self) -> Pace:
        """The state of the disk."""
        return self._machine.state

    def wrote(self, took: float, now: float) -> None:
        """Record the duration of a write in seconds.

        A long write on the reactor's thread makes the disk slow at once.
        """
        if took < SLOW_WRITE:
            return
        self._waited += took
        if not self.slow and self._waited >= LONG_WRITE:
            self.suspect(f"a write to it took {took * 1000:.0f} ms", now)

    def suspect(self, reason: str, now: float) -> None:
        """Treat the disk as slow from now on."""
        self._follow(PaceEvent.TROUBLED, reason, now)

    def observe(
        self, now: float, under_way: float, usage: DiskUsage | None, pressure: Pressure | None, dirty: DirtyPages | None
    ) -> None:
        """Judge the disk, once a second.

        under_way: the age of its oldest write that has not returned, in seconds.
        """
        waited, self._waited = self._waited, 0.0
        signs = Signs(waited + (under_way if under_way >= SLOW_WRITE else 0.0), usage, pressure, dirty)
        reason = trouble(signs)
        if reason is not None:
            self._follow(PaceEvent.TROUBLED, reason, now)
        elif not is_calm(signs):
            self._follow(PaceEvent.UNDECIDED, "", now)
        elif self.pace is Pace.CALMING and now - self._since >= self._needed:
            self._follow(PaceEvent.PROVEN, "", now)
        else:
            self._follow(PaceEvent.CALM, "", now)

    def _follow(self, event: PaceEvent, reason: str, now: float) -> None:
        before, lasted = self.pace, now - self._since
        after = self._machine.handle(event)
        if after is before:
            return
        self._since = now
        if before is Pace.QUICK:
            if self.switches:
                self._needed = min(self._needed * 2, MOST_CALM) if lasted < _SOON else LEAST_CALM
            self._switch(slow=True)
            log.warn(
                "The disk below {path} is slow: {reason}. Appends to it are written by threads, behind queues, until "
                "it has been calm for {seconds:.0f} s", path=self._path, reason=reason, seconds=self._needed,
            )  # fmt: skip
        elif after is Pace.QUICK:
            self._switch(slow=False)
            log.info("The disk below {path} is quick again: appends to it are written at once", path=self._path)

    def _switch(self, *, slow: bool) -> None:
        self.slow = slow
        self.switches += 1
