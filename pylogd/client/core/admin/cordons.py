"""The setting that keeps new replicas away from data directories of a broker.

For maintenance, all directories of a broker are cordoned, so that it gets no new replicas. The broker becomes the last
replica of the partitions that prefer it as their leader (`placement.leading`); then the preferred leaders are elected.
Its replicas stay on the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

#: The setting of a broker that lists its data directories which get no new replicas.
CORDONED: Final = "cordoned.log.dirs"
#: The value of `CORDONED` that means all data directories.
EVERY_DIRECTORY: Final = "*"


def cordon_value(directories: Mapping[str, bool], chosen: Collection[str], cordoned: bool) -> str:
    """Return the value of `CORDONED` after a change.

    directories: whether each of the broker's directories is cordoned now.
    chosen: the directories to change; empty for all.
    cordoned: whether they are cordoned afterwards.
    """
    if not chosen:
        return EVERY_DIRECTORY if cordoned else ""
    after = {**directories, **dict.fromkeys(chosen, cordoned)}
    return ",".join(sorted(path for path, holds in after.items() if holds))
