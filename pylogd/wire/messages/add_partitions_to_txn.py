"""AddPartitionsToTxn, API key 24, versions 0-5. Adds partitions to a transaction, before its first records are sent to
them; brokers ask whether they are in it.

Generated from protocol/apis/add_partitions_to_txn.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class AddPartitionsToTxnTopic(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The indexes of the partitions.
    partitions: list[int]

    def __init__(self, name: str = "", partitions: list[int] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class AddPartitionsToTxnTransaction(Message):
    """A transaction, and partitions to add to it."""

    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "verify_only", "topics")

    #: The transactional id.
    transactional_id: str
    #: The producer id.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int
    #: Whether the partitions are not to be added: the answer says if they are in the transaction.
    verify_only: bool
    #: The partitions, by topic.
    topics: list[AddPartitionsToTxnTopic]

    def __init__(
        self,
        transactional_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        verify_only: bool = False,
        topics: list[AddPartitionsToTxnTopic] = UNSET,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.verify_only = verify_only
        self.topics = [] if topics is UNSET else topics


class AddPartitionsToTxnPartitionResult(Message):
    """The result for a partition."""

    __slots__ = ("partition_index", "partition_error_code")

    #: The index of the partition.
    partition_index: int
    #: The error code; 0 if all went well.
    partition_error_code: int

    def __init__(self, partition_index: int = 0, partition_error_code: int = 0) -> None:
        self.partition_index = partition_index
        self.partition_error_code = partition_error_code


class AddPartitionsToTxnTopicResult(Message):
    """The results for a topic."""

    __slots__ = ("name", "results_by_partition")

    #: The topic name.
    name: str
    #: The result for each partition.
    results_by_partition: list[AddPartitionsToTxnPartitionResult]

    def __init__(self, name: str = "", results_by_partition: list[AddPartitionsToTxnPartitionResult] = UNSET) -> None:
        self.name = name
        self.results_by_partition = [] if results_by_partition is UNSET else results_by_partition


class AddPartitionsToTxnResult(Message):
    """The result for a transaction."""

    __slots__ = ("transactional_id", "topic_results")

    #: The transactional id.
    transactional_id: str
    #: The results, by topic.
    topic_results: list[AddPartitionsToTxnTopicResult]

    def __init__(self, transactional_id: str = "", topic_results: list[AddPartitionsToTxnTopicResult] = UNSET) -> None:
        self.transactional_id = transactional_id
        self.topic_results = [] if topic_results is UNSET else topic_results


class AddPartitionsToTxnRequest(Message):
    """The request of AddPartitionsToTxn."""

    __slots__ = (
        "transactions",
        "v3_and_below_transactional_id",
        "v3_and_below_producer_id",
        "v3_and_below_producer_epoch",
        "v3_and_below_topics",
    )

    API_KEY: ClassVar[int] = 24
    API_NAME: ClassVar[str] = "AddPartitionsToTxn"

    #: The transactions; clients send one. Versions 4+.
    transactions: list[AddPartitionsToTxnTransaction]
    #: The transactional id. Versions 0-3.
    v3_and_below_transactional_id: str
    #: The producer id. Versions 0-3.
    v3_and_below_producer_id: int
    #: The epoch of the producer id. Versions 0-3.
    v3_and_below_producer_epoch: int
    #: The partitions to add, by topic. Versions 0-3.
    v3_and_below_topics: list[AddPartitionsToTxnTopic]

    def __init__(
        self,
        transactions: list[AddPartitionsToTxnTransaction] = UNSET,
        v3_and_below_transactional_id: str = "",
        v3_and_below_producer_id: int = 0,
        v3_and_below_producer_epoch: int = 0,
        v3_and_below_topics: list[AddPartitionsToTxnTopic] = UNSET,
    ) -> None:
        self.transactions = [] if transactions is UNSET else transactions
        self.v3_and_below_transactional_id = v3_and_below_transactional_id
        self.v3_and_below_producer_id = v3_and_below_producer_id
        self.v3_and_below_producer_epoch = v3_and_below_producer_epoch
        self.v3_and_below_topics = [] if v3_and_below_topics is UNSET else v3_and_below_topics


class AddPartitionsToTxnResponse(Message):
    """The response of AddPartitionsToTxn."""

    __slots__ = ("throttle_time_ms", "error_code", "results_by_transaction", "results_by_topic_v3_and_below")

    API_KEY: ClassVar[int] = 24
    API_NAME: ClassVar[str] = "AddPartitionsToTxn"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code for the request as a whole; 0 if there is none. Versions 4+.
    error_code: int
    #: The result for each transaction. Versions 4+.
    results_by_transaction: list[AddPartitionsToTxnResult]
    #: The results, by topic. Versions 0-3.
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        results_by_transaction: list[AddPartitionsToTxnResult] = UNSET,
        results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.results_by_transaction = [] if results_by_transaction is UNSET else results_by_transaction
        self.results_by_topic_v3_and_below = (
            [] if results_by_topic_v3_and_below is UNSET else results_by_topic_v3_and_below
        )
