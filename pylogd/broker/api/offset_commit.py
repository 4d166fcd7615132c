"""OffsetCommit (8), versions 2 to 10: store how far a group has read.

Behaviour: the answer comes when the offsets are committed in the offsets topic. Each partition is checked separately
(it must exist, its metadata must not be too long). Offsets that pass are stored together, all or none. A consumer that
is not a member commits with generation -1. A generation of a group that does not exist gets GROUP_ID_NOT_FOUND, before
version 9 ILLEGAL_GENERATION. Members of the newer protocol need version 9. A client needs READ for the group and for
each topic. Versions 2 to 4 may give the retention time. From version 10 on topics are given by id. An offset is stored
for the topic that has the id or the name now; a later topic with the same name does not get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import in_slices
from pylogd.broker.groups.records import NEVER, Committed, offset_record
from pylogd.broker.metadata.image import Topic
from pylogd.broker.security.authorizer import AclOperation
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_WITH_EPOCHS = 9
_FIRST_BY_ID = 10
_LAST_MS = (1 << 63) - 1
_PARTITION_WORK = 60  # the work for a partition, as bytes of an answer whose encoding takes as long

#: An offset to store, the record that stores it, and the answer for it.
_Wanted = tuple[tuple[tuple[str, int], Committed], tuple[bytes, bytes], OffsetCommitResponsePartition]


@handles(OffsetCommitRequest, 2, 10)
def offset_commit(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse | Deferred[Any]:
    """Store the offsets. Return the response, or a Deferred of it if replicas have to be waited for."""
    if not context.may_use_group(AclOperation.READ, request.group_id):
        return _refuse(request)
    now_ms = context.broker.groups.now_ms
    expires_ms = NEVER if request.retention_time_ms < 0 else min(now_ms + request.retention_time_ms, _LAST_MS)
    wanted: list[_Wanted] = []
    response = OffsetCommitResponse()

    def answered(error: ErrorCode) -> None:
        if error:
            for _, _, answer in wanted:
                answer.error_code = error

    def commit() -> Deferred[None] | None:
        result = context.broker.groups.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            [entry for entry, _, _ in wanted],
            records=[record for _, record, _ in wanted],
            knows_epochs=context.version >= _FIRST_WITH_EPOCHS,
            share=context.share,
        )
        if isinstance(result, Deferred):
            return result.addCallback(answered)
        answered(result)
        return None

    steps = _answer_all(context, request, (now_ms, expires_ms), response, wanted)
    return in_slices(context, request.API_KEY, steps, response, commit)


def _answer_all(
    context: RequestContext,
    request: OffsetCommitRequest,
    times: tuple[int, int],
    response: OffsetCommitResponse,
    wanted: list[_Wanted],
) -> Iterator[int]:
    """Add an answer for each partition to the response, and the offsets to store to `wanted`."""
    for topic in request.topics:
        answer = OffsetCommitResponseTopic(topic.name, topic.topic_id)
        response.topics.append(answer)
        yield from _answer(context, request.group_id, topic, times, answer.partitions, wanted)


def _refuse(request: OffsetCommitRequest) -> OffsetCommitResponse:
    refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
    return OffsetCommitResponse(
        0,
        [
            OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [OffsetCommitResponsePartition(one.partition_index, refused) for one in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _answer(
    context: RequestContext,
    group_id: str,
    asked: OffsetCommitRequestTopic,
    times: tuple[int, int],
    answers: list[OffsetCommitResponsePartition],
    wanted: list[_Wanted],
) -> Iterator[int]:
    by_id = context.version >= _FIRST_BY_ID
    topics = context.broker.topics
    topic = topics.by_id(asked.topic_id) if by_id else topics.get(asked.name)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    name = asked.name if not by_id else None if topic is None else topic.name
    if name is not None and not context.may_use_topic(AclOperation.READ, name):
        topic, unknown = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    most = context.broker.settings.integer("offset.metadata.max.bytes")
    for one in asked.partitions:
        answer = OffsetCommitResponsePartition(one.partition_index)
        answers.append(answer)
        text = one.committed_metadata or ""
        answer.error_code = unknown if topic is None else why_not(topic, one.partition_index, text, most)
        if topic is not None and not answer.error_code:
            committed = Committed(one.committed_offset, one.committed_leader_epoch, text, *times, topic.topic_id)
            entry = (topic.name, one.partition_index), committed
            wanted.append((entry, offset_record(group_id, *entry), answer))
        yield _PARTITION_WORK
    yield _PARTITION_WORK


def why_not(topic: Topic, index: int, text: str, most: int) -> ErrorCode:
    """Return NONE if an offset with metadata `text` of at most `most` bytes may be stored; otherwise the error code."""
    if not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if text and len(text.encode()) > most:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE
