"""The table of broker settings of the newer consumer groups (KIP-848).

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

_INT, _STRING = ConfigType.INT, ConfigType.STRING
_GROUPS: Final = "Consumer groups"

CONSUMER_GROUP_SETTINGS: Final = [
    Setting(
        "group.consumer.session.timeout.ms",
        _INT,
        45_000,
        "Time without heartbeats after which a member of a group of the newer protocol (KIP-848) is removed from it.",
        _GROUPS,
        minimum=1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        5_000,
        "How often members of groups of the newer protocol are told to send heartbeats. A change reaches a member "
        "with its next heartbeat.",
        _GROUPS,
        minimum=1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms",
        _INT,
        45_000,
        "Shortest consumer.session.timeout.ms that can be set for a group. (Unlike in Kafka, the broker's own "
        "group.consumer.session.timeout.ms may be shorter.)",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms",
        _INT,
        60_000,
        "Longest consumer.session.timeout.ms that can be set for a group.",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms",
        _INT,
        5_000,
        "Shortest consumer.heartbeat.interval.ms that can be set for a group. (Unlike in Kafka, the broker's own "
        "group.consumer.heartbeat.interval.ms may be shorter.)",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms",
        _INT,
        15_000,
        "Longest consumer.heartbeat.interval.ms that can be set for a group.",
        _GROUPS,
        minimum=1,
    ),
    Setting(
        "group.consumer.assignment.interval.ms",
        _INT,
        0,
        "Shortest time between two assignments of a group of the newer protocol, so that many members that join and "
        "leave together need only one assignment (KIP-1263). Later changes take effect at the first heartbeat after "
        "this time; a new member has no partitions until then. (Kafka: 1,000. Here the members of most groups are "
        "assigned in less than a millisecond, so they need not wait.)",
        _GROUPS,
        minimum=0,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms",
        _INT,
        0,
        "Shortest consumer.assignment.interval.ms that can be set for a group.",
        _GROUPS,
        minimum=0,
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms",
        _INT,
        15_000,
        "Longest consumer.assignment.interval.ms that can be set for a group.",
        _GROUPS,
        minimum=0,
    ),
    Setting(
        "group.consumer.max.size",
        _INT,
        5_000,
        "Most members of a group of the newer protocol. When a member joins, the broker examines all members, which "
        "takes about 10 ms for 2,000 members. (Kafka has no limit by default.)",
        _GROUPS,
        minimum=1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        "Whether a group with members moves between the protocols: With `upgrade`, a classic consumer group changes "
        "to the newer protocol when the first consumer of this protocol joins. With `downgrade`, it changes back "
        "when the last such consumer leaves. `bidirectional` allows both, `disabled` neither.",
        _GROUPS,
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
        mode=Mode.DYNAMIC,
    ),
]


def check_assignment_interval(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the interval between assignments is outside the limits of groups' own intervals."""
    name = "group.consumer.assignment.interval.ms"
    low, high = values["group.consumer.min.assignment.interval.ms"], values["group.consumer.max.assignment.interval.ms"]
    if not low <= values[name] <= high:
        text = "group.consumer.min.assignment.interval.ms and group.consumer.max.assignment.interval.ms"
        raise ConfigError(f"{name} = {values[name]} is not allowed: it must be from {low} to {high} ({text})", name)
