"""WriteTxnMarkers, API key 27, versions 1-2. Writes the end of transactions to partitions. For transaction coordinators
only.

Generated from protocol/apis/write_txn_markers.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class WritableTxnMarkerTopic(Message):
    """Partitions of a topic."""

    __slots__ = ("name", "partition_indexes")

    #: The topic name.
    name: str
    #: The indexes of the partitions.
    partition_indexes: list[int]

    def __init__(self, name: str = "", partition_indexes: list[int] = UNSET) -> None:
        self.name = name
        self.partition_indexes = [] if partition_indexes is UNSET else partition_indexes


class WritableTxnMarker(Message):
    """The end of a transaction."""

    __slots__ = (
        "producer_id",
        "producer_epoch",
        "transaction_result",
        "topics",
        "coordinator_epoch",
        "transaction_version",
    )

    #: The producer id.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int
    #: Whether the transaction was committed; false if it was aborted.
    transaction_result: bool
    #: The partitions to write to, by topic.
    topics: list[WritableTxnMarkerTopic]
    #: The leader epoch of the coordinator's partition; an older one is refused.
    coordinator_epoch: int
    #: The version of transactions that the producer uses; from 2 on each transaction has an epoch of its own. Versions
    #: 2+.
    transaction_version: int

    def __init__(
        self,
        producer_id: int = 0,
        producer_epoch: int = 0,
        transaction_result: bool = False,
        topics: list[WritableTxnMarkerTopic] = UNSET,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transaction_result = transaction_result
        self.topics = [] if topics is UNSET else topics
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version


class WritableTxnMarkerPartitionResult(Message):
    """The result for a partition."""

    __slots__ = ("partition_index", "error_code")

    #: The index of the partition.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, partition_index: int = 0, error_code: int = 0) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class WritableTxnMarkerTopicResult(Message):
    """The results for a topic."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The result for each partition.
    partitions: list[WritableTxnMarkerPartitionResult]

    def __init__(self, name: str = "", partitions: list[WritableTxnMarkerPartitionResult] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class WritableTxnMarkerResult(Message):
    """The result for a marker."""

    __slots__ = ("producer_id", "topics")

    #: The producer id.
    producer_id: int
    #: The results, by topic.
    topics: list[WritableTxnMarkerTopicResult]

    def __init__(self, producer_id: int = 0, topics: list[WritableTxnMarkerTopicResult] = UNSET) -> None:
        self.producer_id = producer_id
        self.topics = [] if topics is UNSET else topics


class WriteTxnMarkersRequest(Message):
    """The request of WriteTxnMarkers."""

    __slots__ = ("markers",)

    API_KEY: ClassVar[int] = 27
    API_NAME: ClassVar[str] = "WriteTxnMarkers"

    #: The markers to write.
    markers: list[WritableTxnMarker]

    def __init__(self, markers: list[WritableTxnMarker] = UNSET) -> None:
        self.markers = [] if markers is UNSET else markers


class WriteTxnMarkersResponse(Message):
    """The response of WriteTxnMarkers."""

    __slots__ = ("markers",)

    API_KEY: ClassVar[int] = 27
    API_NAME: ClassVar[str] = "WriteTxnMarkers"

    #: The result for each marker.
    markers: list[WritableTxnMarkerResult]

    def __init__(self, markers: list[WritableTxnMarkerResult] = UNSET) -> None:
        self.markers = [] if markers is UNSET else markers
