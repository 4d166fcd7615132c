"""Let the numbers of threads, and the settings of the cleaner, follow their settings at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pylogd.broker.log.compaction.cleaners import Cleaners
from pylogd.broker.log.manager import LogManager
from pylogd.broker.replica.configs import cleaner_config
from pylogd.config import Settings

_THREADS: Final = "background.threads"
_RECOVERY: Final = "num.recovery.threads.per.data.dir"
_CLEANER: Final = "log.cleaner."


class Resizable(Protocol):
    """Threads whose number can change."""

    def resize(self, most: int, /) -> None:
        """Use up to this many threads from now on."""


def follow_settings(
    settings: Settings, cleaners: Cleaners, logs: LogManager, threads: Sequence[Resizable | None]
) -> Callable[[], None]:
    """Apply the settings as they are now, and each change of them. Return a function that ends this.

    threads: what has up to `background.threads` threads; None is ignored. The parts were made before settings that were
    changed at run time had been read.
    """

    def apply(names: frozenset[str]) -> None:
        if _THREADS in names:
            for one in threads:
                if one is not None:
                    one.resize(settings.integer(_THREADS))
        if _RECOVERY in names:
            logs.use_threads(settings.integer(_RECOVERY))
        if any(name.startswith(_CLEANER) for name in names):
            cleaners.configure(cleaner_config(settings))

    apply(frozenset({_THREADS, _RECOVERY, _CLEANER}))
    return settings.subscribe(apply)
