"""The features of a cluster that this release knows, and the levels that it can use (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from pylogd.broker.metadata.image import FeatureRange


class Levels(NamedTuple):
    """The levels of a feature that this release supports.

    default: the level that is used until the cluster has chosen one.
    """

    lowest: int
    highest: int
    default: int


GROUP_VERSION: Final = "group.version"
TRANSACTION_VERSION: Final = "transaction.version"
#: Every feature by name. `transaction.version`: from level 1 on records of the transaction coordinator have tagged
#: fields, from level 2 on each transaction has its own epoch (KIP-890). `group.version`: level 1 lets consumers use the
#: newer protocol of groups (KIP-848).
SUPPORTED: Final[Mapping[str, Levels]] = MappingProxyType(
    {GROUP_VERSION: Levels(0, 1, 1), TRANSACTION_VERSION: Levels(0, 2, 2)}
)
#: The features that a broker of this release registers.
RANGES: Final = tuple(FeatureRange(name, levels.lowest, levels.highest) for name, levels in SUPPORTED.items())
