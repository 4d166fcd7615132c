"""The controller of a mirror decides what is copied, and assigns partitions to workers.

Strategy: every process stands for election. The process that creates the controller's node is the controller until its
session ends. Its loop refreshes topics (`topics`), frees the partitions of workers that are gone, and writes
assignments (`grants`). All of its data is in the store and at the clusters, so the next controller continues where this
one stopped; meanwhile the workers go on copying.

A worker that is gone may be alive and only cut off from the store. So its transactional ids are fenced at the targets
before another worker gets its partitions: then its writes fail. If a target can't be reached, only the partitions that
are copied to this target have to wait.

Rules: one coroutine decides. Watches only wake it, and so do the coroutines that ask clusters, which may take long.
Only the routes of a cluster wait for its answers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.client.deferred.tasks import Tasks
from pylogd.client.zookeeper.waiting import Sleeper
from pylogd.services.mirror.grants import WorkerRecord, next_grants
from pylogd.services.mirror.membership import (
    SESSION_ENDED,
    Assignment,
    MirrorPaths,
    dump_assignment,
    parse_assignment,
    parse_holdings,
)
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.store.errors import NodeExists, NoNode
from pylogd.store.interfaces import ANY_VERSION, IMetadataStore, WatchEvent

_log = logging.getLogger(__name__)

#: The pause between reads of the store while partitions are moving.
_MOVING_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 1.0

#: Fences a worker's copying by a route, so that all of its later writes fail. Fails with PylogdError.
Fence = Callable[[str, str], Awaitable[None]]


class Wanted(NamedTuple):
    """The partitions to copy.

    unknown: routes whose clusters have not answered yet; their partitions stay assigned.
    """

    partitions: Collection[PartitionRoute]
    unknown: Collection[str] = ()


class Controller:
    """See the module. Times are in seconds."""

    def __init__(
        self,
        store: IMetadataStore,
        paths: MirrorPaths,
        member: str,
        *,
        reactor: Any,
        refresh: Callable[[float], Awaitable[Wanted]],
        refresh_seconds: float,
        fence: Fence,
    ) -> None:
        """`member` is this process's name. `refresh` is called with the time, and returns the partitions to copy."""
        self._store, self._paths, self._member = store, paths, member
        self._reactor = reactor
        self._refresh, self._refresh_seconds, self._fence = refresh, refresh_seconds, fence
        self._sleeper = Sleeper(reactor)
        self._tasks = Tasks()
        self._wanted: Wanted | None = None
        self._fenced: set[tuple[str, str]] = set()
        self._fencing: set[tuple[str, str]] = set()
        #: whether this process is the controller
        self.is_elected = False

    async def run(self) -> None:
        """Stand for election, and decide while elected, until cancelled. Raises StoreError once the session is over."""
        while True:
            try:
                await self._elected()
                self.is_elected = True
                _log.info("%s is the controller now", self._member)
                self._tasks = Tasks()
                self._tasks.start(self._keep_refreshing())
                while True:
                    await self._round()
            except PylogdError as error:
                if isinstance(error, SESSION_ENDED):
                    raise
                _log.warning("the controller retries after an error: %s", error)
            finally:
                self.is_elected = False
                self._tasks.stop()
                self._fencing.clear()
            await self._sleeper.sleep(_RETRY_SECONDS)

    async def _elected(self) -> None:
        """Return once this process is the controller."""
        for parent in self._paths.parents:
            await self._store.ensure(parent)
        while True:
            try:
                await self._store.create(self._paths.controller, self._member.encode(), ephemeral=True)
            except NodeExists:
                try:
                    node = await self._store.get(self._paths.controller, self._wake)
                except NoNode:
                    continue
                if node.data == self._member.encode():
                    return  # an earlier request, whose answer was lost, has created the node
                await self._sleeper.sleep(self._refresh_seconds)
            else:
                return

    async def _keep_refreshing(self) -> None:
        pauses = Sleeper(self._reactor)
        while True:
            try:
                self._wanted = await self._refresh(self._reactor.seconds())
            except PylogdError as error:
                _log.warning("can't update the list of topics, retrying: %s", error)
            self._sleeper.wake()
            await pauses.sleep(self._refresh_seconds)

    async def _round(self) -> None:
        live = frozenset(await self._store.children(self._paths.workers, self._wake))
        records = await self._records()
        # Fence them at once: their open transactions prevent readers from reading later committed records.
        taken = await self._free_gone({worker: records[worker] for worker in records.keys() - live})
        if self._wanted is None:
            await self._sleeper.sleep(self._refresh_seconds)
            return
        records = {worker: record for worker, record in records.items() if worker in live}
        unknown = self._wanted.unknown
        kept = {p for record in records.values() for p in record.assignment.partitions if p.route in unknown}
        grants = next_grants(kept.union(self._wanted.partitions), live, records, taken)
        for worker, assignment in grants.assignments.items():
            await self._write(worker, assignment, records.get(worker))
        waits = _MOVING_SECONDS if grants.waiting or grants.assignments else self._refresh_seconds
        await self._sleeper.sleep(waits)

    async def _records(self) -> dict[str, WorkerRecord]:
        assignments = await self._store.children_data(self._paths.assignments)
        holdings = await self._store.children_data(self._paths.holdings)
        return {
            worker: WorkerRecord(
                parse_assignment(node.data), node.stat.version,
                parse_holdings(holdings[worker].data) if worker in holdings else None,
            )
            for worker, node in assignments.items()
        }  # fmt: skip

    async def _write(self, worker: str, assignment: Assignment, record: WorkerRecord | None) -> None:
        path, data = f"{self._paths.assignments}/{worker}", dump_assignment(assignment)
        if record is None:
            await self._store.create(path, data)
        else:
            await self._store.set(path, data, record.version)
        _log.info("worker %s is assigned %d partitions; %d are taken from it", worker, len(assignment.partitions),
                  len(assignment.leaving))  # fmt: skip

    # Workers that are gone

    async def _free_gone(self, gone: Mapping[str, WorkerRecord]) -> set[PartitionRoute]:
        """Fence workers that have ended, and forget them. Return the partitions of workers that are not fenced yet."""
        taken: set[PartitionRoute] = set()
        for worker, record in gone.items():
            partitions = record.assignment.partitions | record.assignment.leaving
            routes = {path.route for path in partitions}
            waiting = {route for route in sorted(routes) if not self._is_fenced(worker, route)}
            if waiting:
                taken |= {path for path in partitions if path.route in waiting}
                continue
            await self._delete(f"{self._paths.assignments}/{worker}")
            self._fenced = {(name, route) for name, route in self._fenced if name != worker}
            _log.info("worker %s is gone; its %d partitions are free", worker, len(partitions))
        return taken

    def _is_fenced(self, worker: str, route: str) -> bool:
        """Return whether a worker is fenced at the target of a route. If not, begin to fence it."""
        key = worker, route
        if key in self._fenced:
            return True
        if key not in self._fencing:
            self._fencing.add(key)
            self._tasks.start(self._keep_fencing(worker, route))
        return key in self._fenced  # the fencing may be done already

    async def _keep_fencing(self, worker: str, route: str) -> None:
        pauses = Sleeper(self._reactor)
        while True:
            try:
                await self._fence(worker, route)
            except PylogdError as error:
                _log.warning("worker %s is gone, and can't be fenced at the target of route %s: its partitions wait: "
                             "%s", worker, route, error)  # fmt: skip
                await pauses.sleep(_RETRY_SECONDS)
            else:
                break
        self._fenced.add((worker, route))
        self._fencing.discard((worker, route))
        self._sleeper.wake()

    async def _delete(self, path: str) -> None:
        with suppress(NoNode):
            await self._store.delete(path, ANY_VERSION)

    def _wake(self, _: WatchEvent) -> None:
        self._sleeper.wake()
