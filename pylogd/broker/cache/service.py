"""The block cache of a broker, made from its settings, with logged counters, and threads that end at a stop."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pylogd.broker.cache import page_dropper
from pylogd.broker.cache.blocks import BLOCK_BYTES
from pylogd.broker.cache.counters import CacheCounters
from pylogd.broker.cache.page_dropper import PageDropper
from pylogd.broker.cache.ranges import BlockCache
from pylogd.broker.log.errors import StorageFailure
from pylogd.config import ConfigError, Settings

log = Logger()

_REPORT_SECONDS = 600
_STOP_SECONDS = 2


class BlockCacheService:
    """See the module.

    cache: the cache for logs.
    counters: the counters for metrics.
    """

    def __init__(self, size: int, clock: IReactorTime, on_failure: Callable[[StorageFailure], object]) -> None:
        """Map `size` bytes.

        on_failure: see `PageDropper`.

        Raises ConfigError if there is not enough memory.
        """
        self.counters = CacheCounters()
        self._clock = clock
        self._dropper = PageDropper(self.counters, on_failure) if page_dropper.AVAILABLE else None
        try:
            self.cache = BlockCache(
                size // BLOCK_BYTES, later=lambda function: clock.callLater(0, function), dropper=self._dropper,
                counters=self.counters,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ConfigError(f"log.block.cache.bytes: {size} bytes of memory can't be had: {error}") from error
        self._reported = ""
        self._report: IDelayedCall | None = None

    def start(self) -> None:
        """Log at intervals how many bytes are read from blocks and from files."""
        if self._dropper is None:
            log.warn(
                "This system can't drop written pages from its page cache (sync_file_range, posix_fadvise): the "
                "contents of the block cache (log.block.cache.bytes) are in memory twice"
            )
        self._report = self._clock.callLater(_REPORT_SECONDS, self._report_again)

    def _report_again(self) -> None:
        self._log_counters()
        self._report = self._clock.callLater(_REPORT_SECONDS, self._report_again)

    def _log_counters(self) -> None:
        text = self.counters.describe()
        if text != self._reported:
            self._reported = text
            log.info("Block cache since the start: {text}", text=text)

    def stop_reports(self) -> None:
        """Log the counters a last time."""
        if self._report is not None:
            self._report.cancel()
            self._report = None
            self._log_counters()

    def stop_threads(self) -> None:
        """End the threads that drop pages. It blocks up to a few seconds: run it in a thread."""
        if self._dropper is not None:
            self._dropper.stop(_STOP_SECONDS)


def make_block_cache(
    settings: Settings, clock: IReactorTime, on_failure: Callable[[StorageFailure], object]
) -> BlockCacheService | None:
    """Return the cache that the settings describe; None if there is none. Raises ConfigError."""
    size = settings.integer("log.block.cache.bytes")
    return BlockCacheService(size, clock, on_failure) if size >= BLOCK_BYTES else None
