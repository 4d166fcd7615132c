"""Open many logs, in several threads: at start, and when a data directory is reopened. `loader` opens a single one.

A log that can't be opened does not stop the others: it is listed as offline, with the reason. Logs beyond the limit of
partitions are listed as offline too, and their files are not touched.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from pylogd.broker.log.checkpoints import TopicPartition
from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.directories import LogDirectories
from pylogd.broker.log.errors import CorruptLog, LoadCancelled, StorageError, StorageFailure, TooManyPartitions
from pylogd.broker.log.loader import FoundLog, load_log
from pylogd.broker.log.log_directory import LogDirectory
from pylogd.broker.log.registry import LogRegistry, OfflineLog
from pylogd.broker.log.storage import Storage

_log = logging.getLogger(__name__)

#: The prefix of the names of internal topics.
INTERNAL_PREFIX = "__"
#: If at least this many logs of a data directory are loaded, their volume is synced once, instead of the files of each
#: log.
SYNCED_TOGETHER = 16

#: Called every `_PROGRESS_SECONDS`, and at the end, with the number of open logs and the number of all logs. Reporting
#: each log to another thread would take as long as opening it.
Progress = Callable[[int, int], None]
_PROGRESS_SECONDS = 1.0
#: Each thread takes about `_SHARES` shares of the logs, with at most `_MOST_IN_SHARE` logs in a share. Handing a single
#: log to a thread takes as long as opening a small log, but some logs take thousands of times as long as others.
_SHARES = 64
_MOST_IN_SHARE = 32
#: Returns the settings of a topic.
ConfigOf = Callable[[str], LogConfig]


class BulkLoader:
    """Opens many logs; see the module.

    config: the settings of logs whose topic has no settings.
    now_ms: the wall clock.
    threads: how many logs are opened at the same time.
    """

    def __init__(
        self,
        registry: LogRegistry,
        directories: LogDirectories,
        storage: Storage,
        config: LogConfig,
        *,
        now_ms: Callable[[], int],
        threads: int,
    ) -> None:
        self._registry = registry
        self._directories = directories
        self._storage = storage
        self._config = config
        self._now_ms = now_ms
        self.threads = threads
        self._cancelled = False

    def cancel(self) -> None:
        """Make a `load` that runs in another thread end soon, with LoadCancelled."""
        self._cancelled = True

    def check_cancelled(self) -> None:
        """Raise LoadCancelled after a `cancel`."""
        if self._cancelled:
            raise LoadCancelled("the start was cancelled")

    def load(
        self, found: list[FoundLog], limit: int, progress: Progress | None = None, config_of: ConfigOf | None = None
    ) -> None:
        """Open the logs, and add them to the registry. Raises LoadCancelled.

        limit: how many logs may be open in total.
        config_of: returns the settings of a topic. Without it all logs have the default settings.
        """
        counts = Counter([(one.topic, one.partition) for one in found])
        several = {key for key, count in counts.items() if count > 1}
        unique = [one for one in found if (one.topic, one.partition) not in several] if several else found
        unique = self._within_limit(unique, limit)
        together = self._synced_together(unique)

        def load(share: Sequence[FoundLog]) -> int:
            for one in share:
                self._load_one(one, config_of, together)
            return len(share)

        # Logs whose state is known are opened without reading the disk: threads would only wait for each other.
        known = _shares([one for one in unique if one.stopped is not None], 1)
        others = _shares([one for one in unique if one.stopped is None], self.threads)
        with ThreadPoolExecutor(self.threads, "log-recovery") as pool:
            done, due = 0, self._storage.seconds() + _PROGRESS_SECONDS
            for count in chain(map(load, known), pool.map(load, others)):
                done += count
                if progress is not None and (done == len(unique) or self._storage.seconds() >= due):
                    due = self._storage.seconds() + _PROGRESS_SECONDS
                    progress(done, len(unique))
        for entry in together.values():
            self._sync(entry)
        for key in several:
            paths = [one.directory for one in found if (one.topic, one.partition) == key]
            self._set_offline(key, paths, CorruptLog(f"the partition has more than one directory: {', '.join(paths)}. "
                                                     "Keep one and restart the broker"))  # fmt: skip

    def _within_limit(self, found: list[FoundLog], limit: int) -> list[FoundLog]:
        """Return the logs that may be opened, internal topics first, and list the others as offline."""
        left = max(limit - len(self._registry.logs), 0)
        if len(found) <= left:
            return found
        found.sort(key=lambda one: not one.topic.startswith(INTERNAL_PREFIX))
        error = TooManyPartitions(limit)
        rest = found[left:]
        for one in rest:
            self._registry.offline[one.topic, one.partition] = OfflineLog(
                error, [os.path.dirname(one.directory)], unopened_path=one.directory, needs_recovery=not one.clean
            )
        _log.critical("%d of %d partitions are offline, starting with %s-%d: %s",
                      len(rest), len(found), rest[0].topic, rest[0].partition, error)  # fmt: skip
        return found[:left]

    def _synced_together(self, found: list[FoundLog]) -> dict[str, LogDirectory]:
        """Return the data directories, by path, whose recovered logs are made durable by one sync of the volume."""
        unclean = Counter(os.path.dirname(one.directory) for one in found if not one.clean)
        entries = [self._directories.at(path) for path, count in unclean.items() if count >= SYNCED_TOGETHER]
        return {entry.path: entry for entry in entries if entry.syncs_volume}

    def _sync(self, entry: LogDirectory) -> None:
        """Sync the volume of a directory whose logs were recovered. If the sync fails, the directory goes offline."""
        if entry.failure is not None:
            return
        try:
            entry.sync_volume()
        except StorageFailure as error:
            self._directories.storage_failed(error)

    def _load_one(self, found: FoundLog, config_of: ConfigOf | None, together: Mapping[str, LogDirectory]) -> None:
        """Open one log, or list it as offline.

        together: the data directories that are synced as a whole afterwards.
        """
        key = found.topic, found.partition
        sync = not together or os.path.dirname(found.directory) not in together
        config = self._config if config_of is None else config_of(found.topic)
        self.check_cancelled()
        try:
            log = load_log(found, config, storage=self._storage, now_ms=self._now_ms, check=self.check_cancelled,
                           sync=sync)  # fmt: skip
        except LoadCancelled:
            raise
        except StorageError as error:
            self._set_offline(key, [found.directory], error)
            self._registry.offline[key].needs_recovery = not found.is_link
            self._directories.storage_failed(error)
            return
        log.cleaned_offset = min(self._directories.cleaned_offsets.get(key, 0), log.log_end_offset)
        entry = self._directories.directory_of(log)
        with self._registry.lock:
            failure = entry.failure
            if failure is None:
                self._registry.logs[log.key] = log
                entry.open_logs += 1
        if failure is not None:
            log.abandon()
            self._set_offline(key, [found.directory], failure)

    def _set_offline(self, key: TopicPartition, paths: list[str], error: StorageError) -> None:
        _log.error("%s-%d is offline: %s", *key, error)
        self._registry.offline[key] = OfflineLog(error, [os.path.dirname(path) for path in paths])


def _shares(found: Sequence[FoundLog], threads: int) -> list[Sequence[FoundLog]]:
    """Divide logs into shares. Each thread takes one share after the other."""
    size = min(max(len(found) // (threads * _SHARES), 1), _MOST_IN_SHARE)
    return [found[at : at + size] for at in range(0, len(found), size)]
