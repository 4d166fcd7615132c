"""The table of broker settings of leadership: the controller's checks, and controlled shutdown.

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.values import ConfigType, Mode, Setting

_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_DYNAMIC: Final = Mode.DYNAMIC
_LEADERS: Final = "Leaders"

LEADER_SETTINGS: Final = [
    Setting(
        "auto.leader.rebalance.enable",
        _BOOLEAN,
        True,
        "Whether the controller regularly makes the preferred replicas leaders again.",
        _LEADERS,
        mode=_DYNAMIC,
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        "How often the controller checks whether the preferred replicas lead.",
        _LEADERS,
        minimum=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        _INT,
        10,
        "Percentage of a broker's preferred partitions that other brokers may lead before the controller moves the "
        "leaderships back.",
        _LEADERS,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        "Whether a stopping broker first hands over its leaderships to other brokers.",
        _LEADERS,
    ),
    Setting(
        "controlled.shutdown.max.retries",
        _INT,
        3,
        "A stopping broker waits for the handover of its leaderships for at most this number times "
        "`controlled.shutdown.retry.backoff.ms`.",
        _LEADERS,
        minimum=1,
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        _LONG,
        5000,
        "See `controlled.shutdown.max.retries`. The request is sent only once, because the controller acts as soon "
        "as it learns of the stop.",
        _LEADERS,
        minimum=1,
    ),
]
