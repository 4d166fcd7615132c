"""Calls that may wait for a disk. They run in the broker's threads, or in threads of the disk concerned.

With `log.write.queues` each data directory has its own threads, so that a disk that hangs does not hold up the others.
Work that concerns all directories is then done for each of them separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pylogd.base.clock import timed

if TYPE_CHECKING:
    from pylogd.broker.isolation.disks import Disks

InThread = Callable[..., "Deferred[Any]"]


class DiskCalls:
    """Makes calls in threads.

    parts: arguments for a function that handles all data directories. It is called for each path, or once with None if
        one call handles all directories.
    """

    def __init__(self, in_thread: InThread, disks: Disks | None = None) -> None:
        """in_thread: runs a function in one of the broker's threads.

        disks: None if disks do not have their own threads.
        """
        self._in_thread = in_thread
        self._disks = disks
        self.parts: Sequence[str | None] = (None,) if disks is None else [disk.path for disk in disks]

    @property
    def separate(self) -> bool:
        """Whether each disk has its own threads."""
        return self._disks is not None

    def directory_of(self, path: str) -> str | None:
        """Return the data directory of a log, as an argument of `at`; None if disks do not have their own threads."""
        return None if self._disks is None else self._disks.at(path).path

    def at(self, path: str | None, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Call a function in a thread of the disk that contains `path`, or in one of the broker's threads."""
        if self._disks is None or path is None:
            return self._in_thread(function, *args)
        return self._disks.call(path, timed(function), *args)

    def stuck(self, path: str) -> int:
        """Return how many threads are stuck in calls to a data directory that was given up."""
        return 0 if self._disks is None else self._disks.stuck.get(path, 0)

    def reopened(self, path: str) -> None:
        """Give new threads to a data directory that had failed."""
        if self._disks is not None:
            self._disks.reopened(path)
