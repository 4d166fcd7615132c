"""The events of a consumer: partitions assigned and revoked.

Rules: a partition is assigned once before it is revoked, and revoked before it is assigned again. Must not know: the
tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pylogd.client.core.model import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class Assigned:
    """Partitions were claimed: fetch them.

    `offsets`: the committed offset of each (the next record to read), None where the group has none. `streams`: which
    of this consumer's streams reads each, from 0.
    """

    offsets: Mapping[TopicPartition, int | None]
    streams: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, eq=False)
class Revoked:
    """Stop fetching partitions, commit processed records, and acknowledge; then the partitions are released.

    `lost`: the session expired, and the claims with it. Another consumer may be reading them already; nothing can be
    committed any more.
    """

    partitions: tuple[TopicPartition, ...]
    lost: bool = False
