"""The changes of a transactional id by each event: pure functions from one value to the next.

Rules: each function leads to the state that `states.TRANSACTION` declares, or raises UnexpectedEvent; the callers have
checked the request by `rules`. Epochs of one producer id only grow. A producer is never given an epoch that fences, nor
the highest epoch: when an end reaches it, the producer continues with another id. An earlier release gave producers the
highest epoch; such a transaction ends in it, since there is no higher one.
Source: Kafka's TransactionMetadata; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pylogd.broker.transactions.states import TRANSACTION, TransactionEvent, TransactionState
from pylogd.broker.transactions.values import EPOCH_PER_TRANSACTION, MAX_EPOCH, NONE_YET, PartitionId, TransactionValue


def initialized(value: TransactionValue, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionValue:
    """Give the producer the next epoch, or the present one if it repeats the request that got it this epoch.

    expected_epoch: the epoch that the producer reports (KIP-360), None if it reports none.
    """
    epoch, last, previous_id = value.epoch + 1, NONE_YET, value.producer_id
    if expected_epoch is not None:
        if value.epoch in (NONE_YET, expected_epoch):
            last = value.epoch
        else:
            epoch, last, previous_id = value.epoch, expected_epoch, value.previous_id
    return replace(
        value, state=TRANSACTION.next(value.state, TransactionEvent.INITIALIZED), previous_id=previous_id,
        epoch=epoch, last_epoch=last, timeout_ms=timeout_ms, partitions=frozenset(), started_ms=NONE_YET,
        updated_ms=now_ms, next_id=NONE_YET,
    )  # fmt: skip


def rotated(
    value: TransactionValue, producer_id: int, timeout_ms: int, expected_epoch: int | None, now_ms: int
) -> TransactionValue:
    """Give the producer another id, since the epochs of the present one are used up.

    expected_epoch: the epoch that the producer reports, with which it may repeat the request; None if it reports none.
    """
    return replace(
        value, state=TRANSACTION.next(value.state, TransactionEvent.INITIALIZED), previous_id=value.producer_id,
        producer_id=producer_id, epoch=0, last_epoch=NONE_YET if expected_epoch is None else expected_epoch,
        timeout_ms=timeout_ms, partitions=frozenset(), started_ms=NONE_YET, updated_ms=now_ms, next_id=NONE_YET,
    )  # fmt: skip


def with_partitions(
    value: TransactionValue, partitions: Iterable[PartitionId], version: int, now_ms: int
) -> TransactionValue:
    """Add partitions to the transaction, which begins with the first."""
    begins = value.state is not TransactionState.ONGOING
    return replace(
        value, state=TRANSACTION.next(value.state, TransactionEvent.ADDED), previous_id=value.producer_id,
        partitions=value.partitions.union(partitions), started_ms=now_ms if begins else value.started_ms,
        updated_ms=now_ms, version=version,
    )  # fmt: skip


def ending(value: TransactionValue, commit: bool, version: int, next_id: int, now_ms: int) -> TransactionValue:
    """Decide the outcome. With an epoch per transaction, the markers have the next epoch.

    next_id: the producer id to continue with if the present one has no further epoch, else -1.
    """
    event = TransactionEvent.COMMIT if commit else TransactionEvent.ABORT
    bumps = version >= EPOCH_PER_TRANSACTION
    open_ = value.state is TransactionState.ONGOING
    return replace(
        value, state=TRANSACTION.next(value.state, event), previous_id=value.producer_id, next_id=next_id,
        epoch=min(value.epoch + bumps, MAX_EPOCH), last_epoch=value.epoch if bumps else value.last_epoch,
        started_ms=value.started_ms if open_ else now_ms, updated_ms=now_ms, version=version,
    )  # fmt: skip


def fenced(value: TransactionValue, version: int, next_id: int, now_ms: int) -> TransactionValue:
    """Decide to abort a transaction whose producer must not write any more. The markers have a higher epoch.

    version: the version of transactions in the cluster. With an epoch per transaction, a producer that was only too
        slow may continue: it sends its epoch when it asks for a new one.
    next_id: as for `ending`.
    """
    fence = TRANSACTION.next(value.state, TransactionEvent.FENCE)
    bumps = version >= EPOCH_PER_TRANSACTION
    return replace(
        value, state=TRANSACTION.next(fence, TransactionEvent.ABORT), previous_id=value.producer_id,
        epoch=min(value.epoch + 1, MAX_EPOCH), last_epoch=value.epoch if bumps else NONE_YET, next_id=next_id,
        updated_ms=now_ms, version=version,
    )  # fmt: skip


def completed(value: TransactionValue, now_ms: int) -> TransactionValue:
    """Note that every partition has its marker."""
    moves = value.next_id != NONE_YET and value.version >= EPOCH_PER_TRANSACTION
    return replace(
        value, state=TRANSACTION.next(value.state, TransactionEvent.MARKED), previous_id=value.producer_id,
        producer_id=value.next_id if moves else value.producer_id, epoch=0 if moves else value.epoch,
        next_id=NONE_YET, partitions=frozenset(), updated_ms=now_ms,
    )  # fmt: skip
