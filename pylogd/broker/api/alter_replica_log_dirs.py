"""AlterReplicaLogDirs (34), versions 1 and 2: reopen log directories.

Behaviour: each directory that the request names is reopened if it is offline, and used again if it is full, whether or
not replicas are named for it. A named replica that the directory then holds gets no error. If the directory is still
offline, the replica gets KAFKA_STORAGE_ERROR; if it is unknown, LOG_DIR_NOT_FOUND.
Gaps: replicas are never moved between directories. A replica in another directory gets INVALID_REQUEST.
"""

from __future__ import annotations

import os

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.log.errors import StorageError, UnknownLogDirectory
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

log = Logger()


@handles(AlterReplicaLogDirsRequest, 1, 2)
def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Deferred[AlterReplicaLogDirsResponse]:
    """Reopen the directories, and answer for each replica whether its directory holds it."""
    return Deferred.fromCoroutine(_alter(context, request))


async def _alter(context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    results: list[AlterReplicaLogDirTopicResult] = []
    allowed = context.may_use_cluster(AclOperation.ALTER)
    reopened: dict[str, ErrorCode] = {}
    pace = Pace(context)
    for directory in request.dirs:
        failed = reopened.get(directory.path) if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if failed is None:
            failed = reopened[directory.path] = await _reopen(context, directory.path)
        for topic in directory.topics:
            answers: list[AlterReplicaLogDirPartitionResult] = []
            results.append(AlterReplicaLogDirTopicResult(topic.name, answers))
            for index in topic.partitions:
                await pace.step()
                code = failed or _where(context, directory.path, topic.name, index)
                answers.append(AlterReplicaLogDirPartitionResult(index, code))
    return AlterReplicaLogDirsResponse(results=results)


async def _reopen(context: RequestContext, path: str) -> ErrorCode:
    """Return why the directory can't be used; NONE if it can be used."""
    try:
        await context.broker.hosting.reopen(path)
    except UnknownLogDirectory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    except StorageError as error:
        log.error("Could not reopen log directory {path}: {error}", path=path, error=error)
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


def _where(context: RequestContext, path: str, topic: str, index: int) -> ErrorCode:
    partition = context.broker.partitions.by_name.get((topic, index))
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not partition.online:
        return ErrorCode.KAFKA_STORAGE_ERROR
    here = os.path.dirname(partition.log.directory) == os.path.abspath(path)
    return ErrorCode.NONE if here else ErrorCode.INVALID_REQUEST
