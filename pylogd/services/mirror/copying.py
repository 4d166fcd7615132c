"""Copy partitions of several sources to one target, as long as a worker runs.

Strategy: a `CopyRun` copies to an open target. After any failure of the target, copying starts again from the target's
committed state: a new target is opened, which fences the old one, and a new run starts every partition at its
checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum

from pylogd.base.errors import PylogdError
from pylogd.base.machine import MachineTable
from pylogd.client.core.backoff import Backoff
from pylogd.client.zookeeper.waiting import Sleeper
from pylogd.services.mirror.copy_run import Assigned, CopierOptions, CopyRun
from pylogd.services.mirror.errors import NotAMember
from pylogd.services.mirror.feeds import RouteFigures, figures_of
from pylogd.services.mirror.membership import SESSION_ENDED
from pylogd.services.mirror.partition_copy import PartitionRoute

_log = logging.getLogger(__name__)


class CopierState(Enum):
    """The states of a copier."""

    OPENING = "It opens the target, which fences an earlier one."
    COPYING = "It reads, appends and commits."
    PAUSED = "The target failed; it waits before it opens the target again."
    STOPPING = "It commits what was appended, and starts nothing."
    ENDED = "It has released all partitions."


class CopierEvent(Enum):
    """The events of a copier."""

    OPENED = "The target is open, and this worker is still a member."
    INTERRUPTED = "The target failed."
    RESUMED = "The pause is over."
    STOPPED = "The worker stops it."
    ENDED = "The last run has ended, or other workers may have taken over."


_OPENING, _COPYING, _PAUSED, _STOPPING, _ENDED = CopierState
COPIER = MachineTable(
    "Copier",
    "Copies the partitions of a mirror's worker to one target, again and again after failures.",
    _OPENING,
    {
        _OPENING: {
            CopierEvent.OPENED: _COPYING, CopierEvent.INTERRUPTED: _PAUSED, CopierEvent.STOPPED: _STOPPING,
        },
        _COPYING: {CopierEvent.INTERRUPTED: _PAUSED, CopierEvent.STOPPED: _STOPPING},
        _PAUSED: {CopierEvent.RESUMED: _OPENING, CopierEvent.STOPPED: _STOPPING},
        _STOPPING: {
            CopierEvent.OPENED: _STOPPING, CopierEvent.INTERRUPTED: _STOPPING, CopierEvent.RESUMED: _STOPPING,
            CopierEvent.STOPPED: _STOPPING,
        },
        _ENDED: {CopierEvent.STOPPED: _ENDED},
    },
    everywhere={CopierEvent.ENDED: _ENDED},
)  # fmt: skip


class Copier:
    """Copies partitions to one target.

    commits: how often appended batches were committed.
    interruptions: how often copying has started again at the last checkpoints.
    """

    def __init__(self, options: CopierOptions) -> None:
        self._options = options
        self._assigned = Assigned()
        self._run: CopyRun | None = None
        self._machine = COPIER.machine()
        self._sleeper = Sleeper(options.reactor)
        self._backoff = Backoff(0.2, 5.0)
        self.commits = self.interruptions = 0

    # Calls of the worker

    def assign(self, wanted: Iterable[PartitionRoute]) -> None:
        """Copy these partitions and no others."""
        self._assigned.wanted = set(wanted)
        self._assigned.aside.keep(self._assigned.wanted)
        self._note_change()

    @property
    def held(self) -> set[PartitionRoute]:
        """The partitions that are wanted, being started, or not committed yet."""
        wanted, run = self._assigned.wanted, self._run
        return set(wanted) if run is None else wanted | run.copies.keys() | run.starting

    @property
    def failed(self) -> dict[PartitionRoute, str]:
        """The partitions that are set aside, each with the reason."""
        return self._assigned.aside.failed

    @property
    def has_ended(self) -> bool:
        """Whether `run` has returned."""
        return self._machine.state is _ENDED

    def stop(self) -> None:
        """Commit the appended batches, and end: see `has_ended`."""
        self._machine.handle(CopierEvent.STOPPED)
        self._assigned.wanted = set()
        self._note_change()

    def begin_again(self, routes: set[str]) -> None:
        """Stop copying by these routes after the next commit, then start them again with their new settings."""
        self._assigned.ending_routes |= routes
        self._note_change()

    def figures(self) -> dict[str, RouteFigures]:
        """Return the figures of each route for operators."""
        if self._run is not None:
            return self._run.figures()
        return figures_of({}, {}, self._assigned.wanted, self.failed, 0.0)

    def _note_change(self) -> None:
        if self._run is None:
            self._sleeper.wake()
        else:
            self._run.note_change()

    # The loop

    async def run(self) -> None:
        """Copy until `stop`. Raises NotAMember or StoreError once other workers may have taken over."""
        try:
            while not self._is_stopped():
                await self._run_once()
        finally:
            self._machine.handle(CopierEvent.ENDED)
            self._options.on_released()

    async def _run_once(self) -> None:
        """Open the target and copy there, until `stop` or a failure."""
        target = self._options.make_target()
        run = self._run = CopyRun(
            self._options, self._assigned, target, self._sleeper, self._is_stopped, self._committed
        )
        try:
            await target.open()
            await self._options.still_member()
            self._machine.handle(CopierEvent.OPENED)
            await run.copy()
        except PylogdError as error:
            if isinstance(error, (NotAMember, *SESSION_ENDED)):
                raise
            self._machine.handle(CopierEvent.INTERRUPTED)
            self.interruptions += 1
            _log.warning("copying was interrupted, and resumes at the last checkpoints: %s", error)
        finally:
            self._run = None
            run.close()
            self._options.on_released()
            await target.close()
        if not self._is_stopped():
            await self._sleeper.sleep(self._backoff.next())
            self._machine.handle(CopierEvent.RESUMED)

    def _is_stopped(self) -> bool:
        return self._machine.state in (_STOPPING, _ENDED)

    def _committed(self) -> None:
        self.commits += 1
        self._backoff.reset()
