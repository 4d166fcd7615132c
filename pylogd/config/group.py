"""Names and checks of the settings of single groups. The broker's value applies if a group does not set one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pylogd.config.tables import BOUNDS
from pylogd.config.values import ConfigError

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"


def check_bounds(name: str, value: int, low: int, high: int) -> None:
    """Raise ConfigError if a value of a group's setting is not within the broker's limits."""
    least, most = BOUNDS[name]
    if value < low:
        raise ConfigError(f"{name} = {value} is below the broker's {least} = {low}", name)
    if value > high:
        raise ConfigError(f"{name} = {value} is above the broker's {most} = {high}", name)


def check_assignment_interval(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the interval between assignments is outside the limits of groups' own intervals."""
    name = "group.consumer.assignment.interval.ms"
    low, high = values["group.consumer.min.assignment.interval.ms"], values["group.consumer.max.assignment.interval.ms"]
    if not low <= values[name] <= high:
        text = "group.consumer.min.assignment.interval.ms and group.consumer.max.assignment.interval.ms"
        raise ConfigError(f"{name} = {values[name]} is not allowed: it must be from {low} to {high} ({text})", name)
