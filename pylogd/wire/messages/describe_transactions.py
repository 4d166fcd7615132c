"""DescribeTransactions, API key 65, versions 0. Asks transaction coordinators for the state of transactions.

Generated from protocol/apis/describe_transactions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class TopicData(Message):
    """Partitions of a topic."""

    __slots__ = ("topic", "partitions")

    #: The topic name.
    topic: str
    #: The indexes of the partitions.
    partitions: list[int]

    def __init__(self, topic: str = "", partitions: list[int] = UNSET) -> None:
        self.topic = topic
        self.partitions = [] if partitions is UNSET else partitions


class TransactionState(Message):
    """The state of a transactional id."""

    __slots__ = (
        "error_code",
        "transactional_id",
        "transaction_state",
        "transaction_timeout_ms",
        "transaction_start_time_ms",
        "producer_id",
        "producer_epoch",
        "topics",
    )

    #: The error code; 0 if all went well.
    error_code: int
    #: The transactional id.
    transactional_id: str
    #: The state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, PrepareEpochFence or Dead.
    transaction_state: str
    #: After how many milliseconds the transaction is aborted.
    transaction_timeout_ms: int
    #: When the transaction began in milliseconds since 1970; -1 if none is open.
    transaction_start_time_ms: int
    #: The producer id.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int
    #: The partitions of the transaction, by topic.
    topics: list[TopicData]

    def __init__(
        self,
        error_code: int = 0,
        transactional_id: str = "",
        transaction_state: str = "",
        transaction_timeout_ms: int = 0,
        transaction_start_time_ms: int = 0,
        producer_id: int = 0,
        producer_epoch: int = 0,
        topics: list[TopicData] = UNSET,
    ) -> None:
        self.error_code = error_code
        self.transactional_id = transactional_id
        self.transaction_state = transaction_state
        self.transaction_timeout_ms = transaction_timeout_ms
        self.transaction_start_time_ms = transaction_start_time_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.topics = [] if topics is UNSET else topics


class DescribeTransactionsRequest(Message):
    """The request of DescribeTransactions."""

    __slots__ = ("transactional_ids",)

    API_KEY: ClassVar[int] = 65
    API_NAME: ClassVar[str] = "DescribeTransactions"

    #: The transactional ids.
    transactional_ids: list[str]

    def __init__(self, transactional_ids: list[str] = UNSET) -> None:
        self.transactional_ids = [] if transactional_ids is UNSET else transactional_ids


class DescribeTransactionsResponse(Message):
    """The response of DescribeTransactions."""

    __slots__ = ("throttle_time_ms", "transaction_states")

    API_KEY: ClassVar[int] = 65
    API_NAME: ClassVar[str] = "DescribeTransactions"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The answer for each id.
    transaction_states: list[TransactionState]

    def __init__(self, throttle_time_ms: int = 0, transaction_states: list[TransactionState] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.transaction_states = [] if transaction_states is UNSET else transaction_states
