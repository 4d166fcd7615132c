"""OffsetFetch (9), versions 1 to 10: return the committed offsets of groups.

Behaviour: an offset that was never committed is -1 without an error, also for an unknown group. No topics (null, from
version 2 on) means all for which the group has offsets. From version 8 on a request may name many groups, from version
10 on topics go by id. A client needs DESCRIBE for the group and for each topic; where it asks for all topics, those
that it may not DESCRIBE are missing.
Gaps: there are no transactions, so every offset is stable; the member's id and epoch (KIP-848) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogd.api.context import RequestContext
from pylogd.api.registry import handles
from pylogd.errors import ErrorCode
from pylogd.groups.records import NO_EPOCH, Committed
from pylogd.security.authorizer import AclOperation
from pylogd.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_FIRST_WITH_GROUP_ERROR = 2
_FIRST_WITH_GROUPS = 8
_FIRST_BY_ID = 10
_NOTHING = Committed(-1, NO_EPOCH, "", -1)

_Offsets = Mapping[tuple[str, int], Committed]


@handles(OffsetFetchRequest, 1, 10)
def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return the offsets of the group, or of each of the groups."""
    if context.version >= _FIRST_WITH_GROUPS:
        return OffsetFetchResponse(groups=[_group(context, group) for group in request.groups])
    topics = request.topics
    asked = OffsetFetchRequestGroup(
        request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )
    found = _group(context, asked)
    if found.error_code and context.version < _FIRST_WITH_GROUP_ERROR:
        # These versions have no error code of the group: each partition gets it.
        for wanted in asked.topics or ():
            failed = [_partition(index, _NOTHING, found.error_code) for index in wanted.partition_indexes]
            found.topics.append(OffsetFetchResponseTopics(wanted.name, partitions=failed))
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponsePartition(
                        one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata,
                        one.error_code,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in found.topics
        ],
        error_code=found.error_code,
    )  # fmt: skip


def _group(context: RequestContext, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    if not context.may_use_group(AclOperation.DESCRIBE, asked.group_id):
        return OffsetFetchResponseGroup(asked.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    offsets = context.broker.groups.fetch(asked.group_id)
    if isinstance(offsets, ErrorCode):
        return OffsetFetchResponseGroup(asked.group_id, error_code=offsets)
    topics = _all(context, offsets) if asked.topics is None else [_topic(context, offsets, t) for t in asked.topics]
    return OffsetFetchResponseGroup(asked.group_id, topics)


def _topic(context: RequestContext, offsets: _Offsets, asked: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    name, error = asked.name, ErrorCode.NONE
    if context.version >= _FIRST_BY_ID:
        topic = context.broker.topics.by_id(asked.topic_id)
        name, error = ("", ErrorCode.UNKNOWN_TOPIC_ID) if topic is None else (topic.name, ErrorCode.NONE)
    if not error and not context.may_use_topic(AclOperation.DESCRIBE, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetFetchResponseTopics(
        asked.name,
        asked.topic_id,
        [_partition(index, offsets.get((name, index), _NOTHING), error) for index in asked.partition_indexes],
    )


def _all(context: RequestContext, offsets: _Offsets) -> list[OffsetFetchResponseTopics]:
    by_topic: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for (name, index), committed in sorted(offsets.items()):
        by_topic.setdefault(name, []).append(_partition(index, committed))
    return list(_named(context, by_topic))


def _named(
    context: RequestContext, by_topic: Mapping[str, list[OffsetFetchResponsePartitions]]
) -> Iterable[OffsetFetchResponseTopics]:
    for name, partitions in by_topic.items():
        if not context.may_use_topic(AclOperation.DESCRIBE, name, audited=False):
            continue
        if context.version < _FIRST_BY_ID:
            yield OffsetFetchResponseTopics(name, partitions=partitions)
            continue
        topic = context.broker.topics.get(name)
        if topic is not None:  # a deleted topic has no id
            yield OffsetFetchResponseTopics("", topic.topic_id, partitions)


def _partition(index: int, committed: Committed, error: int = 0) -> OffsetFetchResponsePartitions:
    if error:
        committed = _NOTHING
    return OffsetFetchResponsePartitions(index, committed.offset, committed.leader_epoch, committed.metadata, error)
