"""The features that the cluster uses, in the node `/feature`, where Kafka has them.

Strategy: every broker keeps the levels in memory and hears of writes by the change feed. While there is no node, each
feature has its default level: the highest that this release knows. UpdateFeatures writes the node.

Rules: a level that this release does not know is advertised as it is stored, so that nobody takes the cluster for one
that uses less. Source: KIP-584; Kafka's FeatureZNode, version 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.errors import NoNode
from pylogd.metadata.interfaces import Create, IMetadataStore, SetData
from pylogd.metadata.layout import Change, CorruptMetadata

log = Logger()

FEATURES: Final = "/feature"
_VERSION: Final = 2
_ENABLED: Final = 1


class Levels(NamedTuple):
    """The levels of a feature that this release supports. default: used until the cluster has chosen one."""

    lowest: int
    highest: int
    default: int


GROUP_VERSION: Final = "group.version"
#: Every feature by name. `transaction.version`: from 1 on records of the transaction coordinator have tagged fields,
#: from 2 on each transaction has an epoch of its own (KIP-890).
#: `group.version`: 1 lets consumers use the newer protocol of groups (KIP-848).
SUPPORTED: Final[Mapping[str, Levels]] = MappingProxyType(
    {GROUP_VERSION: Levels(0, 1, 1), "transaction.version": Levels(0, 2, 2)}
)


class Features:
    """The features of the cluster, kept up to date.

    levels: by name, without those at level 0. epoch: grows with each change.
    """

    def __init__(self, store: IMetadataStore, feed: ChangeFeed) -> None:
        self._store = store
        self._feed = feed
        self._node_version = -1
        self.levels: Mapping[str, int] = _DEFAULTS
        self.epoch = 0
        feed.add(self)

    def level(self, name: str) -> int:
        """Return the level of a feature that the cluster uses; 0 for none."""
        return self.levels.get(name, 0)

    def update(self, levels: Mapping[str, int]) -> Deferred[None]:
        """Use other levels of some features. Fires when this broker has read them back.

        Fails with BadVersion or NodeExists if another broker has changed features meanwhile.
        """
        wanted = {**self.levels, **levels}
        data = encode_features(wanted)
        new = self._node_version < 0
        write = Create(FEATURES, data) if new else SetData(FEATURES, data, self._node_version)
        return Deferred.fromCoroutine(self._feed.write([write], [FEATURES])).addCallback(lambda _: None)

    async def reload(self, store: IMetadataStore) -> None:
        """Read the features."""
        try:
            node = await store.get(FEATURES)
        except NoNode:
            self._node_version, self.levels, self.epoch = -1, _DEFAULTS, 0
            return
        self._node_version, self.epoch = node.stat.version, node.stat.version + 1
        try:
            self.levels = decode_features(node.data)
        except CorruptMetadata as error:
            log.error("{error}. The features stay as they were", error=str(error))

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read the features again if a write has changed them."""
        if FEATURES in change.paths:
            await self.reload(store)


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
