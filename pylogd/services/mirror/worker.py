"""A worker: copies the partitions that the controller assigns to it in the metadata store.

Strategy: a worker has one `Copier` for each target of its assigned routes. It watches the assignment's node, and writes
its holdings after every change, with the version of the assignment that it follows. It writes them before it starts new
partitions, so that the store never has fewer partitions than are copied.

Rules: a worker lives for one session of the store. When the session has ended, everything stops without a commit, since
other workers may have its partitions; its owner then makes another worker with another name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from pylogd.base.errors import PylogdError
from pylogd.client.deferred.tasks import Tasks
from pylogd.client.zookeeper.waiting import Sleeper
from pylogd.services.mirror.copying import Copier
from pylogd.services.mirror.errors import NotAMember
from pylogd.services.mirror.membership import Assignment, Holdings, MirrorPaths, dump_holdings, parse_assignment
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.store.errors import ConnectionLost, NoNode
from pylogd.store.interfaces import IMetadataStore, WatchEvent

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_STATUS_SECONDS: Final = 5.0
_LEAVING_SECONDS: Final = 0.05


class Worker:
    """A worker.

    name: the name, which is unique in the mirror.
    copiers: the copiers by target.
    written: the holdings in the store.
    """

    def __init__(
        self,
        store: IMetadataStore,
        paths: MirrorPaths,
        name: str,
        *,
        reactor: Any,
        target_of: Callable[[str], str | None],
        make_copier: Callable[[str, Worker], Copier],
        figures: Callable[[], Mapping[str, Any]],
    ) -> None:
        """target_of: takes a route's name and returns its target's name.
        make_copier: takes a target's name and this worker.

        figures: returns the figures for operators, which are written to the store.
        """
        self.name = name
        self._store, self._paths, self._reactor = store, paths, reactor
        self._target_of, self._make_copier, self._figures = target_of, make_copier, figures
        self.copiers: dict[str, Copier] = {}
        self._version = -1
        self._assigned: frozenset[PartitionRoute] = frozenset()
        #: the holdings in the store
        self.written: Holdings | None = None
        self._told_at = float("-inf")
        self._sleeper = Sleeper(reactor)
        self._tasks = Tasks()
        self._failure: PylogdError | None = None

    async def run(self) -> None:
        """Copy the assigned partitions, until cancelled. Raises StoreError or NotAMember when the session has ended."""
        await self._register()
        try:
            while True:
                await self._look()
                await self._sleeper.sleep(_LOOK_SECONDS)
                if self._failure is not None:
                    raise self._failure
        finally:
            self._tasks.stop()

    async def leave(self) -> None:
        """Commit the appended batches, release everything, and end."""
        for copier in self.copiers.values():
            copier.stop()
        pauses = Sleeper(self._reactor)
        while not all(copier.has_ended for copier in self.copiers.values()):
            await pauses.sleep(_LEAVING_SECONDS)
        self._assigned = frozenset()
        await self._write_holdings()

    async def still_member(self) -> None:
        """Check that the store still has this worker. Raises NotAMember if not, StoreError if it does not answer.

        It is a write, so it also fails when a read would return an outdated answer.
        """
        try:
            await self._store.set(f"{self._paths.workers}/{self.name}", self.name.encode())
        except NoNode:
            raise NotAMember(f"worker {self.name}: its session in the metadata store has ended") from None

    def routes_changed(self, names: set[str]) -> None:
        """Restart the routes with these names with their new settings, and follow the assignment again."""
        for copier in self.copiers.values():
            copier.begin_again(names)
        self._version = -1
        self._sleeper.wake()

    # The store

    async def _register(self) -> None:
        for parent in self._paths.parents:
            await self._store.ensure(parent)
        await self._store.create(f"{self._paths.holdings}/{self.name}", dump_holdings(Holdings(-1, frozenset())),
                                 ephemeral=True)  # fmt: skip
        await self._store.create(f"{self._paths.status}/{self.name}", b"{}", ephemeral=True)
        await self._store.create(f"{self._paths.workers}/{self.name}", self.name.encode(), ephemeral=True)
        _log.info("worker %s is registered", self.name)

    async def _look(self) -> None:
        """Read the assignment, follow it if it has changed, and write the holdings and the status."""
        try:
            path = f"{self._paths.assignments}/{self.name}"
            if await self._store.exists(path, self._changed) is not None:
                node = await self._store.get(path)
                if node.stat.version != self._version:
                    await self._follow(parse_assignment(node.data), node.stat.version)
            await self._write_holdings()
            await self._write_status()
        except ConnectionLost:
            return  # it may have been done: the next read will tell

    async def _follow(self, assignment: Assignment, version: int) -> None:
        added = assignment.partitions - self._assigned
        self._assigned, self._version = assignment.partitions, version
        if added:
            await self._write_holdings()
        by_target: dict[str, set[PartitionRoute]] = {target: set() for target in self.copiers}
        for path in assignment.partitions:
            target = self._target_of(path.route)
            if target is not None:
                by_target.setdefault(target, set()).add(path)
        for target, partitions in by_target.items():
            copier = self.copiers.get(target)
            if copier is None:
                copier = self.copiers[target] = self._make_copier(target, self)
                self._tasks.start(self._run(copier))
            copier.assign(partitions)

    async def _run(self, copier: Copier) -> None:
        try:
            await copier.run()
        except PylogdError as error:  # the session has ended
            self._failure = error
            self._sleeper.wake()

    @property
    def _held(self) -> frozenset[PartitionRoute]:
        return self._assigned.union(*(copier.held for copier in self.copiers.values()))

    async def _write_holdings(self) -> None:
        holdings = Holdings(self._version, self._held)
        if holdings != self.written:
            await self._store.set(f"{self._paths.holdings}/{self.name}", dump_holdings(holdings))
            self.written = holdings

    async def _write_status(self) -> None:
        now = self._reactor.seconds()
        if now >= self._told_at + _STATUS_SECONDS:
            self._told_at = now
            await self._store.set(f"{self._paths.status}/{self.name}", json.dumps(dict(self._figures())).encode())

    def released(self) -> None:
        """Write the holdings at once: a partition was released."""
        self._sleeper.wake()

    def _changed(self, _: WatchEvent) -> None:
        self._sleeper.wake()
