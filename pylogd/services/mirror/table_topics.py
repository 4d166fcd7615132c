"""Decide which topics of a source a route copies to a table.

No topics have to be created, and there can be no loops, since nothing is copied from a table. But a table identifies a
partition by its topic's name, so topics of two sources must not have the same name there. A typed table has one topic.
"""

from __future__ import annotations

import logging

from pylogd.services.mirror.cluster_topics import ClusterTopics
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.services.mirror.settings import RouteSettings
from pylogd.services.mirror.topics import Claims

_log = logging.getLogger(__name__)


class TableTopics:
    """The topics of one route.

    refused: the topics that are not copied, each with the reason.
    """

    def __init__(self, route: RouteSettings, source: ClusterTopics, *, is_typed: bool = False) -> None:
        """`is_typed` is whether the table is a typed table."""
        self.route = route
        self._is_typed = is_typed
        self.refused: dict[str, str] = {}
        #: the partitions to copy; None before the source has answered
        self.partitions: frozenset[PartitionRoute] | None = None
        self._source = source

    async def refresh(self, now: float, claims: Claims | None = None) -> None:
        """Decide which topics are copied.

        claims: the topics that other routes copy; this route's topics are added.
        """
        route, taken = self.route, {} if claims is None else claims
        owners = {key[3]: owner for key, owner in taken.items() if key[1] == route.target}
        before, self.refused = self.refused, {}
        found = set()
        for topic in route.patterns.select(self._source.topics):
            name = route.target_name(topic)
            owner = owners.setdefault(name, route.name)
            if owner != route.name:
                self.refused[topic] = f"route {owner} copies a topic to {name} of {route.target} already: use rename"
                continue
            others = owners.keys() - {name} if self._is_typed else set()
            if others:
                del owners[name]
                self.refused[topic] = f"{route.target} is a typed table, which has one topic: {min(others)}"
                continue
            taken[route.source, route.target, topic, name] = route.name
            count = len(self._source.topics[topic].partitions)
            found |= {PartitionRoute(route.name, topic, number, name) for number in range(count)}
        self.partitions = frozenset(found)
        for topic, reason in self.refused.items():
            if before.get(topic) != reason:
                _log.error("route %s: topic %s is not copied: %s", route.name, topic, reason)
