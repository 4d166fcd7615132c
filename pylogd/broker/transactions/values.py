"""The state of a transactional id as a value, as the coordinator keeps and stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pylogd.base.errors import ErrorCode
from pylogd.broker.transactions.states import TransactionState

#: Stands for no producer id, no epoch or no time.
NONE_YET: Final = -1
#: The version of transactions with an epoch for each transaction (KIP-890, part 2).
EPOCH_PER_TRANSACTION: Final = 2
#: The highest epoch (16 bits).
MAX_EPOCH: Final = (1 << 15) - 1
#: From this epoch on a producer gets another id. The epoch above it is left for the coordinator, to fence with.
LAST_EPOCH: Final = MAX_EPOCH - 1

#: A topic and the index of one of its partitions.
PartitionId = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TransactionValue:
    """The stored state of a transactional id. Times are in milliseconds since 1970.

    previous_id: the producer id before the last change.
    next_id: the producer id that the producer was told to use after the transaction that is being ended, or -1.
    last_epoch: the epoch before the last one, for producers that repeat a request; it is not stored.
    version: the version of transactions that the producer uses.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[PartitionId] = frozenset()
    started_ms: int = NONE_YET
    previous_id: int = NONE_YET
    next_id: int = NONE_YET
    last_epoch: int = NONE_YET
    version: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether the producer id has no further epoch for producers."""
        return self.epoch >= LAST_EPOCH


class ProducerAnswer(NamedTuple):
    """An error code, or NONE with the producer id and epoch to use."""

    error: ErrorCode
    producer_id: int = NONE_YET
    epoch: int = NONE_YET
