"""Close all logs of a broker, so that the next start opens them without scanning.

If many logs of a data directory have something to write, its volume is synced once after all of them have written. So a
stop takes about as long with 10,000 partitions as with ten.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pylogd.broker.log.bulk_loader import SYNCED_TOGETHER
from pylogd.broker.log.directories import LogDirectories
from pylogd.broker.log.durability import needs_closing_state, replace_epochs, volume_synced
from pylogd.broker.log.errors import StorageError, StorageFailure
from pylogd.broker.log.log import Log
from pylogd.broker.log.log_directory import LogDirectory

_log = logging.getLogger(__name__)


def close_logs(directories: LogDirectories, logs: Sequence[Log], threads: int = 1) -> set[str]:
    """Flush and close the logs. Return the paths of the data directories with a log that failed. Never raises.

    threads: how many logs are closed at the same time, of those that have something to write.
    """
    unsettled = Counter(os.path.dirname(log.directory) for log in logs if needs_closing_state(log))
    entries = [directories.at(path) for path, count in unsettled.items() if count >= SYNCED_TOGETHER]
    together = {entry.path: entry for entry in entries if entry.failure is None and entry.syncs_volume}
    unclean: set[str] = set()
    closed: list[Log] = []

    def close(log: Log) -> None:  # runs in several threads; adding to a set or a list is atomic
        path = os.path.dirname(log.directory)
        if log.closed:  # a failure closed it: its end may not be on the disk
            unclean.add(path)
            return
        try:
            log.close(sync=path not in together)
            closed.append(log)
        except (StorageError, OSError) as error:
            report_unclean(log, error)
            unclean.add(path)

    waiting = [log for log in logs if threads > 1 and needs_closing_state(log)]
    if len(waiting) > 1:
        with ThreadPoolExecutor(threads, "log-closing") as pool:
            list(pool.map(close, waiting))
        done = set(waiting)
        logs = [log for log in logs if log not in done]
    for log in logs:
        close(log)
    for path, entry in together.items():
        try:
            _sync_together(entry, [log for log in closed if entry.holds(log) and not log.abandoned])
        except StorageError as error:
            _log.error("Could not make %s durable; the next start recovers its logs: %s", path, error)
            unclean.add(path)
    return unclean


def _sync_together(entry: LogDirectory, logs: Sequence[Log]) -> None:
    """Make logs durable that were closed without a sync. Raises StorageFailure.

    A temporary file of leader epochs is renamed only when it is durable. If there is any, a second sync makes the
    renames durable.
    """
    entry.sync_volume()
    try:
        replaced = [replace_epochs(log) for log in logs]
    except OSError as error:
        raise StorageFailure(error.filename or entry.path, error) from error
    if any(replaced):
        entry.sync_volume()
    for log in logs:
        volume_synced(log)


def abandon_logs(logs: Sequence[Log]) -> None:
    """Close the files of the logs without flushing. Never raises."""
    for log in logs:
        try:
            log.abandon()
        except (StorageError, OSError) as error:
            report_unclean(log, error)


def report_unclean(log: Log, error: Exception) -> None:
    """Log a warning that the next start will recover a log."""
    _log.error("Could not close %s-%d cleanly; the next start recovers it: %s", log.topic, log.partition, error)
