"""DescribeLogDirs (35), versions 0 to 5: list the log directories, their partitions and their free space.

Behaviour: every directory is listed. Null topics means all partitions of this broker; otherwise those that the request
names. The size of a partition is the bytes of its segments. From version 4 on the answer also has the volume's total
and usable bytes; from version 5 on it says whether a directory is cordoned. An offline directory is listed with
KAFKA_STORAGE_ERROR and without partitions. The sizes are read in a thread.
Gaps: replicas are never moved between directories, so there are no future replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import encode_in_thread
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from pylogd.broker.log.log_directory import DirectoryUsage

_MANY = 500  # listing so many partitions takes some milliseconds, so a thread does it


@handles(DescribeLogDirsRequest, 0, 5)
def describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> Deferred[DescribeLogDirsResponse | bytes]:
    """Return every directory, with the partitions that the request names."""
    return Deferred.fromCoroutine(_describe(context, request))


async def _describe(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse | bytes:
    if not context.may_use_cluster(AclOperation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    broker = context.broker
    usage: list[DirectoryUsage] = await broker.in_thread(broker.logs.usage)
    if sum(len(found.partitions) for found in usage) <= _MANY:
        return _response(usage, request)
    response = await broker.in_thread(_response, usage, request)
    return await encode_in_thread(context, request.API_KEY, response)


def _response(usage: Sequence[DirectoryUsage], request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Return the response. May run in a thread."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return DescribeLogDirsResponse(results=[_directory(found, wanted) for found in usage])


def _directory(usage: DirectoryUsage, wanted: set[tuple[str, int]] | None) -> DescribeLogDirsResult:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for found in usage.partitions:
        if wanted is None or (found.topic, found.partition) in wanted:
            topic = topics.setdefault(found.topic, DescribeLogDirsTopic(found.topic))
            topic.partitions.append(DescribeLogDirsPartition(found.partition, found.size))
    return DescribeLogDirsResult(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR if usage.failed else ErrorCode.NONE,
        log_dir=usage.path,
        topics=list(topics.values()),
        total_bytes=usage.total_bytes,
        usable_bytes=usage.usable_bytes,
        is_cordoned=usage.cordoned,
    )
