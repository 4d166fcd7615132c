"""Reads of several topics' nodes, from a store that fails."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import implementer

from pylogd.broker.metadata.entries import read_nodes
from pylogd.store.errors import StoreClosed
from tests.fakes.metadata import result_of


@implementer(ILogObserver)
class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, event: Any) -> None:
        self.lines.append(str(formatEvent(event)))


class Store:
    """The part of a store that reads."""

    def __init__(self, closed: bool) -> None:
        self.closed = closed

    def get_many(self, paths: Sequence[str]) -> Deferred[Any]:
        return fail(StoreClosed("closed")) if self.closed else succeed([None if "gone" in at else at for at in paths])


@pytest.mark.parametrize("closed", [False, True])
def test_reads_that_nobody_awaits_are_not_logged(closed: bool) -> None:
    """When one of several reads fails, the others fail as well, but are not logged as errors of their own."""
    log = Log()
    globalLogPublisher.addObserver(log)
    try:
        store: Any = Store(closed)
        reading: Any = Deferred.fromCoroutine(read_nodes(store, ["a", "b", "gone"]))
        if closed:
            with pytest.raises(StoreClosed):
                result_of(reading)
        else:
            assert list(result_of(reading)) == ["a", "b"]
        del reading
        gc.collect()
    finally:
        globalLogPublisher.removeObserver(log)
    assert log.lines == []
