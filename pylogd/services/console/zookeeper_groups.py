"""Add the groups of consumers that coordinate through ZooKeeper to samples of a cluster.

Strategy: the first sample begins to open a connection to ZooKeeper, which stays open, and for which no sample waits. If
it can't be opened, each sample begins another attempt. `RegisteredGroups` limits the reads of each sample. A ZooKeeper
that does not answer is a gap of the sample; the earlier data stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.python.failure import Failure

from pylogd.services.console.gaps import Gaps
from pylogd.services.console.sample import Sample
from pylogd.store.consumers import RegisteredGroup
from pylogd.store.interfaces import IMetadataStore
from pylogd.store.registered_groups import RegisteredGroups

#: The value in place of a coordinator's id, for a group without one.
NO_COORDINATOR: Final = -1


class ZooKeeperGroups:
    """The groups in a ZooKeeper."""

    def __init__(self, make_store: Callable[[], IMetadataStore]) -> None:
        """`make_store` returns a store that is not started."""
        self._make_store = make_store
        self._store: IMetadataStore | None = None
        self._topics: frozenset[str] = frozenset()
        self._groups: RegisteredGroups | None = None
        self._problem = "not connected yet"

    async def read(self, sample: Sample, gaps: Gaps) -> Mapping[str, RegisteredGroup]:
        """Return the groups by name, with their offsets of the sample's topics."""
        self._topics = frozenset(sample.topics)
        if self._store is None:
            self._connect()
        if self._groups is not None:
            await self._groups.read()
            self._problem = self._groups.problem
        if self._problem:
            gaps.add(None, f"ZooKeeper does not tell its groups: {self._problem}")
        return {} if self._groups is None else self._groups.found

    def _connect(self) -> None:
        self._store = store = self._make_store()
        store.start().addCallbacks(lambda _: self._connected(store), self._failed)

    def _connected(self, store: IMetadataStore) -> None:
        self._groups = RegisteredGroups(store, lambda: self._topics, lambda: True)

    def _failed(self, failure: Failure) -> None:
        self._store, self._problem = None, failure.getErrorMessage()

    def stop(self) -> None:
        """Close the connection."""
        if self._store is not None:
            self._store.close().addErrback(_ignored)


def _ignored(_: Any) -> None:
    """Do nothing: the console ends, so the outcome of its last request does not matter."""
