"""The states of a transactional id, as a machine; `transitions` computes what changes with each event."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from pylogd.base.machine import MachineTable


class TransactionState(Enum):
    """The state of the transaction of a transactional id."""

    EMPTY = "The producer has its id and epoch, and no transaction yet."
    ONGOING = "A transaction is open: partitions or offsets were added to it."
    PREPARE_COMMIT = "The transaction is decided to be committed; markers are being written to its partitions."
    PREPARE_ABORT = "The transaction is decided to be aborted; markers are being written to its partitions."
    COMPLETE_COMMIT = "The transaction was committed, and every partition has its marker."
    COMPLETE_ABORT = "The transaction was aborted, and every partition has its marker."
    DEAD = "The transactional id has expired and is being removed."
    PREPARE_EPOCH_FENCE = "An open transaction is about to be aborted with a higher epoch. Never stored."

    @property
    def kafka_name(self) -> str:
        """The state's name in answers to clients."""
        return _KAFKA_NAMES[self]

    @property
    def code(self) -> int:
        """The state's number in stored records."""
        return _CODES[self]

    @property
    def prepared(self) -> bool:
        """Whether the outcome is decided, and markers are still to be written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        """Whether the transactional id may be removed after a time without changes."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


_KAFKA_NAMES: Mapping[TransactionState, str] = MappingProxyType(
    {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
)
_CODES: Mapping[TransactionState, int] = MappingProxyType({state: code for code, state in enumerate(TransactionState)})
#: The states by their number in stored records, and by the name that clients send.
BY_CODE: Mapping[int, TransactionState] = MappingProxyType({code: state for state, code in _CODES.items()})
BY_NAME: Mapping[str, TransactionState] = MappingProxyType({name: state for state, name in _KAFKA_NAMES.items()})


class TransactionEvent(Enum):
    """An event that changes the state of a transactional id."""

    INITIALIZED = "A producer asks for its id and epoch."
    ADDED = "Partitions, or the offsets of a group, are added to the transaction."
    COMMIT = "The producer commits."
    ABORT = "The producer aborts, or the abort that fences it is decided."
    FENCE = "Another producer asks for the id, or the transaction has timed out."
    MARKED = "Every partition has its marker."
    EXPIRED = "There was no change for `transactional.id.expiration.ms`."


_S, _E = TransactionState, TransactionEvent

#: The events that are allowed between two transactions. Only KIP-890's producers may abort without a transaction.
_RESTING = {
    _E.INITIALIZED: _S.EMPTY, _E.ADDED: _S.ONGOING, _E.ABORT: _S.PREPARE_ABORT, _E.EXPIRED: _S.DEAD,
}  # fmt: skip

TRANSACTION = MachineTable(
    "Transactional id",
    "A producer's transactional id at its coordinator. A state takes effect when every in-sync replica has its "
    "record.",
    _S.EMPTY,
    {
        _S.EMPTY: _RESTING,
        _S.ONGOING: {
            _E.ADDED: _S.ONGOING, _E.COMMIT: _S.PREPARE_COMMIT, _E.ABORT: _S.PREPARE_ABORT,
            _E.FENCE: _S.PREPARE_EPOCH_FENCE,
        },
        _S.PREPARE_COMMIT: {_E.MARKED: _S.COMPLETE_COMMIT},
        _S.PREPARE_ABORT: {_E.MARKED: _S.COMPLETE_ABORT},
        _S.COMPLETE_COMMIT: _RESTING,
        _S.COMPLETE_ABORT: _RESTING,
        _S.DEAD: {},
        _S.PREPARE_EPOCH_FENCE: {_E.ABORT: _S.PREPARE_ABORT},
    },
)  # fmt: skip
