"""Settings of the interpreter and of the operating system that a broker's process needs."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Most objects of a request are freed by their reference counts, so the collector need not search for them so often.
#: The first threshold of `gc.set_threshold`, and the others. At most 5 * 10,000 new objects are searched at a time,
#: which takes some 20 ms.
NEW_OBJECTS: Final = 10_000
_OTHER_THRESHOLDS: Final = (5, 1_000)
#: After a full collection that took longer than so many seconds of processor time, what it left is not searched again.
_LONG_COLLECTION: Final = 0.01
#: Seconds after which everything is searched once more, for what has become garbage since.
_SEARCH_ALL_SECONDS: Final = 120.0
#: Of the collection that searches all objects.
_FULL: Final = 2
#: How soon a thread that runs Python hands the interpreter to the reactor's. With Python's default of 5 ms, a request
#: beside a busy thread waited 13 ms; with this, 2 ms.
_SWITCH_SECONDS: Final = 0.0005
#: Parameters of mallopt(3), by their numbers in <malloc.h>, and values in bytes.
_MALLOC_PARAMETERS: Final = (
    (-3, 1 << 20),  # M_MMAP_THRESHOLD: memory of this size and more is given back when it is freed
    (-1, 1 << 22),  # M_TRIM_THRESHOLD: so much may stay free at the end of the heap
)


def tune_allocator() -> bool:
    """Make malloc return freed blocks of a megabyte or more to the system at once. Return whether this is supported.

    By default glibc raises its threshold for that to the largest block freed so far, at most 32 MB. Blocks below it are
    cut from the heap, which then has holes: large requests that grew side by side left 77 MB of them, of 118.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do not have it
    return mallopt is not None and sum(mallopt(*parameter) for parameter in _MALLOC_PARAMETERS) == len(
        _MALLOC_PARAMETERS
    )


def pause_garbage_collector() -> None:
    """Stop the garbage collector until `tune_interpreter`: objects made while a process starts are kept for good."""
    gc.disable()


class LongCollections:
    """Limit how often the garbage collector searches a large heap: each search takes a turn of the reactor.

    A broker with 10,000 partitions, or as many ACLs, has a million objects that stay. To search them takes 0.4 s, and
    the collector does it each time their number has grown by a quarter. So what a long full collection leaves is
    frozen: later ones search only what is newer. Frozen objects are still freed by their reference counts; only cycles
    of them are not, until all objects are searched once more, at most every `_SEARCH_ALL_SECONDS`.

    To be put into `gc.callbacks`.
    """

    def __init__(
        self,
        collector: Any = gc,
        used: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """collector: as the module `gc`. used: the processor time of this thread, now: a clock; both in seconds."""
        self._collector = collector
        self._used = used
        self._now = now
        self._frozen_at: float | None = None
        self._began = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """Handle the begin and the end of a collection."""
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._began = self._used()
            if self._frozen_at is not None and self._now() - self._frozen_at >= _SEARCH_ALL_SECONDS:
                self._frozen_at = None
                self._collector.unfreeze()
        elif self._used() - self._began >= _LONG_COLLECTION:
            self._collector.freeze()
            if self._frozen_at is None:
                self._frozen_at = self._now()


def tune_interpreter(new_objects: int = NEW_OBJECTS) -> None:
    """Set the garbage collector and the thread switch interval for a process that has started and now serves.

    new_objects: the first threshold of `gc.set_threshold`. It should exceed the number of objects that live for a short
    time at once, since the collector searches those in vain.
    """
    gc.freeze()  # objects of the start stay; searching them once for the few that could go takes 40 ms
    gc.set_threshold(new_objects, *_OTHER_THRESHOLDS)
    gc.callbacks.append(LongCollections())
    gc.enable()
    sys.setswitchinterval(_SWITCH_SECONDS)


def raise_file_limit() -> int:
    """Raise the limit of open files to the most that the system allows, and return it: each log keeps a file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
