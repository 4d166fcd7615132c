"""The values that transactions work with: reactions to error codes, operations of the application, the producer's id.

The tables here are the only place that says what an error code means to a transactional producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.client.core.consumer.options import Offsets
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.core.producer.transaction_states import TransactionState
from pylogd.wire.messages.end_txn import EndTxnRequest

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT})
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_ID_FORGOTTEN = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID})
_FINAL = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
#: Errors of a batch. For an outdated epoch, EndTxn's answer decides.
FINAL_FOR_BATCHES = _FINAL - {ErrorCode.INVALID_TXN_STATE} | {ErrorCode.PRODUCER_FENCED}


class Action(Enum):
    """The reaction to an error code."""

    RETRY = "Send the request again, a little later."
    FIND = "Look up the coordinator, then send the request again."
    ABORT = "The transaction can only be aborted."
    FENCED = "Another producer has taken over."
    FAIL = "The producer can do nothing more."


@dataclass(slots=True, eq=False)
class Operation:
    """An operation that the application waits for, and its error."""

    done: bool = False
    error: PylogdError | None = None

    def end(self, error: PylogdError | None = None) -> None:
        """Set the result, unless it is set already."""
        if not self.done:
            self.done, self.error = True, error


@dataclass(slots=True, eq=False)
class TransactionOutcome:
    """How a transaction ended.

    committed: None while it has not ended; False also if the end is unknown.
    """

    committed: bool | None = None


@dataclass(slots=True, eq=False)
class PendingOffsets:
    """Offsets to commit with the transaction that are not acknowledged yet."""

    left: dict[TopicPartition, OffsetAndMetadata]
    group: GroupMetadata
    operation: Operation = field(default_factory=Operation)


class OffsetsSource(Protocol):
    """A consumer whose offsets a transaction can commit."""

    def offsets_to_send(self) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
        """Return the offsets after the last returned records, and the group member that commits them."""
        ...


def as_offsets(
    source: OffsetsSource | Offsets, group: GroupMetadata | None
) -> tuple[dict[TopicPartition, OffsetAndMetadata], GroupMetadata]:
    """Return given offsets, or a consumer's, with the group member that commits them. Raises ValueError."""
    if isinstance(source, Mapping):
        if group is None:
            raise ValueError("offsets need the group_metadata of the consumer that has read up to them")
        return {
            TopicPartition(*partition): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            for partition, offset in source.items()
        }, group
    return source.offsets_to_send()


class TransactionOwner(Protocol):
    """The producer whose transactions these are."""

    def transaction_changed(self) -> None:
        """Follow a change of state, after which records may be accepted, or may no longer be."""
        ...

    def producer_id_given(self, producer_id: int, epoch: int) -> None:
        """Number batches with another producer id or epoch from now on."""
        ...

    def drop_batches(self, error: PylogdError) -> bool:
        """Fail the batches that are not in flight. Return whether one of them has a sequence number."""
        ...


def action_for(code: ErrorCode, api: type[Any], state: TransactionState, *, confirmed: bool) -> Action:
    """Return the reaction to an error code in a state.

    confirmed: whether the coordinator certainly knows of the transaction.
    """
    if code in _MOVED:
        return Action.FIND
    if code.retriable:
        return Action.RETRY
    if code in FENCED:
        return Action.FENCED
    if api is EndTxnRequest:
        aborting = state is TransactionState.ABORTING
        nothing_begun = code is ErrorCode.INVALID_TXN_STATE and aborting and not confirmed
        abortable = nothing_begun or code in _ID_FORGOTTEN
        return Action.ABORT if abortable or (code is ErrorCode.TRANSACTION_ABORTABLE and not aborting) else Action.FAIL
    if code in _FINAL or state in (TransactionState.INITIALIZING, TransactionState.RENEWING):
        return Action.FAIL
    return Action.ABORT
