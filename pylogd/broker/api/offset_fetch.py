"""OffsetFetch (9), versions 1 to 10: return the committed offsets of groups.

Behaviour: an offset that was never committed is -1 without an error, even for an unknown group. So is an offset that
was committed for a deleted topic, whichever topic has the name now. Null topics (from version 2 on) means all topics
for which the group has offsets. From version 8 on a request may name many groups, from version 10 on topics are given
by id. A group or topic that is named more than once is answered once. Groups that no longer fit into
`response.max.bytes` get INVALID_REQUEST. A client needs DESCRIBE for the group and for each topic; if it asks for all
topics, those that it may not DESCRIBE are missing. With `require_stable` an offset that an open transaction may change
gets UNSTABLE_OFFSET_COMMIT (KIP-447).
Gaps: the member's id and epoch (KIP-848) are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import answer_budget, in_slices
from pylogd.broker.groups.records import NO_EPOCH, Committed
from pylogd.broker.security.authorizer import AclOperation
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
_GROUP_WORK = 512  # the work of finding a group, as bytes of an answer whose encoding takes as long
_PARTITION_BYTES = 24  # the size of a partition in the answer, without its metadata

_Offsets = Mapping[tuple[str, int], Committed]
#: The arguments for adding a partition to an answer: the topic's entry, the index, the committed offset, an error code.
#: With an error the offset is not sent.
_Found = tuple[OffsetFetchResponseTopics, int, Committed, int]


@handles(OffsetFetchRequest, 1, 10)
def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse | Deferred[Any]:
    """Return the offsets of the group, or of each of the groups."""
    response = OffsetFetchResponse()
    if context.version >= _FIRST_WITH_GROUPS:
        steps = _answer_groups(context, request, response.groups)
    else:
        steps = _answer_one(context, request, response)
    return in_slices(context, request.API_KEY, steps, response)


def _answer_groups(
    context: RequestContext, request: OffsetFetchRequest, answers: list[OffsetFetchResponseGroup]
) -> Iterator[int]:
    groups: dict[str, OffsetFetchRequestGroup] = {}
    for group in request.groups:
        known = groups.setdefault(group.group_id, group)
        if known is not group and known.topics is not None:
            if group.topics is None:
                known.topics = None
            else:
                known.topics += group.topics
    budget = answer_budget(context)
    for group in groups.values():
        answer = OffsetFetchResponseGroup(group.group_id)
        answers.append(answer)
        yield _GROUP_WORK
        yield from _fill(context, group, answer, budget, stable=request.require_stable)


def _answer_one(context: RequestContext, request: OffsetFetchRequest, response: OffsetFetchResponse) -> Iterator[int]:
    topics = request.topics
    asked = OffsetFetchRequestGroup(
        request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )
    found = OffsetFetchResponseGroup()
    yield from _fill(context, asked, found, answer_budget(context), stable=request.require_stable)
    if found.error_code and context.version < _FIRST_WITH_GROUP_ERROR:
        # In these versions a group has no error code: each partition gets it.
        for wanted in asked.topics or ():
            failed = [_partition(index, _NOTHING, found.error_code) for index in wanted.partition_indexes]
            found.topics.append(OffsetFetchResponseTopics(wanted.name, partitions=failed))
    response.error_code = found.error_code
    response.topics = [
        OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponsePartition(
                    one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code
                )
                for one in topic.partitions
            ],
        )
        for topic in found.topics
    ]


def _fill(
    context: RequestContext,
    asked: OffsetFetchRequestGroup,
    answer: OffsetFetchResponseGroup,
    budget: AnswerBudget,
    *,
    stable: bool,
) -> Iterator[int]:
    """Fill a group's answer. Leave it empty if it does not fit.

    stable: whether to refuse offsets in open transactions.
    """
    if not context.may_use_group(AclOperation.DESCRIBE, asked.group_id):
        answer.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        yield _PARTITION_BYTES
        return
    offsets = context.broker.groups.fetch(asked.group_id, asked.member_id, asked.member_epoch)
    if isinstance(offsets, ErrorCode):
        answer.error_code = offsets
        yield _PARTITION_BYTES
        return
    if asked.topics is None:
        found = _find_all(context, offsets, answer.topics)
    else:
        found = _find(context, offsets, asked.topics, answer.topics)
    unstable = context.broker.groups.unstable(asked.group_id) if stable else frozenset()
    if unstable:
        found = _mark_unstable(found, context, unstable)
    for topic, index, committed, error in found:
        size = _PARTITION_BYTES + len(committed.metadata)
        if not budget.take(size):
            answer.topics, answer.error_code = [], ErrorCode.INVALID_REQUEST
            return
        topic.partitions.append(_partition(index, committed, error))
        yield size


def _mark_unstable(
    found: Iterable[_Found], context: RequestContext, unstable: Collection[tuple[str, int]]
) -> Iterator[_Found]:
    """Return the found offsets, with an error for each partition in `unstable`."""
    for topic, index, committed, error in found:
        known = context.broker.topics.by_id(topic.topic_id) if not topic.name else None
        partition = (topic.name if known is None else known.name), index
        is_unstable = not error and partition in unstable
        yield topic, index, committed, ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else error


def _find(
    context: RequestContext,
    offsets: _Offsets,
    asked: Iterable[OffsetFetchRequestTopics],
    answers: list[OffsetFetchResponseTopics],
) -> Iterator[_Found]:
    """Find the requested offsets. Add each topic to `answers` before its partitions."""
    topics: dict[tuple[str, bytes], dict[int, None]] = {}
    for topic in asked:
        topics.setdefault((topic.name, topic.topic_id), {}).update(dict.fromkeys(topic.partition_indexes))
    for (name, topic_id), indexes in topics.items():
        answer, topic_name, error = OffsetFetchResponseTopics(name, topic_id), name, ErrorCode.NONE
        answers.append(answer)
        if context.version >= _FIRST_BY_ID:
            known = context.broker.topics.by_id(topic_id)
            error = ErrorCode.UNKNOWN_TOPIC_ID if known is None else ErrorCode.NONE
            topic_name = "" if known is None else known.name
        if not error and not context.may_use_topic(AclOperation.DESCRIBE, topic_name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for index in indexes:
            yield answer, index, offsets.get((topic_name, index), _NOTHING), error


def _find_all(context: RequestContext, offsets: _Offsets, answers: list[OffsetFetchResponseTopics]) -> Iterator[_Found]:
    """Find all offsets of a group. Add each topic to `answers` before its partitions."""
    name: str | None = None
    answer: OffsetFetchResponseTopics | None = None
    for (topic_name, index), committed in sorted(offsets.items()):
        if topic_name != name:
            name, answer = topic_name, _named(context, topic_name)
            if answer is not None:
                answers.append(answer)
        if answer is not None:
            yield answer, index, committed, 0


def _named(context: RequestContext, name: str) -> OffsetFetchResponseTopics | None:
    """Return the empty answer for a topic; None if the client may not know it, or if it is given by id and deleted."""
    if not context.may_use_topic(AclOperation.DESCRIBE, name, audited=False):
        return None
    if context.version < _FIRST_BY_ID:
        return OffsetFetchResponseTopics(name)
    topic = context.broker.topics.get(name)
    return None if topic is None else OffsetFetchResponseTopics("", topic.topic_id)


def _partition(index: int, committed: Committed, error: int = 0) -> OffsetFetchResponsePartitions:
    if error:
        committed = _NOTHING
    return OffsetFetchResponsePartitions(index, committed.offset, committed.leader_epoch, committed.metadata, error)
