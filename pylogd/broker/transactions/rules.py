"""Decide what a producer may do. These are pure functions that return NONE, or Kafka's error code.

Rules: a change that is being written excludes all others. They are answered CONCURRENT_TRANSACTIONS, and clients try
again.
Source: Kafka's TransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from pylogd.base.errors import ErrorCode
from pylogd.broker.transactions.states import TransactionState
from pylogd.broker.transactions.values import (
    EPOCH_PER_TRANSACTION,
    LAST_EPOCH,
    NONE_YET,
    PartitionId,
    TransactionValue,
)

_S = TransactionState
_NONE, _CONCURRENT, _INVALID = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
_COMPLETE = (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
_FENCED, _UNMAPPED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING


def may_initialize(value: TransactionValue, pending: bool, expected: tuple[int, int] | None) -> ErrorCode:
    """Return NONE if a producer may have an epoch, or may fence the transaction that is open.

    expected: the producer id and epoch that the producer reports (KIP-360), None if it reports none.
    """
    if pending:
        return _CONCURRENT
    if expected is not None:
        producer_id, epoch = expected
        repeats = producer_id == value.previous_id and epoch >= LAST_EPOCH
        if value.epoch != NONE_YET and producer_id != value.producer_id and not repeats:
            return _FENCED
        if value.state in _COMPLETE and _has_moved(value, producer_id, epoch):
            return _NONE
    if value.state.prepared:
        return _CONCURRENT
    if expected is None or value.epoch == NONE_YET or expected[1] == value.epoch:
        return _NONE
    # An open transaction does not belong to a producer with another epoch.
    repeats = value.state is not _S.ONGOING and expected[1] == value.last_epoch
    return _NONE if repeats else _FENCED


def _has_moved(value: TransactionValue, producer_id: int, epoch: int) -> bool:
    """Whether the end of this producer's last transaction gave it another id, with which nothing has happened yet."""
    return value.previous_id == producer_id and epoch >= LAST_EPOCH and value.epoch == 0


def may_add(
    value: TransactionValue, pending: bool, producer_id: int, epoch: int, partitions: AbstractSet[PartitionId]
) -> ErrorCode | None:
    """Return None if the partitions are to be added, NONE if they are in the transaction, else an error code."""
    if pending:  # this comes first, since a producer may have been told another id that is not in effect yet
        return _CONCURRENT
    if value.producer_id != producer_id:
        return _UNMAPPED
    if value.epoch != epoch:
        return _FENCED
    if value.state.prepared:
        return _CONCURRENT
    return _NONE if value.state is _S.ONGOING and partitions <= value.partitions else None


def verify(value: TransactionValue, producer_id: int, epoch: int) -> ErrorCode:
    """Return NONE if this producer's transaction may have partitions, else an error code."""
    if value.producer_id != producer_id:
        return _UNMAPPED
    if value.epoch != epoch:
        return _FENCED
    return _CONCURRENT if value.state.prepared else _NONE


def may_end(
    value: TransactionValue, pending: bool, producer_id: int, epoch: int, commit: bool, version: int
) -> ErrorCode | None:
    """Return None if the transaction may be ended, NONE if this request has ended it before, or else an error code.

    version: the version of transactions that the producer uses.
    """
    if version >= EPOCH_PER_TRANSACTION:
        return _may_end_with_epochs(value, pending, producer_id, epoch, commit)
    if value.producer_id != producer_id:
        return _UNMAPPED
    if value.epoch != epoch:
        return _FENCED
    if pending:
        return _CONCURRENT
    if value.state is _S.ONGOING:
        return None
    if value.state is (_S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT):
        return _NONE
    return _CONCURRENT if value.state is (_S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT) else _INVALID


def _may_end_with_epochs(
    value: TransactionValue, pending: bool, producer_id: int, epoch: int, commit: bool
) -> ErrorCode | None:
    """Do the work of `may_end` for transactions whose end raises the epoch.

    A request with the previous epoch repeats the last end. A pending change is checked before the epoch: while the last
    end is pending, the producer already has the answer, and so the next epoch, and may abort again before anything was
    sent (KAFKA-18464).

    A commit after an abort by the coordinator itself, such as at a timeout, also has the previous epoch, and is
    answered INVALID_TXN_STATE, as in Kafka 4.3. (Later releases answer PRODUCER_FENCED, KAFKA-20785.)
    """
    moved = _has_moved(value, producer_id, epoch)
    repeats = moved or value.epoch == epoch + 1
    if value.producer_id != producer_id and not moved:
        return _CONCURRENT if pending and value.next_id == producer_id else _UNMAPPED
    if pending:
        return _CONCURRENT
    if not (repeats if value.state.prepared else repeats or epoch == value.epoch):
        return _FENCED
    if value.state is _S.ONGOING or (value.state is _S.EMPTY and not commit):
        return None if epoch == value.epoch else _FENCED
    if value.state.prepared:
        return _CONCURRENT if value.state is (_S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT) else _INVALID
    if value.state is _S.EMPTY:
        return _INVALID if epoch == value.epoch else _FENCED
    if repeats:
        return _NONE if value.state is (_S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT) else _INVALID
    return _INVALID if commit else None
