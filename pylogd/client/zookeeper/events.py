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

    offsets: the committed offset of each partition (the next record to read); None if the group has none.
    streams: the number of the consumer's stream that reads each partition, from 0.
    """

    offsets: Mapping[TopicPartition, int | None]
    streams: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, eq=False)
class Revoked:
    """Stop fetching partitions, commit processed records, and acknowledge; then the partitions are released.

    lost: whether the session, and the claims with it, have expired. Then other consumers may be reading the partitions
    already, and nothing can be committed any more.
    """

    partitions: tuple[TopicPartition, ...]
    lost: bool = False
