"""DeleteRecords (21), versions 0 to 2: delete all records before an offset.

Behaviour: the log start offset moves to the given offset, which must lie within the log; -1 means the high watermark.
An offset before the log start changes nothing and gets no error. A partition is answered, with the new start, once
every in-sync replica has the same start. If that takes longer than `timeout_ms`, it gets REQUEST_TIMED_OUT. A topic
whose `cleanup.policy` has no `delete` is refused with POLICY_VIOLATION, an internal topic with INVALID_TOPIC_EXCEPTION.
The work is done in a thread. The answer is sent when the new starts are on the disk, so a killed broker does not serve
the records again. (Kafka writes them once a minute.)
Gaps: none.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain, why_absent
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.log.errors import OffsetOutOfRange, StorageFailure
from pylogd.broker.replica.partition import Partition
from pylogd.broker.security.authorizer import AclOperation
from pylogd.store.paths import INTERNAL_TOPICS
from pylogd.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

log = Logger()

HIGH_WATERMARK = -1
_UNKNOWN = -1


@handles(DeleteRecordsRequest, 0, 2)
def delete_records(context: RequestContext, request: DeleteRecordsRequest) -> Deferred[DeleteRecordsResponse]:
    """Move the start of every log that the request names."""
    return Deferred.fromCoroutine(_delete(context, request))


async def _delete(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    topics = []
    pace = Pace(context)
    for topic in request.topics:
        if not context.may_change_topic(AclOperation.DELETE, topic.name):
            refused = [
                DeleteRecordsPartitionResult(one.partition_index, _UNKNOWN, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                for one in topic.partitions
            ]
            topics.append(DeleteRecordsTopicResult(topic.name, refused))
            continue
        results = []
        for wanted in topic.partitions:
            await pace.step()
            results.append(
                await _delete_one(context, topic.name, wanted.partition_index, wanted.offset, request.timeout_ms)
            )
        topics.append(DeleteRecordsTopicResult(topic.name, results))
    try:
        await context.broker.in_thread(context.broker.logs.checkpoint)
    except StorageFailure as error:  # the disk may be full; the deletion makes space
        log.warn("The new starts of logs are in effect, but not on the disk: {error}", error=error)
    return DeleteRecordsResponse(topics=topics)


async def _delete_one(
    context: RequestContext, topic: str, index: int, offset: int, timeout_ms: int
) -> DeleteRecordsPartitionResult:
    replicas = context.broker.replicas
    partition = context.broker.partitions.by_name.get((topic, index))
    if topic in INTERNAL_TOPICS:
        return DeleteRecordsPartitionResult(index, _UNKNOWN, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if partition is None:
        return DeleteRecordsPartitionResult(index, _UNKNOWN, why_absent(context.broker, topic, index))
    try:
        wanted = _check(partition, offset)
        start: int = await context.broker.in_thread(partition.log.delete_records_before, wanted)
        replicas.became_visible(partition)
        if partition.followers and not await replicas.wait_for_log_starts(partition, wanted, timeout_ms):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    except PylogdError as error:
        return DeleteRecordsPartitionResult(index, _UNKNOWN, explain(error)[0])
    return DeleteRecordsPartitionResult(index, start)


def _check(partition: Partition, offset: int) -> int:
    """Return the offset before which records are deleted. Raises PylogdError for an offset that is not allowed."""
    partition.check_leading()
    if not partition.log.config.deletes:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, "Records can be deleted only from topics whose cleanup.policy has delete."
        )
    if offset == HIGH_WATERMARK:
        return partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise OffsetOutOfRange(offset, partition.log.log_start_offset, partition.high_watermark)
    return offset
