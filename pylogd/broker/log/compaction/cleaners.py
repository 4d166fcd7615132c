"""The cleaners of a broker: one for all logs, or one for each data directory, so that no disk waits for another.

Each cleaner has its own threads and locks, and chooses its next log itself: a disk that hangs or is slow holds up only
the compaction of its own logs. All cleaners share the limit of bytes per second. The memory for offset maps is divided
evenly among them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pylogd.broker.log.compaction.cleaner import Cleaner, CleanerConfig
from pylogd.broker.log.compaction.rate_limit import RateLimit
from pylogd.broker.log.manager import LogManager


class Cleaners:
    """The cleaners of a broker; see the module. Call `start` and `stop` once each.

    parts: the absolute paths of the data directories that have a cleaner each; or None for one cleaner of all logs.
    config: the settings, which `configure` changes. Each cleaner has `config.threads` threads.
    now_ms: the wall clock.
    seconds: a monotonic clock.
    """

    def __init__(
        self,
        manager: LogManager,
        config: CleanerConfig,
        parts: Sequence[str | None],
        now_ms: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stopping = threading.Event()
        self._throttle = throttle = RateLimit(config.max_bytes_per_second, seconds, self._stopping.wait)
        own = _share(config, len(parts))
        self._cleaners = {
            path: Cleaner(manager, own, now_ms=now_ms, seconds=seconds, path=path, throttle=throttle) for path in parts
        }

    def configure(self, config: CleanerConfig) -> None:
        """Use other settings: the limit of bytes per second at once, the others for each cleaner's next log."""
        self._throttle.rate = config.max_bytes_per_second
        own = _share(config, len(self._cleaners))
        for cleaner in self._cleaners.values():
            cleaner.configure(own)

    @property
    def all(self) -> list[Cleaner]:
        """The cleaners, in the order of the data directories."""
        return list(self._cleaners.values())

    @property
    def completed(self) -> int:
        """How many compactions were done."""
        return sum(cleaner.completed for cleaner in self._cleaners.values())

    @property
    def working(self) -> int:
        """How many threads are compacting a log, or choosing one."""
        return sum(cleaner.working for cleaner in self._cleaners.values())

    @property
    def rewritten(self) -> tuple[int, int]:
        """How many bytes compactions have read and written."""
        cleaners = self._cleaners.values()
        return sum(one.read_bytes for one in cleaners), sum(one.written_bytes for one in cleaners)

    @property
    def most_dirty(self) -> float:
        """The largest share (0 to 1) of a log's bytes that waits for compaction, as of the last look at all logs."""
        return max((cleaner.most_dirty for cleaner in self._cleaners.values()), default=0.0)

    @property
    def given_up(self) -> int:
        """How many damaged logs are not compacted until the next start."""
        return sum(cleaner.given_up for cleaner in self._cleaners.values())

    def working_at(self, path: str) -> int:
        """Return how many threads of the data directory at `path` are compacting or choosing a log. Never waits."""
        cleaner = self._cleaners.get(path)
        return 0 if cleaner is None else cleaner.working

    def start(self) -> None:
        """Start the threads of all cleaners."""
        for cleaner in self._cleaners.values():
            cleaner.start()

    def stop(self) -> None:
        """Stop the threads and wait until they have ended, but not for a disk that hangs. Call it in a thread."""
        self._stopping.set()
        for cleaner in self._cleaners.values():
            cleaner.ask_to_stop()
        for cleaner in self._cleaners.values():
            cleaner.stop()


def _share(config: CleanerConfig, cleaners: int) -> CleanerConfig:
    """Return the settings of one of several cleaners."""
    return config._replace(dedupe_buffer_bytes=config.dedupe_buffer_bytes // max(cleaners, 1))
