"""The states of a transactional producer, and the inputs that change them."""

from __future__ import annotations

from enum import Enum

from pylogd.base.machine import MachineTable


class TransactionState(Enum):
    """The state of a transactional producer."""

    NEW = "Has no producer id; other producers with its transactional id are not fenced yet."
    INITIALIZING = "Asks for a producer id, which fences earlier producers and ends their transactions."
    READY = "Has a producer id, and no transaction is open."
    OPEN = "A transaction is open: records and offsets are accepted."
    COMMITTING = "Sends the queued records, then asks the coordinator to commit."
    BROKEN = "A part of the transaction failed: it can only be aborted."
    ABORTING = "Has dropped the queued records. When no request is in flight, it asks the coordinator to abort."
    RENEWING = (
        "The transaction has ended. The producer asks for another epoch, in which sequence numbers start at 0 again."
    )
    FAILED = "Fenced, not authorized, or in a state that the coordinator does not accept: it can only be closed."


class TransactionInput(Enum):
    """An event of a transactional producer."""

    INITIALIZE = "The application uses the producer for the first time."
    ID_GIVEN = "InitProducerId was answered with a producer id and an epoch."
    BEGIN = "The application begins a transaction."
    COMMIT = "The application commits."
    ABORT = "The application aborts."
    BROKE = "A record or an offset can't be written, or the coordinator asks for an abort."
    ENDED = "EndTxn was answered, or there was nothing to end."
    ENDED_WITH_OLD_EPOCH = "As ENDED, and another epoch is needed before the next transaction."
    FAILED = "An error after which this producer can't be used any more."


_State, _Input = TransactionState, TransactionInput

TRANSACTION = MachineTable(
    "Transactional producer",
    "A producer with a transactional id, and its current transaction.",
    _State.NEW,
    {
        _State.NEW: {_Input.INITIALIZE: _State.INITIALIZING},
        _State.INITIALIZING: {_Input.ID_GIVEN: _State.READY},
        _State.READY: {_Input.BEGIN: _State.OPEN},
        _State.OPEN: {
            _Input.COMMIT: _State.COMMITTING,
            _Input.ABORT: _State.ABORTING,
            _Input.BROKE: _State.BROKEN,
        },
        _State.COMMITTING: {
            _Input.BROKE: _State.BROKEN,
            _Input.ENDED: _State.READY,
            _Input.ENDED_WITH_OLD_EPOCH: _State.RENEWING,
        },
        _State.BROKEN: {_Input.ABORT: _State.ABORTING, _Input.BROKE: _State.BROKEN},
        _State.ABORTING: {
            _Input.BROKE: _State.ABORTING,
            _Input.ENDED: _State.READY,
            _Input.ENDED_WITH_OLD_EPOCH: _State.RENEWING,
        },
        _State.RENEWING: {_Input.ID_GIVEN: _State.READY},
        _State.FAILED: {},
    },
    {_Input.FAILED: _State.FAILED},
)


class CoordinatorKnowledge(Enum):
    """Whether the coordinator knows of the transaction that is open or being ended."""

    NONE = "No request of the transaction was made: there is nothing to end."
    POSSIBLE = "A request was made that has no answer yet, or batches were sent."
    CERTAIN = "A request of the transaction was answered without an error."


class CoordinatorEvent(Enum):
    """An event that changes what the coordinator knows."""

    ASKED = "A request was made, or batches are sent."
    CONFIRMED = "A request was answered without an error."
    ENDED = "The transaction has ended."


_Known, _Event = CoordinatorKnowledge, CoordinatorEvent

KNOWLEDGE = MachineTable(
    "Knowledge of the transaction coordinator",
    "Whether the coordinator knows of a producer's current transaction.",
    _Known.NONE,
    {
        _Known.NONE: {_Event.ASKED: _Known.POSSIBLE},
        _Known.POSSIBLE: {_Event.ASKED: _Known.POSSIBLE},
        _Known.CERTAIN: {_Event.ASKED: _Known.CERTAIN},
    },
    {_Event.CONFIRMED: _Known.CERTAIN, _Event.ENDED: _Known.NONE},
)

#: A transaction is open or being ended: the application has to end it, or to wait for its end.
UNFINISHED = frozenset({_State.OPEN, _State.COMMITTING, _State.BROKEN, _State.ABORTING, _State.RENEWING})
#: Batches may be sent. This is a tuple, which is searched by identity, because it is used for each batch.
SENDING = (_State.OPEN, _State.COMMITTING)
#: A request to the coordinator is repeated until it is answered.
ENDING = frozenset({_State.COMMITTING, _State.ABORTING, _State.RENEWING})
