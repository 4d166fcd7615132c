"""The state that a Python worker of Spark keeps between tasks: consumers with their connections.

Strategy: Spark reuses its Python workers (`spark.python.worker.reuse`), so a module of this process outlives a task. A
task that has read its range gives its consumer back, and a later task with the same brokers and settings continues with
its connections and its metadata, as Spark's own Kafka source does on the JVM. A consumer that fails is never kept.

Rules: at most `_MOST` consumers are kept, and none for longer than `_IDLE_SECONDS`; the longest idle one is closed
first. A thread closes them; it runs only while there are consumers. Any thread may call. Must not know: tasks, ranges.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.client import Consumer

_log = logging.getLogger(__name__)

_MOST: Final = 4
_IDLE_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 2.0


@dataclass(slots=True, eq=False)
class Lent:
    """A consumer that one task uses.

    was_kept: whether an earlier task has used it too, so that its connections may be closed.
    """

    consumer: Consumer
    bootstrap: str
    settings: Mapping[str, Any] = field(repr=False)
    was_kept: bool = False
    idle_since: float = 0.0

    def suits(self, bootstrap: str, settings: Mapping[str, Any]) -> bool:
        """Whether the consumer has these brokers and settings, including credentials."""
        return self.bootstrap == bootstrap and self.settings == settings

    def close(self) -> None:
        """Close the consumer."""
        self.consumer.close(_CLOSE_SECONDS)


class KeptConsumers:
    """The idle consumers of a process, the one that was idle longest first."""

    def __init__(self, most: int = _MOST, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self._idle: list[Lent] = []
        self._changed = threading.Condition()
        self._closer: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._idle)

    def lend(self, bootstrap: str, settings: Mapping[str, Any], *, fresh: bool = False) -> Lent:
        """Return a consumer with these brokers and settings.

        fresh: whether to make a new consumer.

        The caller must give the consumer back or close it.
        """
        if not fresh:
            with self._changed:
                for lent in reversed(self._idle):
                    if lent.suits(bootstrap, settings):
                        self._idle.remove(lent)
                        lent.was_kept = True
                        return lent
        return Lent(Consumer(bootstrap, auto_offset_reset="none", prefetch=False, **settings), bootstrap, settings)

    def give_back(self, lent: Lent) -> None:
        """Keep a consumer for later tasks. It must not have a request in flight."""
        lent.consumer.assign(())
        with self._changed:
            lent.idle_since = time.monotonic()
            self._idle.append(lent)
            surplus, self._idle = self._idle[: -self._most], self._idle[-self._most :]
            if self._closer is None:
                self._closer = threading.Thread(target=self._close_idle, name="idle consumers", daemon=True)
                self._closer.start()
        for each in surplus:
            each.close()

    def clear(self) -> None:
        """Close all idle consumers."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._changed.notify()
        for each in idle:
            each.close()

    def _close_idle(self) -> None:
        while True:
            with self._changed:
                limit = time.monotonic() - self._idle_seconds
                old = [lent for lent in self._idle if lent.idle_since <= limit]
                self._idle = [lent for lent in self._idle if lent.idle_since > limit]
                if not self._idle and not old:
                    self._closer = None
                    return
                if not old:
                    self._changed.wait(self._idle[0].idle_since - limit)
            for lent in old:
                try:
                    lent.close()
                except Exception:
                    _log.exception("can't close an idle consumer of %s", lent.bootstrap)


#: the consumers of this process
CONSUMERS: Final = KeptConsumers()


@functools.cache
def spare_collector() -> None:
    """Exclude all existing objects from full garbage collections. Call it in Spark's Python workers only.

    PySpark's worker collects all garbage after each task. With pyarrow, pandas and this package loaded, that took 35 ms
    of processor time, several times as long as reading a small range. Modules are never garbage. Only the first call
    does anything; it is not detected by `gc.get_freeze_count`, which walks through all frozen objects.
    """
    gc.collect()
    gc.freeze()
