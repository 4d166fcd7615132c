"""Settings of the interpreter and of the operating system that a broker's process needs."""

from __future__ import annotations

import gc
import resource
import sys
from typing import Final

#: Most objects of a request are freed by their reference counts, so the collector need not search for them so often.
_GC_THRESHOLDS: Final = (50_000, 20, 50)
#: How soon a thread that runs Python hands the interpreter to the reactor's. With Python's default of 5 ms, a request
#: beside a busy thread waited 13 ms; with this, 2 ms.
_SWITCH_SECONDS: Final = 0.0005


def pause_garbage_collector() -> None:
    """Stop the garbage collector until `tune_interpreter`: objects made while a process starts are kept for good."""
    gc.disable()


def tune_interpreter() -> None:
    """Set the garbage collector and the thread switch interval for a process that has started and now serves."""
    gc.freeze()  # objects of the start stay; searching them once for the few that could go takes 40 ms
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()
    sys.setswitchinterval(_SWITCH_SECONDS)


def raise_file_limit() -> int:
    """Raise the limit of open files to the most that the system allows, and return it: each log keeps a file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
