"""DescribeLogDirs (35), versions 0 to 5: list the log directories, their partitions and their free space.

Behaviour: sizes are bytes of segments; from version 4 on the volume's total and usable bytes. Null topics means all
partitions; otherwise those of the request that this broker has; every directory is listed in any case. An offline
directory is listed with KAFKA_STORAGE_ERROR and without partitions. The sizes are read in a thread.
From version 5 on it says whether a directory is cordoned.
Gaps: replicas are never moved between directories, so there are no future replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from pylogd.log.log_directory import DirectoryUsage


@handles(DescribeLogDirsRequest, 0, 5)
def describe_log_dirs(context: RequestContext, request: DescribeLogDirsRequest) -> Deferred[DescribeLogDirsResponse]:
    """Return every directory, with the partitions that the request names."""
    return Deferred.fromCoroutine(_describe(context, request))


async def _describe(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    if not context.may_use_cluster(AclOperation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    broker = context.broker
    usage: list[DirectoryUsage] = await broker.in_thread(broker.logs.usage)
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
