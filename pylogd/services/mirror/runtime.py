"""The objects of a mirror in one process, made from its settings: routes, their connections, targets.

Strategy: the file may change at any time. Routes with unchanged settings are kept. Other routes are made again, and
their copiers start again with the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pylogd.base.clock import wall_ms
from pylogd.client.core.errors import UnsupportedByBroker
from pylogd.client.core.model import TopicPartition
from pylogd.client.deferred import Producer
from pylogd.client.deferred.cluster import Cluster
from pylogd.lake.tables.opening import open_table
from pylogd.services.mirror.errors import InvalidMirrorFile
from pylogd.services.mirror.feeds import ByteRateLimit, RouteMeter
from pylogd.services.mirror.kafka_target import KafkaTarget
from pylogd.services.mirror.partition_copy import CommitPace
from pylogd.services.mirror.settings import MirrorSettings, RouteSettings
from pylogd.services.mirror.source import OnError, SourceReader
from pylogd.services.mirror.starting import SourceState, StartAt, look_up
from pylogd.services.mirror.table_target import TableTarget
from pylogd.services.mirror.target import Target

_FENCE_SECONDS: Final = 20.0


class RouteRuntime:
    """A route in this process: see `copying.CopiedRoute`."""

    def __init__(self, settings: MirrorSettings, route: RouteSettings, reactor: Any) -> None:
        """Make the parts. Connections are made when they are needed."""
        self.route = route
        self.name = route.name
        self.start: StartAt = route.start
        self.source, self.target = settings.ends(route)
        self.throttle = ByteRateLimit(route.bytes_per_second)
        self.meter = RouteMeter()
        self._options = settings.options_of(route.source)
        self._reactor = reactor
        self._admin: Cluster | None = None

    def reader(self, on_ready: Callable[[], None], on_error: OnError) -> SourceReader:
        """Return a new reader of the route's source."""
        return SourceReader(
            self.source.bootstrap, self._options, on_ready=on_ready, on_error=on_error, reactor=self._reactor,
            rack=self.route.rack,
        )  # fmt: skip

    async def look_up(self, partitions: Sequence[TopicPartition]) -> SourceState:
        """Return the source's state of partitions that are about to be started. Raises PylogdError."""
        if self._admin is None:
            self._admin = Cluster(self.source.bootstrap, self._options, reactor=self._reactor)
        return await look_up(self._admin, partitions)

    def close(self) -> None:
        """Close the connections."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None


class Runtime:
    """All objects of a mirror in this process. `throttle` is the worker's throttle."""

    def __init__(self, settings: MirrorSettings, reactor: Any) -> None:
        """Make the parts. Connections are made when they are needed."""
        self.settings = settings
        self.throttle = ByteRateLimit(settings.worker_bytes_per_second)
        self._reactor = reactor
        self._routes: dict[str, RouteRuntime] = {}
        self.update(settings)

    def update(self, settings: MirrorSettings) -> set[str]:
        """Use other settings from now on. Return the names of the routes that were changed or removed."""
        self.settings = settings
        self.throttle.rate = settings.worker_bytes_per_second
        changed = set()
        for name, known in list(self._routes.items()):
            route = settings.routes.get(name)
            same = route is not None and settings.ends(route) == (known.source, known.target)
            if not same or route != known.route:
                known.close()
                del self._routes[name]
                changed.add(name)
        for name, route in settings.routes.items():
            if name not in self._routes:
                self._routes[name] = RouteRuntime(settings, route, self._reactor)
        return changed

    def route(self, name: str) -> RouteRuntime | None:
        """Return a route by its name."""
        return self._routes.get(name)

    def target_of(self, route: str) -> str | None:
        """Return the name of a route's target."""
        found = self._routes.get(route)
        return None if found is None else found.route.target

    def transactional_id(self, worker: str, target: str) -> str | None:
        """Return the transactional id with which a worker writes to a target; None for a table, or without
        transactions.
        """
        exactly_once = target in self.settings.clusters and self.settings.clusters[target].exactly_once
        return f"pylogd-mirror-{self.settings.name}-{worker}-{target}" if exactly_once else None

    def pace_of(self, target: str) -> CommitPace:
        """Return how often a worker commits at a target."""
        table = self.settings.tables.get(target)
        if table is None:
            return CommitPace(self.settings.commit_seconds)
        return CommitPace(table.commit_seconds, table.commit_bytes)

    def make_target(self, worker: str, target: str) -> Target:
        """Return a target for a worker, which is not open. Raises InvalidMirrorFile if the file no longer has it."""
        table = self.settings.tables.get(target)
        if table is not None:
            return TableTarget(
                lambda: open_table(table.location, table.properties), table.layout, table.schemas,
                reactor=self._reactor, now_ms=wall_ms, name=target,
            )  # fmt: skip
        cluster = self.settings.clusters.get(target)
        if cluster is None:
            raise InvalidMirrorFile(f"there is no cluster or table {target!r} in the file any more")
        return KafkaTarget(
            cluster.bootstrap, self.settings.options_of(target), reactor=self._reactor,
            transactional_id=self.transactional_id(worker, target), map_days=self.settings.offset_map_days,
        )  # fmt: skip

    async def fence(self, worker: str, route: str) -> None:
        """Make all further writes of a worker by a route fail. Raises PylogdError."""
        target = self.target_of(route)
        name = None if target is None else self.transactional_id(worker, target)
        if target is None or name is None:
            return
        producer = Producer(
            self.settings.clusters[target].bootstrap, reactor=self._reactor, transactional_id=name,
            max_block=_FENCE_SECONDS, security=self.settings.clusters[target].security,
        )  # fmt: skip
        try:
            await producer.init_transactions()
        except UnsupportedByBroker:
            return  # then the worker has written nothing either
        finally:
            producer.abandon()

    def close(self) -> None:
        """Close all connections."""
        for route in self._routes.values():
            route.close()
