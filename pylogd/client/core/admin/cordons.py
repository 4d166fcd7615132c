"""The setting that keeps new replicas away from data directories of a broker.

For a maintenance all of a broker's directories are cordoned, so that no new replicas come to it. It becomes the last
replica of the partitions that prefer it as their leader (`placement.leading`); then the preferred leaders are elected.
Its replicas stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

#: The setting of a broker that names data directories which get no new replicas, and its value for all of them.
CORDONED: Final = "cordoned.log.dirs"
EVERY_DIRECTORY: Final = "*"


def cordon_value(directories: Mapping[str, bool], chosen: Collection[str], cordoned: bool) -> str:
    """Return the value of `CORDONED` after a change.

    directories: whether each of the broker's is cordoned now. chosen: those that change; empty for all. cordoned: what
    they become.
    """
    if not chosen:
        return EVERY_DIRECTORY if cordoned else ""
    after = {**directories, **dict.fromkeys(chosen, cordoned)}
    return ",".join(sorted(path for path, holds in after.items() if holds))
