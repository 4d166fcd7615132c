"""Look up offsets, blocking: see `core.admin.offsets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogd.client.blocking.calls import BlockingCalls, run
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.core.admin.epochs import find_end_offsets
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, find_offsets
from pylogd.client.core.model import OffsetAndTime, TopicPartition


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout: float | None = None
) -> dict[TopicPartition, OffsetAndTime]:
    """As `find_offsets`, blocking."""
    return run(find_offsets(BlockingCalls(cluster), wanted, timeout))


def beginning_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The first offset that each partition still has."""
    return {p: found.offset for p, found in list_offsets(cluster, dict.fromkeys(partitions, EARLIEST)).items()}


def end_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset that the next record of each partition will have, as far as consumers may read."""
    return {p: found.offset for p, found in list_offsets(cluster, dict.fromkeys(partitions, LATEST)).items()}


def end_offsets_for_epochs(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout: float | None = None
) -> dict[TopicPartition, int | None]:
    """As `find_end_offsets`, blocking."""
    return run(find_end_offsets(BlockingCalls(cluster), wanted, timeout))
