"""Let settings and ACLs of topics follow the source.

Settings of a topic at the source are set at the target, except those that concern a cluster's own brokers. The largest
size of a batch is always set, since a target with a smaller default would refuse batches. A setting that is no longer
set at the source is removed at the target if the mirror has set it; other settings are the operator's. If a
target refuses the settings of a topic, each setting is tried alone, and refused ones are left out, since the target may
be of another release or of another kind. They are named in the log, and tried again when the source changes their
values, or after a restart.

Principals that may read or describe a topic at the source get ACLs for the same at the target. Permission to write is
not copied, because only the mirror may write there; ALL becomes READ. ACLs that are gone at the source are removed if
the mirror has made them.

Rules: errors of single topics are logged, and the topics are tried again at the next turn. A cluster without ACLs ends
only the copying of ACLs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from pylogd.base.errors import ErrorCode, KafkaError, error_for
from pylogd.client.core.admin.access_operations import Acl, AclFilter
from pylogd.client.core.admin.calls import ask
from pylogd.client.deferred import Admin
from pylogd.services.mirror.cluster_topics import ClusterTopics
from pylogd.services.mirror.records import Origin
from pylogd.services.mirror.settings import RouteSettings
from pylogd.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

_log = logging.getLogger(__name__)

#: Errors that concern values of settings.
REFUSALS: Final = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION})
#: Tries a setting at the target. Raises KafkaError.
Try = Callable[[str, str | None], Awaitable[None]]


class RefusedSettings:
    """The settings that the target of one route refuses, by its topics."""

    def __init__(self, route: str) -> None:
        """`route` is the name of the route, for the log."""
        self._route = route
        self._refused: dict[tuple[str, str], str | None] = {}

    def accepted(self, topic: str, configs: Mapping[str, str]) -> dict[str, str]:
        """Return settings for a topic of the target, without those that the target has refused with the same value."""
        return {
            name: value
            for name, value in configs.items()
            if (topic, name) not in self._refused or self._refused[topic, name] != value
        }

    def names(self, topic: str) -> set[str]:
        """Return the names of the settings that were left out for a topic of the target."""
        return {name for known, name in self._refused if known == topic}

    async def find(self, topic: str, changes: Mapping[str, str | None], attempt: Try) -> None:
        """Try each change of a topic alone, and record the refused ones. Raises KafkaError for other errors."""
        for name, value in changes.items():
            try:
                await attempt(name, value)
            except KafkaError as error:
                if error.code not in REFUSALS:
                    raise
                self._refused[topic, name] = value
                self._tell(topic, name, value, error)
            else:
                self._refused.pop((topic, name), None)

    def refuse(self, topic: str, configs: Mapping[str, str], error: KafkaError) -> None:
        """Record that the target refuses settings of a topic together, but takes each of them alone."""
        for name, value in configs.items():
            self._refused[topic, name] = value
            self._tell(topic, name, value, error)

    def keep(self, topics: Iterable[str]) -> None:
        """Forget all topics of the target except these."""
        kept = set(topics)
        self._refused = {key: value for key, value in self._refused.items() if key[0] in kept}

    def _tell(self, topic: str, name: str, value: str | None, error: KafkaError) -> None:
        _log.warning(
            "route %s: topic %s is copied without the setting %s = %s, which the target refuses: %s. To hide this "
            "warning, name the setting in configs.exclude", self._route, topic, name, value, error,
        )  # fmt: skip


_EVERY_SECONDS: Final = 30.0
_TOPIC: Final = 2
_OF_TOPIC: Final = 1  # the source of a setting that is set for the topic
_LARGEST: Final = "max.message.bytes"
#: Settings that concern the brokers of one cluster.
NOT_FOLLOWED: Final = frozenset({
    "follower.replication.throttled.replicas", "leader.replication.throttled.replicas", "min.insync.replicas",
    "unclean.leader.election.enable", "remote.storage.enable", "local.retention.ms", "local.retention.bytes",
    "message.timestamp.before.max.ms", "message.timestamp.after.max.ms", "message.timestamp.difference.max.ms",
    "placement.label",
})  # fmt: skip
_FOLLOWED_OPERATIONS: Final = {"READ": "READ", "DESCRIBE": "DESCRIBE", "DESCRIBE_CONFIGS": "DESCRIBE_CONFIGS"}

#: Settings of a topic: the value, and whether it is set for the topic, by name.
Configs = Mapping[str, tuple[str, bool]]


async def topic_configs(admin: Admin, topics: Collection[str]) -> dict[str, Configs]:
    """Return the settings of topics, without secrets and without unreadable settings. Raises PylogdError."""
    if not topics:
        return {}
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(_TOPIC, name, None) for name in topics])
    response = await ask(admin.cluster, request)
    found: dict[str, Configs] = {}
    for result in response.results:
        if result.error_code:
            _log.warning("topic %s: its settings can't be read: %s", result.resource_name,
                         result.error_message or error_for(result.error_code).text)  # fmt: skip
            continue
        found[result.resource_name] = {
            config.name: (config.value, config.config_source == _OF_TOPIC)
            for config in result.configs
            if config.value is not None and not config.is_sensitive
        }
    return found


def followed_acls(acls: Iterable[Acl], topic: str, name: str) -> set[Acl]:
    """Return the ACLs for a topic with the name `name` at the target, made from the source's ACLs."""
    found = set()
    for acl in acls:
        operation = acl.operation
        if acl.permission == "ALLOW":
            operation = "READ" if operation == "ALL" else _FOLLOWED_OPERATIONS.get(operation, "")
        covers = acl.name in (topic, "*") if acl.pattern == "LITERAL" else topic.startswith(acl.name)
        if acl.resource == "TOPIC" and covers and operation:
            found.add(acl._replace(name=name, pattern="LITERAL", operation=operation))
    return found


class TopicFollower:
    """The settings and ACLs of one route's topics."""

    def __init__(self, route: RouteSettings, source: ClusterTopics, target: ClusterTopics) -> None:
        """Nothing is followed yet."""
        self._route = route
        self._source, self._target = source, target
        self._excluded = NOT_FOLLOWED | route.configs_exclude
        self.refused_settings = RefusedSettings(route.name)
        self._next = 0.0
        self._acls = route.sync_acls

    async def follow(self, topics: Mapping[str, str], now: float) -> None:
        """Update the target, if it is time.

        topics: the names at the target, by the names at the source.

        Raises PylogdError.
        """
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        self.refused_settings.keep(topics.values())
        if self._route.sync_configs:
            await self._follow_configs(topics)
        if self._acls:
            try:
                await self._follow_acls(topics)
            except KafkaError as error:
                if error.code is not ErrorCode.SECURITY_DISABLED:
                    raise
                self._acls = False
                _log.info("route %s: ACLs are not copied: one of the clusters has none", self._route.name)

    def wanted(self, configs: Configs) -> dict[str, str]:
        """Return the settings that a topic must have at the target."""
        return {
            name: value
            for name, (value, is_set) in configs.items()
            if (is_set or name == _LARGEST) and name not in self._excluded
        }

    async def _follow_configs(self, topics: Mapping[str, str]) -> None:
        sources = await topic_configs(self._source.admin, topics.keys())
        targets = await topic_configs(self._target.admin, [topics[topic] for topic in sources])
        changed = []
        for topic, configs in sources.items():
            name, origin = topics[topic], self._origin(topic, topics[topic])
            present = targets.get(name)
            if present is None or origin is None:
                continue
            wanted = self.refused_settings.accepted(name, self.wanted(configs))
            changes: dict[str, str | None] = {
                key: value for key, value in wanted.items() if present.get(key) != (value, True)
            }
            kept = self.refused_settings.names(name) | self._excluded
            changes |= {key: None for key in origin.configs if key not in wanted and key not in kept}
            done = await self._alter(name, changes)
            set_here = {key for key in wanted if key not in self.refused_settings.names(name)}
            if done and set_here != set(origin.configs):
                changed.append(origin._replace(configs=tuple(sorted(set_here))))
        if changed:
            await self._target.write_origins(changed)

    async def _alter(self, name: str, changes: dict[str, str | None]) -> bool:
        """Change settings of a topic of the target, except refused ones. Return whether it succeeded."""
        if not changes:
            return True
        alter = self._target.admin.alter_configs
        try:
            try:
                await alter("topic", name, changes)
            except KafkaError as error:
                if error.code not in REFUSALS:
                    raise
                await self.refused_settings.find(name, changes, lambda key, value: alter("topic", name, {key: value}))
                changes = {key: value for key, value in changes.items() if key not in self.refused_settings.names(name)}
        except KafkaError as error:
            _log.warning("route %s: settings %s of topic %s can't be changed: %s", self._route.name,
                         ", ".join(sorted(changes)), name, error)  # fmt: skip
            return False
        _log.info("route %s: settings of topic %s follow the source: %s", self._route.name, name, sorted(changes))
        return True

    async def _follow_acls(self, topics: Mapping[str, str]) -> None:
        acls = await self._source.admin.list_acls(AclFilter("TOPIC"))
        present = set(await self._target.admin.list_acls(AclFilter("TOPIC")))
        changed = []
        for topic, name in topics.items():
            origin = self._origin(topic, name)
            if origin is None:
                continue
            wanted = followed_acls(acls, topic, name)
            made = {Acl(*fields) for fields in origin.acls}
            if missing := sorted(wanted - present):
                await self._target.admin.create_acls(missing)
            if gone := sorted((made - wanted) & present):
                await self._target.admin.delete_acls([AclFilter(*acl) for acl in gone])
            if (ours := made & wanted | set(missing)) != made:
                changed.append(origin._replace(acls=tuple(sorted(tuple(acl) for acl in ours))))
        if changed:
            await self._target.write_origins(changed)

    def _origin(self, topic: str, name: str) -> Origin | None:
        return self._target.table.origins.get((name, self._source.cluster_id, topic))
