"""The table of broker settings of client quotas.

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.values import LONG_MAX, ConfigType, Setting

_INT, _LONG = ConfigType.INT, ConfigType.LONG
_QUOTAS: Final = "Client quotas"

QUOTA_SETTINGS: Final = [
    Setting(
        "quota.window.num",
        _INT,
        11,
        "Number of windows over which the rates of clients are measured. What a client did not use in these windows, "
        "it may use later.",
        _QUOTAS,
        minimum=1,
    ),
    Setting(
        "quota.window.size.seconds",
        _INT,
        1,
        "Length of each of these windows.",
        _QUOTAS,
        minimum=1,
    ),
    Setting(
        "controller.quota.window.num",
        _INT,
        11,
        "Number of windows for `controller_mutation_rate`: the partitions that a client may create and delete at "
        "once are its rate times this number of seconds.",
        _QUOTAS,
        minimum=1,
    ),
    Setting(
        "controller.quota.window.size.seconds",
        _INT,
        1,
        "Length of each of these windows.",
        _QUOTAS,
        minimum=1,
    ),
    Setting(
        "quota.producer.default",
        _LONG,
        LONG_MAX,
        "Bytes a second that each client id may produce if no quota is set for it at run time (`pylogd quotas`).",
        _QUOTAS,
        minimum=1,
    ),
    Setting(
        "quota.consumer.default",
        _LONG,
        LONG_MAX,
        "Bytes a second that each client id may fetch if no quota is set for it at run time (`pylogd quotas`).",
        _QUOTAS,
        minimum=1,
    ),
]
