"""The table of settings of single groups, with Kafka's names. The broker's value applies if a group does not set one.

The table has only settings that the broker uses. So it lacks the settings of share and streams groups, and
`consumer.assignor.offload.enable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
_GROUP: Final = "Group"

_SETTINGS: Final = [
    Setting(
        SESSION_TIMEOUT,
        ConfigType.INT,
        45_000,
        "Time without heartbeats after which a member of the newer protocol is removed from the group. It must be "
        "longer than consumer.heartbeat.interval.ms, and within group.consumer.min.session.timeout.ms and "
        "group.consumer.max.session.timeout.ms.",
        _GROUP,
        minimum=1,
        mode=Mode.DYNAMIC,
        synonyms=(("group.consumer.session.timeout.ms", 1),),
    ),
    Setting(
        HEARTBEAT_INTERVAL,
        ConfigType.INT,
        5_000,
        "How often members of the newer protocol are told to send heartbeats. It must be within "
        "group.consumer.min.heartbeat.interval.ms and group.consumer.max.heartbeat.interval.ms. A change reaches a "
        "member with its next heartbeat.",
        _GROUP,
        minimum=1,
        mode=Mode.DYNAMIC,
        synonyms=(("group.consumer.heartbeat.interval.ms", 1),),
    ),
    Setting(
        ASSIGNMENT_INTERVAL,
        ConfigType.INT,
        0,
        "Shortest time between two assignments of a group; after it, the next heartbeat assigns (KIP-1263). It must "
        "be within group.consumer.min.assignment.interval.ms and group.consumer.max.assignment.interval.ms.",
        _GROUP,
        minimum=0,
        mode=Mode.DYNAMIC,
        synonyms=(("group.consumer.assignment.interval.ms", 1),),
    ),
]
#: Every setting of a group by name.
GROUP_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({setting.name: setting for setting in _SETTINGS})
#: The broker settings that limit the values of a group.
BOUNDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        SESSION_TIMEOUT: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
        HEARTBEAT_INTERVAL: ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
        ASSIGNMENT_INTERVAL: ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
    }
)


def check_bounds(name: str, value: int, low: int, high: int) -> None:
    """Raise ConfigError if a value of a group's setting is not within the broker's limits."""
    least, most = BOUNDS[name]
    if value < low:
        raise ConfigError(f"{name} = {value} is below the broker's {least} = {low}", name)
    if value > high:
        raise ConfigError(f"{name} = {value} is above the broker's {most} = {high}", name)
