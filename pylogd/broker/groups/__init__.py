"""Coordinate consumer groups: Kafka's classic rebalance protocol, with offsets in a compacted internal topic."""

from pylogd.broker.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
