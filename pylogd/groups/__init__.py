"""Consumer groups, coordinated by the broker: Kafka's classic protocol, with offsets in a compacted internal topic."""

from pylogd.groups.coordinator import GroupCoordinator

__all__ = ["GroupCoordinator"]
