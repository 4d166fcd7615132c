"""ListTransactions, API key 66, versions 0-2. Lists the transactional ids that a broker coordinates.

Generated from protocol/apis/list_transactions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class TransactionState(Message):
    """A transactional id."""

    __slots__ = ("transactional_id", "producer_id", "transaction_state")

    #: The transactional id.
    transactional_id: str
    #: The producer id.
    producer_id: int
    #: The state of its transaction.
    transaction_state: str

    def __init__(self, transactional_id: str = "", producer_id: int = 0, transaction_state: str = "") -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.transaction_state = transaction_state


class ListTransactionsRequest(Message):
    """The request of ListTransactions."""

    __slots__ = ("state_filters", "producer_id_filters", "duration_filter", "transactional_id_pattern")

    API_KEY: ClassVar[int] = 66
    API_NAME: ClassVar[str] = "ListTransactions"

    #: Only ids in these states; all if empty.
    state_filters: list[str]
    #: Only ids of these producer ids; all if empty.
    producer_id_filters: list[int]
    #: Only transactions that have been open for so many milliseconds; -1 for all. Versions 1+.
    duration_filter: int
    #: Only ids that match this regular expression (RE2); null or empty for all. Versions 2+.
    transactional_id_pattern: str | None

    def __init__(
        self,
        state_filters: list[str] = UNSET,
        producer_id_filters: list[int] = UNSET,
        duration_filter: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> None:
        self.state_filters = [] if state_filters is UNSET else state_filters
        self.producer_id_filters = [] if producer_id_filters is UNSET else producer_id_filters
        self.duration_filter = duration_filter
        self.transactional_id_pattern = transactional_id_pattern


class ListTransactionsResponse(Message):
    """The response of ListTransactions."""

    __slots__ = ("throttle_time_ms", "error_code", "unknown_state_filters", "transaction_states")

    API_KEY: ClassVar[int] = 66
    API_NAME: ClassVar[str] = "ListTransactions"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: Filters of the request that are no states.
    unknown_state_filters: list[str]
    #: The transactional ids.
    transaction_states: list[TransactionState]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        unknown_state_filters: list[str] = UNSET,
        transaction_states: list[TransactionState] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.unknown_state_filters = [] if unknown_state_filters is UNSET else unknown_state_filters
        self.transaction_states = [] if transaction_states is UNSET else transaction_states
