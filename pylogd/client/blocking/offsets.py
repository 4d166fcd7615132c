"""Look up offsets, blocking: see `core.admin.offsets` and `core.admin.epochs`."""

from __future__ import annotations

from collections.abc import Mapping

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.core.admin.offsets import find_end_offsets, find_offsets
from pylogd.client.core.model import OffsetAndTime, TopicPartition


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    timeout: float | None = None,
    committed: bool = False,
) -> dict[TopicPartition, OffsetAndTime]:
    """Call `find_offsets`, and block until it is done."""
    return cluster.run(find_offsets(cluster.evented, wanted, timeout, committed=committed))


def end_offsets_for_epochs(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout: float | None = None
) -> dict[TopicPartition, int | None]:
    """Call `find_end_offsets`, and block until it is done."""
    return cluster.run(find_end_offsets(cluster.evented, wanted, timeout))
