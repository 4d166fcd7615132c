"""The table of broker settings that limit the memory for groups.

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.storage import MIB
from pylogd.config.values import ConfigType, Mode, Setting

_INT, _LONG = ConfigType.INT, ConfigType.LONG
_GROUPS: Final = "Consumer groups"

GROUP_LIMITS: Final = [
    Setting(
        "groups.max",
        _INT,
        50_000,
        "Most groups that this broker coordinates. A client that would make another one gets "
        "COORDINATOR_NOT_AVAILABLE, and the broker's log says so. Half of them are left to clients that authenticate. "
        "Groups that exist stay. (Only in pylogd.)",
        _GROUPS,
        minimum=1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "groups.max.per.principal",
        _INT,
        10_000,
        "Most groups on this broker that one principal has made since the broker has coordinated them; of clients "
        "that have not authenticated, one address. Beyond it as with groups.max. (Only in pylogd.)",
        _GROUPS,
        minimum=1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.offsets.max.bytes",
        _LONG,
        256 * MIB,
        "Most bytes of memory for the committed offsets of all groups that this broker coordinates, 250 bytes and the "
        "metadata for each. A quarter is for groups that one principal has made, and half is left to clients that "
        "authenticate. Commits of further partitions get COORDINATOR_NOT_AVAILABLE, and the broker's log says so; "
        "commits of known ones are not refused. (Only in pylogd.)",
        _GROUPS,
        minimum=1,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "group.metadata.max.bytes",
        _INT,
        64 * MIB,
        "Most bytes of metadata that this broker keeps for the members of all groups together. If there is more, "
        "members with more than 16 KiB of metadata get COORDINATOR_NOT_AVAILABLE, and retry. (Only in pylogd.)",
        _GROUPS,
        minimum=MIB,
    ),
]
