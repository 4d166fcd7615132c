"""Calls that may wait for a disk: in the broker's threads, or in the threads of the disk concerned.

With `log.write.queues` each data directory has threads of its own, so that a disk that hangs holds up no other. What
concerns all directories is then done for each of them separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pylogd.clock import timed

if TYPE_CHECKING:
    from pylogd.isolation.disks import Disks

InThread = Callable[..., "Deferred[Any]"]


class DiskCalls:
    """Makes calls in threads.

    parts: what to call a function for that concerns all data directories: each of their paths, or None for all at once.
    """

    def __init__(self, in_thread: InThread, disks: Disks | None = None) -> None:
        """in_thread: runs a function in one of the broker's threads. disks: None if disks have no threads."""
        self._in_thread = in_thread
        self._disks = disks
        self.parts: Sequence[str | None] = (None,) if disks is None else [disk.path for disk in disks]

    @property
    def separate(self) -> bool:
        """Whether each disk has its own threads."""
        return self._disks is not None

    def directory_of(self, path: str) -> str | None:
        """Return the data directory of a log, for `at`; None if disks do not have their own threads."""
        return None if self._disks is None else self._disks.at(path).path

    def at(self, path: str | None, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Call a function in a thread of the disk that has `path`, or in one of the broker's threads."""
        if self._disks is None or path is None:
            return self._in_thread(function, *args)
        return self._disks.call(path, timed(function), *args)

    def stuck(self, path: str) -> int:
        """Return how many threads are stuck in calls to a data directory that was given up."""
        return 0 if self._disks is None else self._disks.stuck.get(path, 0)

    def reopened(self, path: str) -> None:
        """Give a data directory that had failed new threads."""
        if self._disks is not None:
            self._disks.reopened(path)
