"""The requests of a transactional producer, and the error codes in their answers (KIP-98, KIP-447, KIP-890).

Plain functions, without I/O. With `transaction.version` 1 the client adds partitions and groups to its transaction
itself. With 2 the leaders of partitions and the coordinators of groups do this at the first request to them, and EndTxn
raises the producer's epoch, so that a late batch of an ended transaction is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

#: The name of the feature whose level decides between the two generations of the protocol.
FEATURE = "transaction.version"
#: For each level, the last version of the requests that differ; None: the highest common version.
PRODUCE_UNTIL: Mapping[int, int | None] = {1: 11, 2: None}
END_UNTIL: Mapping[int, int | None] = {1: 4, 2: None}
COMMIT_OFFSETS_UNTIL: Mapping[int, int | None] = {1: 4, 2: None}
#: From version 4 on AddPartitionsToTxn is for brokers.
ADD_PARTITIONS_UNTIL = 3
#: The key types of FindCoordinator.
GROUP_KEY, TRANSACTION_KEY = 0, 1
_MANY_KEYS_FROM = 4  # a version of FindCoordinator
_MEMBERS_FROM = 3  # a version of TxnOffsetCommit


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """The producer that sends a transactional request."""

    transactional_id: str
    producer_id: int
    epoch: int


def find_coordinator(key: str, key_type: int, version: int) -> FindCoordinatorRequest:
    """Return the request for the coordinator of a group or of a transactional id."""
    return find_coordinators([key], key_type, version)


def find_coordinators(keys: Sequence[str], key_type: int, version: int) -> FindCoordinatorRequest:
    """Return the request for the coordinators of groups or of transactional ids.

    Before version 4 a request has only one key: the first.
    """
    if version < _MANY_KEYS_FROM:
        return FindCoordinatorRequest(key=keys[0], key_type=key_type)
    return FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type)


def add_partitions(producer: ProducerIdentity, partitions: Iterable[TopicPartition]) -> AddPartitionsToTxnRequest:
    """Return the request that adds partitions to the transaction, before anything is sent to them."""
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for name, index in partitions:
        topics.setdefault(name, AddPartitionsToTxnTopic(name)).partitions.append(index)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=list(topics.values()),
    )


def add_partitions_codes(response: AddPartitionsToTxnResponse) -> list[int]:
    """Return the error code of each partition."""
    return [
        answer.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for answer in topic.results_by_partition
    ]


def commit_offsets(
    producer: ProducerIdentity,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    version: int,
) -> TxnOffsetCommitRequest:
    """Return the request that commits a group's offsets if the transaction is committed."""
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (name, index), (offset, metadata, leader_epoch) in offsets.items():
        topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name))
        topic.partitions.append(TxnOffsetCommitRequestPartition(index, offset, leader_epoch, metadata))
    request = TxnOffsetCommitRequest(
        producer.transactional_id, group.group_id, producer.producer_id, producer.epoch, topics=list(topics.values())
    )
    if version >= _MEMBERS_FROM:
        request.generation_id, request.member_id = group.generation, group.member_id
        request.group_instance_id = group.instance_id
    return request


def offset_codes(response: TxnOffsetCommitResponse) -> dict[TopicPartition, int]:
    """Return the error code of each partition."""
    return {
        TopicPartition(topic.name, answer.partition_index): answer.error_code
        for topic in response.topics
        for answer in topic.partitions
    }


def error_code(response: Any) -> list[int]:
    """Return the error code of a response that has a single one."""
    return [response.error_code]
