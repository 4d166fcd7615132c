"""Count the requests of clients and followers for each partition, except those that the fast paths count.

As in Kafka's brokers, a request fails for a partition if the broker could not serve it for a reason that needs
attention. The codes in `EXPECTED_OF_PRODUCE` and `EXPECTED_OF_FETCH` are told to the client, but are not failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from pylogd.base.errors import ErrorCode
from pylogd.broker.replica.partition import Partition
from pylogd.wire.messages.fetch import PartitionData

if TYPE_CHECKING:
    from pylogd.broker.replica.replication_throttle import ReplicaThrottle

EXPECTED_OF_PRODUCE: Final = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR,
})  # fmt: skip
EXPECTED_OF_FETCH: Final = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.OFFSET_OUT_OF_RANGE,
})  # fmt: skip


def count_refused_append(partition: Partition, code: int) -> None:
    """Count an append that was refused with this code."""
    partition.failed_appends += code not in EXPECTED_OF_PRODUCE


def count_served(
    served: Iterable[tuple[Any, PartitionData]],
    find: Callable[[Any], Partition | None],
    follower: int,
    throttle: ReplicaThrottle,
) -> None:
    """Count the partitions in the answer to a fetch.

    served: entries of partitions, each with its answer.
    find: returns a partition by topic and index.
    follower: the node id of the follower; negative for a client.
    """
    for entry, data in served:
        code, records = data.error_code, data.records
        if not (code or records) or (partition := find((entry.topic, data.partition_index))) is None:
            continue
        size = len(records) if records else 0
        if code:
            partition.fetch_errors += 1
            partition.failed_fetches += code not in EXPECTED_OF_FETCH
        elif follower < 0:
            partition.fetches += 1
            partition.fetched_bytes += size
        else:
            partition.copies += 1
            throttle.note_sent(partition, follower, size)
