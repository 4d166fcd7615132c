"""The logs of a broker: open logs, and logs that can't be used, each with the reason.

Every change of the set of open logs holds `lock`; looking a log up needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.errors import StorageError
from pylogd.broker.log.log import Log


@dataclass(slots=True)
class OfflineLog:
    """A log that can't be used.

    error: the reason.
    directories: the data directories that have the log: several if its partition was found more than once.
    unopened_path: its directory, if it was not opened because there are too many partitions.
    needs_recovery: False if its files are unchanged since the last clean stop.
    """

    error: StorageError
    directories: list[str]
    unopened_path: str | None = None
    needs_recovery: bool = True


class LogRegistry:
    """The logs of a broker; see the module."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.offline: dict[TopicPartition, OfflineLog] = {}
        self.lock = threading.Lock()
        self._released = threading.Condition(self.lock)
        self._being_removed: set[TopicPartition] = set()

    @contextmanager
    def removing(self, key: TopicPartition) -> Iterator[None]:
        """Remove a log while the block runs. During this time no log with its name can be created or removed."""
        with self.lock:
            self.wait_until_removed(key)
            self._being_removed.add(key)
        try:
            yield
        finally:
            with self.lock:
                self._being_removed.remove(key)
                self._released.notify_all()

    def wait_until_removed(self, key: TopicPartition) -> None:
        """Wait while a log is being removed. The caller holds `lock`."""
        while key in self._being_removed:
            self._released.wait()

    def open_logs(self) -> list[Log]:
        """Return the open logs at this moment."""
        return list(self.logs.values())

    def open_items(self) -> list[tuple[TopicPartition, Log]]:
        """Return the open logs at this moment, with their keys. Any thread may call it.

        Listing the items of the dictionary directly would allocate a tuple for each. That may start a garbage
        collection, and its callbacks let another thread change the dictionary during the listing.
        """
        return list(self.logs.copy().items())

    def unopened(self) -> set[TopicPartition]:
        """Return the logs that were not opened because the broker has too many partitions."""
        return {key for key, log in self.offline.items() if log.unopened_path is not None}

    def clear(self) -> None:
        """Forget the open logs."""
        self.logs = {}
