"""Reads of several disks for one fetch."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import LogEvent, globalLogPublisher

from pylogd.broker.api.fetch_cold import read_cold


class Calls:
    """Threads of disks that never return."""

    def directory_of(self, path: str) -> str:
        return path

    def at(self, path: str, *_: Any) -> Deferred[Any]:
        return Deferred()


def test_reads_of_several_disks_that_are_cancelled_leave_no_unhandled_error() -> None:
    """As when the broker stops while it waits for them."""
    logged: list[LogEvent] = []
    failures: list[Any] = []
    observer: Any = logged.append
    globalLogPublisher.addObserver(observer)
    try:
        cold: Any = [SimpleNamespace(directory="one"), SimpleNamespace(directory="other")]
        result = read_cold(Calls(), cold).addErrback(failures.append)  # type: ignore[arg-type]
        result.cancel()
        del result
        gc.collect()
    finally:
        globalLogPublisher.removeObserver(observer)
    [failure] = failures
    assert failure.value.subFailure.check(CancelledError)
    assert [event for event in logged if "log_failure" in event] == []
