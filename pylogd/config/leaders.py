"""The table of broker settings that are about who leads: the controller's duties, and a broker that stops.

A part of the table in `broker`, which says how to read it.
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
        "Whether the controller gives partitions back to their preferred leaders from time to time.",
        _LEADERS,
        mode=_DYNAMIC,
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        _LONG,
        300,
        "How often the controller looks whether preferred leaders lead.",
        _LEADERS,
        minimum=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        _INT,
        10,
        "Of a hundred partitions that prefer a broker so many may be led by others before they are given back.",
        _LEADERS,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        "controlled.shutdown.enable",
        _BOOLEAN,
        True,
        "Whether a broker that stops has others take over what it leads first.",
        _LEADERS,
    ),
    Setting(
        "controlled.shutdown.max.retries",
        _INT,
        3,
        "With `controlled.shutdown.retry.backoff.ms`: a broker that stops waits at most for the product of the two "
        "until others lead what it led.",
        _LEADERS,
        minimum=1,
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        _LONG,
        5000,
        "See `controlled.shutdown.max.retries`. Nothing is repeated: the controller acts when it hears of it.",
        _LEADERS,
        minimum=1,
    ),
]
