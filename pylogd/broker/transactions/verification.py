"""The question that a partition leader asks the transaction coordinator before the first batch of a transaction.

Without the question, a late batch could open a transaction that nobody ever ends, and read_committed consumers would
wait for ever.

Source: KIP-890.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pylogd.base.errors import ErrorCode

#: A partition: the name of its topic, and its index.
TopicPartition: TypeAlias = tuple[str, int]
#: The coordinator's answer for each partition.
Answer: TypeAlias = "Mapping[TopicPartition, ErrorCode]"


class PartitionVerifier(Protocol):
    """Asks the coordinator of a transactional id whether partitions are in its open transaction."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        add: bool,
    ) -> Answer | Deferred[Answer]:
        """Return the coordinator's answer for each partition (NONE if it is in the transaction), or a Deferred of it.

        add: whether the coordinator adds partitions that are missing (Produce 12 and later). Otherwise the answer for
            these is INVALID_TXN_STATE or TRANSACTION_ABORTABLE.

        If the coordinator can't be asked, the answer is a temporary error, such as NOT_COORDINATOR,
        COORDINATOR_NOT_AVAILABLE or NETWORK_EXCEPTION. The Deferred never fails.
        """
