"""What a consumer is told about its share of the group's partitions.

Rules: a partition is assigned once before it is revoked, and revoked before it is assigned again. Must not know: the
tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pylogd.client.core.model import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """These partitions are claimed: fetch them.

    `offsets`: the committed offset of each (the next record to read), None where the group has none. `streams`: which
    of this consumer's streams reads each, from 0.
    """

    offsets: Mapping[TopicPartition, int | None]
    streams: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, eq=False)
class Revoked:
    """Stop fetching these partitions, commit what was processed, then say so: they are released after that.

    `lost`: the session ended and the claims with it. Another consumer may be reading them already; nothing can be
    committed any more.
    """

    partitions: tuple[TopicPartition, ...]
    lost: bool = False
