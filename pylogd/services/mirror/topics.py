"""Keep the topics of a target like those of its source (partitions, settings, ACLs), and refuse loops.

Strategy: at each refresh the controller lists the topics of both clusters. Topics that are missing at the target are
created, topics that have grown are extended, and the result is the set of partitions to copy. Settings and ACLs follow
more slowly.

Loops can't be found by a mark in each record, because batches would have to be decoded. Instead the target keeps the
*origin* of each topic that a mirror fills: the source's cluster id and topic, and the ids of all clusters before it
(`records.Origin`). A topic is not copied to a cluster from which its records come: the last step of A to B to A is
refused, whatever the names are, and even if the two steps belong to different mirrors.

Rules: a topic is copied even if the target refuses some of its settings: see `following`. The origin is written before
a topic's first record is copied. A topic of the target is never deleted, and never loses partitions. Only settings and
ACLs that the mirror has set are removed again.

To a table no topics are created (`TableTopics`), and there can be no loops, since nothing is copied from a table. But a
table identifies a partition by its topic's name, so topics of two sources must not have the same name there. A typed
table has one topic.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.model import NewTopic
from pylogd.services.mirror.cluster_topics import ClusterTopics
from pylogd.services.mirror.following import REFUSALS, TopicFollower, topic_configs
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.services.mirror.records import Origin
from pylogd.services.mirror.settings import RouteSettings

_log = logging.getLogger(__name__)

_CREATED_AT_ONCE: Final = 100


#: The route that copies a topic, by source, target, topic, and the name at the target.
Claims = dict[tuple[str, str, str, str], str]


class RouteTopics:
    """The topics of one route. `refused` has the topics that are not copied, each with the reason."""

    def __init__(self, route: RouteSettings, source: ClusterTopics, target: ClusterTopics, map_days: int) -> None:
        """Begin without topics: `refresh` finds them."""
        self.route = route
        self.refused: dict[str, str] = {}
        self._told: dict[str, str] = {}  # the refusals that were logged
        #: the partitions to copy; None before the clusters have answered
        self.partitions: frozenset[PartitionRoute] | None = None
        self._source, self._target = source, target
        self._map_days = map_days
        self._follower = TopicFollower(route, source, target)

    async def refresh(self, now: float, claims: Claims | None = None) -> None:
        """Update the target from the source. Both clusters must have been refreshed. Raises PylogdError.

        claims: the topics that earlier routes copy; this route's topics are added.

        Afterwards `partitions` has the partitions to copy.
        """
        await self._target.prepare(self._map_days)
        wanted = self._allowed(self.route.patterns.select(self._source.topics), {} if claims is None else claims)
        await self._write_origins(wanted)
        missing = [topic for topic, name in wanted.items() if name not in self._target.topics]
        for first in range(0, len(missing), _CREATED_AT_ONCE):
            await self._create(missing[first : first + _CREATED_AT_ONCE], wanted)
        await self._extend(wanted)
        found = set()
        for topic, name in wanted.items():
            if topic not in self.refused:
                count = len(self._source.topics[topic].partitions)
                found |= {PartitionRoute(self.route.name, topic, number, name) for number in range(count)}
        self.partitions = frozenset(found)
        await self._follower.follow({topic: name for topic, name in wanted.items() if topic not in self.refused}, now)

    def _allowed(self, topics: list[str], claims: Claims) -> dict[str, str]:
        """Return the names at the target of the topics that may be copied."""
        self.refused = {}
        allowed = {}
        for topic in topics:
            name = self.route.target_name(topic)
            reason = self._objection(topic, name)
            claim = claims.setdefault((self.route.source, self.route.target, topic, name), self.route.name)
            if claim != self.route.name:
                reason = f"route {claim} copies it already"
            if reason is None:
                allowed[topic] = name
            else:
                self._refuse(topic, reason)
        self._told = {topic: reason for topic, reason in self._told.items() if topic in topics}
        return allowed

    def _objection(self, topic: str, name: str) -> str | None:
        """Return why a topic must not be copied to this name; None if it may."""
        if self._target.cluster_id == self._source.cluster_id and topic == name:
            return f"{self._source.name} and {self._target.name} are one cluster: it would be copied into itself"
        if self._target.cluster_id in self._source.passed(topic) - {self._source.cluster_id}:
            return f"its records come from {self._target.name}: copied back there, they would go round for ever"
        return None

    def _refuse(self, topic: str, reason: str) -> None:
        self.refused[topic] = reason
        if self._told.get(topic) != reason:
            self._told[topic] = reason
            _log.error("route %s: topic %s is not copied: %s", self.route.name, topic, reason)

    async def _write_origins(self, wanted: Mapping[str, str]) -> None:
        changed = []
        for topic, name in wanted.items():
            via = tuple(sorted(self._source.passed(topic)))
            known = self._target.table.origins.get((name, self._source.cluster_id, topic))
            if known is None:
                changed.append(Origin(name, self._source.cluster_id, topic, via))
            elif known.via != via:
                changed.append(known._replace(via=via))
        if changed:
            await self._target.write_origins(changed)

    async def _create(self, topics: list[str], names: Mapping[str, str]) -> None:
        """Create topics at the target like those at the source."""
        configs = await topic_configs(self._source.admin, topics) if self.route.sync_configs else {}
        new = []
        for topic in topics:
            count = len(self._source.topics[topic].partitions)
            wanted = self._follower.wanted(configs.get(topic, {}))
            new.append(NewTopic(names[topic], count, self.route.replication_factor, wanted))
        results = await self._target.admin.create_topics(new)
        for wanted_topic in new:
            refusal = results.get(wanted_topic.name)
            if refusal is not None and refusal.code in REFUSALS and wanted_topic.configs:
                results = {**results, **await self._create_without(wanted_topic)}
        for topic in topics:
            error = results.get(names[topic])
            if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                self._refuse(topic, f"it can't be created at {self._target.name}: {error}")
            else:
                _log.info("route %s: topic %s is copied to %s", self.route.name, topic, names[topic])

    async def _create_without(self, topic: NewTopic) -> Mapping[str, KafkaError | None]:
        """Create a topic without the settings that the target refuses. Return the results."""
        refused, admin = self._follower.refused_settings, self._target.admin

        async def attempt(setting: str, value: str | None) -> None:
            alone = replace(topic, configs={setting: value or ""})
            error = (await admin.create_topics([alone], validate_only=True)).get(topic.name)
            if error is not None:
                raise error

        bare = replace(topic, configs={})
        results = await admin.create_topics([bare], validate_only=True)
        if results.get(topic.name) is not None:
            return results  # the error has another cause than settings
        await refused.find(topic.name, topic.configs, attempt)
        rest = refused.accepted(topic.name, topic.configs)
        results = await admin.create_topics([replace(topic, configs=rest)])
        error = results.get(topic.name)
        if error is not None and error.code in REFUSALS and rest:  # the remaining settings contradict each other
            refused.refuse(topic.name, rest, error)
            results = await admin.create_topics([bare])
        return results

    async def _extend(self, wanted: Mapping[str, str]) -> None:
        """Extend topics of the target to the number of partitions at the source."""
        for topic, name in wanted.items():
            count, known = len(self._source.topics[topic].partitions), self._target.topics.get(name)
            if known is None or len(known.partitions) >= count:
                continue
            try:
                await self._target.admin.create_partitions(name, count)
            except KafkaError as error:
                if error.retriable:
                    raise
                self._refuse(topic, f"{name} can't get {count} partitions at {self._target.name}: {error}")


class RefreshedRoute(Protocol):
    """The part of a route that `refresh_all` needs; `RouteTopics` and `table_topics.TableTopics` implement it."""

    route: RouteSettings
    partitions: frozenset[PartitionRoute] | None

    async def refresh(self, now: float, claims: Claims | None = None) -> None:
        """Determine the topics to copy. Raises PylogdError."""


async def refresh_all(clusters: Mapping[str, ClusterTopics], routes: Mapping[str, RefreshedRoute], now: float) -> None:
    """Refresh clusters, and the routes between clusters that answer; other routes keep their last state."""
    asked = {name: Deferred.fromCoroutine(_refresh(name, cluster)) for name, cluster in clusters.items()}
    unreachable = {name for name, answers in asked.items() if not await answers}
    asleep = [
        route for route in routes.values() if not unreachable.isdisjoint((route.route.source, route.route.target))
    ]
    claims: Claims = {}
    for route in asleep:
        for path in route.partitions or ():
            claims[route.route.source, route.route.target, path.topic, path.target_topic] = route.route.name
    for route in routes.values():
        if route not in asleep:
            try:
                await route.refresh(now, claims)
            except PylogdError as error:
                _log.warning("can't update route %s: %s", route.route.name, error)


async def _refresh(name: str, cluster: ClusterTopics) -> bool:
    """Return whether a cluster has answered."""
    try:
        await cluster.refresh()
    except PylogdError as error:
        _log.warning("can't read the topics of cluster %s: %s", name, error)
        return False
    return True


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
