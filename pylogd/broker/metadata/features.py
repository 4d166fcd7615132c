"""The features that the cluster uses, in the node `/feature`, where Kafka has them.

Strategy: every broker keeps the levels in memory and hears of writes by the change feed. While there is no node, each
feature has its default level: the highest that this release knows. UpdateFeatures writes the node.

Rules: no level is used that a live broker does not know, as its registration says: while a cluster is upgraded broker
by broker, a feature keeps the level of the oldest one. A feature that this release does not know is advertised as it is
stored, so that nobody takes the cluster for one that uses less.
Source: KIP-584; Kafka's FeatureZNode, version 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.cluster import Cluster
from pylogd.broker.metadata.feature_levels import SUPPORTED
from pylogd.store.errors import CorruptMetadata, NoNode
from pylogd.store.interfaces import Create, IMetadataStore, SetData

log = Logger()

FEATURES: Final = "/feature"
_VERSION: Final = 2
_ENABLED: Final = 1


class Features:
    """The features of the cluster, kept up to date.

    levels: the levels by name, without features at level 0.
    epoch: grows with each change of the node.
    """

    def __init__(self, feed: ChangeFeed, cluster: Cluster) -> None:
        self._feed = feed
        self._cluster = cluster
        self._node_version = -1
        self._chosen: Mapping[str, int] = _DEFAULTS
        self.levels: Mapping[str, int] = _DEFAULTS
        self.epoch = 0
        feed.add(self)
        cluster.subscribe(self._limit)

    def level(self, name: str) -> int:
        """Return the level of a feature that the cluster uses; 0 for none."""
        return self.levels.get(name, 0)

    def most(self, name: str) -> int:
        """Return the highest level of a feature that this broker and all live brokers can use."""
        own = SUPPORTED[name].highest
        # All or most of them have one release.
        releases = {broker.features: broker for broker in self._cluster.brokers.values()}
        return min((broker.highest_level(name) for broker in releases.values()), default=own)

    def without(self, name: str, level: int) -> list[int]:
        """Return the ids of the live brokers that can't use a level."""
        brokers = self._cluster.brokers.items()
        return sorted(node_id for node_id, broker in brokers if broker.highest_level(name) < level)

    def update(self, levels: Mapping[str, int]) -> Deferred[None]:
        """Change the levels of some features. Fires when this broker has read them back.

        Fails with BadVersion or NodeExists if another broker has changed features meanwhile.
        """
        wanted = {**self._chosen, **levels}
        data = encode_features(wanted)
        new = self._node_version < 0
        write = Create(FEATURES, data) if new else SetData(FEATURES, data, self._node_version)
        return Deferred.fromCoroutine(self._feed.write([write], [FEATURES])).addCallback(lambda _: None)

    async def reload(self, store: IMetadataStore) -> None:
        """Read the features."""
        try:
            node = await store.get(FEATURES)
        except NoNode:
            self._node_version, self._chosen, self.epoch = -1, _DEFAULTS, 0
        else:
            self._node_version, self.epoch = node.stat.version, node.stat.version + 1
            try:
                self._chosen = decode_features(node.data)
            except CorruptMetadata as error:
                log.error("{error}. The features are unchanged", error=str(error))
        self._limit()

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read the features again if a write has changed them."""
        if FEATURES in change.paths:
            await self.reload(store)

    def _limit(self) -> None:
        """Use no level that a live broker does not know; see the rules."""
        before, found = self.levels, {}
        for name, level in self._chosen.items():
            most = min(level, self.most(name)) if name in SUPPORTED else level
            if most:
                found[name] = most
            if most < level and before.get(name, 0) != most:
                log.warn(
                    "{feature} is used at level {used}, not {wanted}, until brokers {brokers} are upgraded",
                    feature=name, used=most, wanted=level, brokers=", ".join(map(str, self.without(name, level))),
                )  # fmt: skip
        self.levels = MappingProxyType(found)


_DEFAULTS: Final[Mapping[str, int]] = MappingProxyType(
    {name: levels.default for name, levels in SUPPORTED.items() if levels.default}
)


def encode_features(levels: Mapping[str, int]) -> bytes:
    """Encode the node."""
    document = {"version": _VERSION, "status": _ENABLED, "features": {**levels}}
    return json.dumps(document, separators=(",", ":")).encode("utf-8")


def decode_features(data: bytes) -> Mapping[str, int]:
    """Decode the node; a feature that it does not name has its default level. Raises CorruptMetadata."""
    try:
        found = json.loads(data)["features"]
        levels = {**_DEFAULTS, **{str(name): int(level) for name, level in found.items()}}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptMetadata(FEATURES, repr(error)) from error
    return MappingProxyType({name: level for name, level in levels.items() if level})
