"""The table of broker settings that slow down lagging consumers on busy disks. docs/lagging-consumers.md explains them.

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pylogd.config.storage import MIB
from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

_BOOLEAN, _LONG, _DOUBLE = ConfigType.BOOLEAN, ConfigType.LONG, ConfigType.DOUBLE
_DYNAMIC: Final = Mode.DYNAMIC
_LAGGING: Final = "Lagging consumers"

_LOW: Final = "lagging.consumer.disk.utilization.low"
_HIGH: Final = "lagging.consumer.disk.utilization.high"

LAGGING_SETTINGS: Final = [
    Setting(
        "lagging.consumer.throttle.enable",
        _BOOLEAN,
        False,
        "Whether lagging consumers have to wait while their disk is busy, so that the disk stays quick for producers "
        "and for consumers that keep up. (Only in pylogd.)",
        _LAGGING,
        mode=_DYNAMIC,
    ),
    Setting(
        "lagging.consumer.lag.bytes",
        _LONG,
        64 * MIB,
        "With `lagging.consumer.throttle.enable`: a consumer lags in a partition if at least so many bytes lie "
        "between its offset and the log's end. A consumer that lags less never waits. Choose at most the bytes of a "
        "partition that the page cache always holds. (Only in pylogd.)",
        _LAGGING,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        _LOW,
        _DOUBLE,
        0.55,
        "With `lagging.consumer.throttle.enable`: below this utilization of a disk, a share from 0 to 1, lagging "
        "consumers get more of the disk. (Only in pylogd.)",
        _LAGGING,
        minimum=0,
        maximum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        _HIGH,
        _DOUBLE,
        0.75,
        "With `lagging.consumer.throttle.enable`: above this utilization of a disk, a share from 0 to 1, lagging "
        "consumers get less of the disk. (Only in pylogd.)",
        _LAGGING,
        minimum=0,
        maximum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "lagging.consumer.min.bytes.per.second",
        _LONG,
        MIB,
        "With `lagging.consumer.throttle.enable`: bytes per second that all lagging consumers together may always "
        "read from a disk, however busy it is. (Only in pylogd.)",
        _LAGGING,
        minimum=1024,
        mode=_DYNAMIC,
    ),
]


def check_lagging(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the limits of utilization contradict each other."""
    if values[_LOW] >= values[_HIGH]:
        raise ConfigError(f"{_LOW} = {values[_LOW]} is not below {_HIGH} = {values[_HIGH]}", _LOW)
