"""Determine the topics that are copied by all routes, from the clusters and the current settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pylogd.client.deferred.cluster import Cluster
from pylogd.services.mirror.cluster_topics import ClusterTopics
from pylogd.services.mirror.controller import Wanted
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.services.mirror.settings import ClusterSettings, MirrorSettings, TableSettings
from pylogd.services.mirror.topics import RouteTopics, TableTopics, refresh_all

#: The time for which a question to a cluster is retried; the other clusters wait meanwhile.
_RETRY_SECONDS: Final = 5.0


class Plan:
    """Connections of the controller to all clusters, and the topics of all routes."""

    def __init__(self, settings: Callable[[], MirrorSettings], reactor: Any) -> None:
        """`settings` returns the current settings."""
        self._settings = settings
        self._reactor = reactor
        self._clusters: dict[str, ClusterTopics] = {}
        self._of: dict[str, ClusterSettings] = {}
        self._tables: Mapping[str, TableSettings] = {}
        self._routes: dict[str, RouteTopics | TableTopics] = {}

    async def refresh(self, now: float) -> Wanted:
        """Return the partitions to copy. Creates missing topics. Raises PylogdError."""
        await self._follow(self._settings())
        await refresh_all(self._clusters, self._routes, now)
        found: set[PartitionRoute] = set()
        unknown = set()
        for name, route in self._routes.items():
            if route.partitions is None:
                unknown.add(name)
            else:
                found |= route.partitions
        return Wanted(found, unknown)

    @property
    def refused(self) -> dict[str, dict[str, str]]:
        """The topics that are not copied, each with the reason, by route."""
        return {name: dict(route.refused) for name, route in self._routes.items() if route.refused}

    async def _follow(self, settings: MirrorSettings) -> None:
        """Connect to the clusters in the settings; keep the connections of unchanged ones."""
        changed = {name for name, known in self._of.items() if settings.clusters.get(name) != known}
        for name in changed:
            await self._clusters.pop(name).close()
            del self._of[name]
        for name, found in settings.clusters.items():
            if name not in self._clusters:
                cluster = Cluster(
                    found.bootstrap, settings.options_of(name), retry_timeout=_RETRY_SECONDS, reactor=self._reactor
                )
                self._clusters[name], self._of[name] = ClusterTopics(name, cluster), found
        tables, self._tables = self._tables, settings.tables
        changed |= {name for name, known in tables.items() if settings.tables.get(name) != known}
        for name, topics in list(self._routes.items()):
            ends = {topics.route.source, topics.route.target}
            if settings.routes.get(name) != topics.route or ends & changed:
                del self._routes[name]
        for name, route in settings.routes.items():
            if name not in self._routes:
                source, target = self._clusters[route.source], self._clusters.get(route.target)
                if target is None:
                    typed = settings.tables[route.target].schemas is not None
                    self._routes[name] = TableTopics(route, source, is_typed=typed)
                else:
                    self._routes[name] = RouteTopics(route, source, target, settings.offset_map_days)

    async def close(self) -> None:
        """Close the connections."""
        clusters, self._clusters = self._clusters, {}
        self._of.clear()
        self._routes.clear()
        for cluster in clusters.values():
            await cluster.close()
