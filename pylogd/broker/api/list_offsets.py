"""ListOffsets (2), versions 1 to 11: look up the offset of a time stamp, or of a named position.

Behaviour: a time stamp is answered with the first record at or after it, and the record's time; -1 if there is none.
Negative numbers are positions:
- -1: the high watermark; for read_committed the last stable offset, after which no record is found then;
- -2: the log start;
- -3 (from version 7 on): the record with the largest time stamp;
- -4 (from version 8 on): the start of the locally stored records;
- -5 (from version 9 on) and -6 (from version 11 on): positions of remote storage, which are answered with -1.
Other negative numbers, and positions that the version does not have, get UNSUPPORTED_VERSION. A follower gets the log
end offset. A client that is not the broker whose id it sends gets CLUSTER_AUTHORIZATION_FAILED. A new leader that does
not know yet what is committed answers OFFSET_NOT_AVAILABLE, below version 5 LEADER_NOT_AVAILABLE (KIP-207). As in
Kafka, a partition that is named more than once gets INVALID_REQUEST. Look-ups that would wait for the disk, decompress
records or read many headers are done in a thread, for two requests of all clients at a time.
Gaps: `timeout_ms` is for remote storage and has no use here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.shares import Crowded
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.api.fast.fetch import READ_COMMITTED
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import in_slices
from pylogd.broker.log.errors import ColdRead, StorageError
from pylogd.broker.replica.partition import NO_EPOCH, Partition
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_FIRST_WITH_EPOCH = 4
_NO_FOLLOWER = -1
_LOOK_UP_WORK = 200  # the work for a partition, as bytes of an answer whose encoding takes as long
_FIRST_NOT_AVAILABLE = 5
#: The first version that knows each position.
_FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class _ColdLookup:
    """A look-up that has to wait for the disk, and the answer that it fills."""

    __slots__ = ("answer", "directory", "end", "partition", "timestamp")

    def __init__(self, partition: Partition, timestamp: int, end: int, answer: ListOffsetsPartitionResponse) -> None:
        self.partition = partition
        self.end = end
        self.directory = partition.log.directory
        self.timestamp = timestamp
        self.answer = answer


@handles(ListOffsetsRequest, 1, 11)
def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse | Deferred[Any]:
    """Return the offsets for every partition of the request."""
    cold: list[_ColdLookup] = []
    response = ListOffsetsResponse()

    def look_up_cold() -> Deferred[None] | None:
        return _in_threads(context, cold) if cold else None

    return in_slices(
        context, request.API_KEY, _answer_all(context, request, response, cold), response, finish=look_up_cold
    )


def _answer_all(
    context: RequestContext, request: ListOffsetsRequest, response: ListOffsetsResponse, cold: list[_ColdLookup]
) -> Iterator[int]:
    # A follower that asks with read_committed is answered like a consumer: with the last stable offset.
    committed = request.isolation_level == READ_COMMITTED
    follower = request.replica_id if not request.isolation_level else _NO_FOLLOWER
    # A broker that is not recognized yet must not mistake the high watermark for the log's end, or it would truncate.
    forged = request.replica_id >= 0 and not context.is_broker(request.replica_id)
    times = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    for topic in request.topics:
        answers: list[ListOffsetsPartitionResponse] = []
        response.topics.append(ListOffsetsTopicResponse(topic.name, answers))
        allowed = context.may_use_topic(AclOperation.DESCRIBE, topic.name)
        for index, wanted in {one.partition_index: one for one in topic.partitions}.items():
            if forged:
                answers.append(ListOffsetsPartitionResponse(index, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
            elif times[topic.name, index] > 1:
                answers.append(ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST))
            elif not allowed:
                answers.append(ListOffsetsPartitionResponse(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:
                answers.append(_answer(context, follower, committed, topic.name, wanted, cold))
            yield _LOOK_UP_WORK


def _answer(
    context: RequestContext, follower: int, committed: bool, topic: str, wanted: ListOffsetsPartition,
    cold: list[_ColdLookup],
) -> ListOffsetsPartitionResponse:  # fmt: skip
    answer = ListOffsetsPartitionResponse(wanted.partition_index)
    partition = context.broker.partitions.by_name.get((topic, wanted.partition_index))
    if partition is None:
        answer.error_code = why_absent(context.broker, topic, wanted.partition_index)
        return answer
    end = -1
    try:
        partition.check_leading()
        end = partition.last_stable_offset if committed else partition.high_watermark
        partition.check_epoch(wanted.current_leader_epoch)
        if wanted.timestamp < 0 and context.version < _FIRST_VERSION.get(wanted.timestamp, context.version + 1):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if wanted.timestamp == LATEST and follower in partition.followers:
            answer.offset, answer.leader_epoch = partition.log.log_end_offset, partition.leader_epoch
        else:
            _look_up(partition, wanted.timestamp, end, answer, allow_cold=False)
    except ColdRead:
        cold.append(_ColdLookup(partition, wanted.timestamp, end, answer))
    except PylogdError as error:
        partition.note_failure(error)
        answer.error_code = explain(error)[0]
        if answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE and context.version < _FIRST_NOT_AVAILABLE:
            answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    if context.version < _FIRST_WITH_EPOCH:
        answer.leader_epoch = NO_EPOCH
    return answer


def _look_up(
    partition: Partition, timestamp: int, end: int, answer: ListOffsetsPartitionResponse, *, allow_cold: bool
) -> None:
    """Fill an answer.

    end: the offset before which the client may see records.
    """
    log = partition.log
    if timestamp == LATEST:
        answer.offset = min(partition.latest_offset, end)
        answer.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = log.log_start_offset
        answer.leader_epoch = log.epochs.epoch_of(answer.offset)
    elif timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        found = (
            log.max_timestamp(allow_cold=allow_cold)
            if timestamp == MAX_TIMESTAMP
            else log.offset_for_timestamp(timestamp, allow_cold=allow_cold)
        )
        if found is not None and found[1] < end:
            answer.timestamp, answer.offset, answer.leader_epoch = found


def _in_threads(context: RequestContext, cold: list[_ColdLookup]) -> Deferred[None]:
    """Fill the answers in threads. If disks have their own threads, each look-up runs in a thread of its disk."""
    with_epoch = context.version >= _FIRST_WITH_EPOCH
    replicas = context.broker.replicas
    by_directory: dict[str | None, list[_ColdLookup]] = {}
    for one in cold:
        by_directory.setdefault(replicas.disk_calls.directory_of(one.directory), []).append(one)

    def refuse(failure: Failure, some: list[_ColdLookup]) -> None:
        crowded = failure.trap(StorageError, Crowded) is Crowded  # a disk was given up, or too many searches wait
        for one in some:
            one.answer.error_code = ErrorCode.REQUEST_TIMED_OUT if crowded else ErrorCode.KAFKA_STORAGE_ERROR

    return gatherResults(
        replicas.look_up(context.share, path, _look_up_cold, some, with_epoch).addErrback(refuse, some)
        for path, some in by_directory.items()
    ).addCallback(lambda _: None)


def _look_up_cold(cold: list[_ColdLookup], with_epoch: bool) -> None:
    """Fill the answers. This runs in a thread; meanwhile nothing else uses the answers."""
    for one in cold:
        try:
            _look_up(one.partition, one.timestamp, one.end, one.answer, allow_cold=True)
        except PylogdError as error:
            one.partition.note_failure(error)
            one.answer.error_code = explain(error)[0]
        if not with_epoch:
            one.answer.leader_epoch = NO_EPOCH
