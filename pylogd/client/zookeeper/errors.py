"""Errors of a consumer whose group is in ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.client.core.errors import ClientError
from pylogd.client.core.model import TopicPartition


class ZooKeeperUnavailable(ClientError):
    """ZooKeeper did not answer. It is unknown whether a write was done."""

    retriable = True


class NotOwner(ClientError):
    """Offsets can be committed only of partitions that the consumer owns."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        names = ", ".join(str(partition) for partition in sorted(partitions)[:5])
        super().__init__(f"not owned by this consumer: {names}{', ...' if len(partitions) > 5 else ''}")
        self.partitions = tuple(partitions)


class RebalanceFailed(ClientError):
    """The consumer's share could not be claimed in `rebalance.max.retries` tries: another consumer does not
    release partitions, mostly because it does not poll. The consumer stays in the group and keeps trying.
    """

    retriable = True

    def __init__(self, tries: int, cause: BaseException | None) -> None:
        super().__init__(f"the share of this consumer could not be claimed in {tries} tries: {cause}")
        self.tries = tries
        self.__cause__ = cause
