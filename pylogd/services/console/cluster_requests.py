"""Ask a cluster for topics, log ends, sizes, groups and their committed offsets, in pieces of limited size.

Strategy: each request is for a limited number of partitions or groups, and is sent once; the next sample repeats what
has failed. If a broker does not know an API, an older API is used, or the answer stays unknown.

Source: KIP-966 for topics page by page (DescribeTopicPartitions), KIP-709 for offsets of several groups.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from pylogd.base.errors import UnsupportedByBroker
from pylogd.client.core.admin.calls import Calls, Question, send
from pylogd.client.core.admin.offsets import LATEST, offsets_request
from pylogd.client.core.group.commits import NAMES_UNTIL, all_offsets_request
from pylogd.client.core.metadata import check
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages import consumer_group_describe as consumer_groups
from pylogd.wire.messages import describe_groups, list_groups
from pylogd.wire.messages import describe_log_dirs as log_dirs
from pylogd.wire.messages import describe_topic_partitions as pages
from pylogd.wire.messages import offset_fetch as fetch
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse

#: The most partitions or groups in one request.
PARTITIONS: Final = 2000
GROUPS: Final = 100


class FoundPartition(NamedTuple):
    """A broker's description of a partition."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class FoundTopic(NamedTuple):
    """Partitions of a topic: all of them, or a part, which the next page continues."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: list[FoundPartition]


async def topic_pages(calls: Calls) -> AsyncIterator[list[FoundTopic]]:
    """Yield all topics by name, page by page. Raises PylogdError."""
    cursor = None
    while True:
        request = pages.DescribeTopicPartitionsRequest([], PARTITIONS, cursor)
        try:
            response: pages.DescribeTopicPartitionsResponse = await send(calls, request)
        except UnsupportedByBroker:
            async for page in _all_topics(calls):
                yield page
            return
        yield [
            FoundTopic(
                topic.name or "", bytes(topic.topic_id), topic.is_internal,
                [
                    FoundPartition(one.partition_index, one.leader_id, tuple(one.replica_nodes), tuple(one.isr_nodes))
                    for one in topic.partitions
                ],
            )
            for topic in response.topics if not topic.error_code
        ]  # fmt: skip
        if response.next_cursor is None:
            return
        cursor = pages.Cursor(response.next_cursor.topic_name, response.next_cursor.partition_index)


async def _all_topics(calls: Calls) -> AsyncIterator[list[FoundTopic]]:
    """Yield all topics from one Metadata response, for brokers before Kafka 3.8, which do not have pages.

    The client decodes the response in one step, in a second or two with 200,000 partitions, and refuses a response with
    more elements than `limits.elements.WIDE`. Its topics are freed page by page. Raises PylogdError.
    """
    response: MetadataResponse = await calls.send(
        Question(MetadataRequest, lambda version: calls.metadata.request(None, version))
    )
    response.topics.sort(key=lambda one: one.name or "", reverse=True)
    while response.topics:
        page: list[FoundTopic] = []
        count = 0
        while response.topics and count < PARTITIONS:
            topic = response.topics.pop()
            if topic.error_code:
                continue
            found = [
                FoundPartition(one.partition_index, one.leader_id, tuple(one.replica_nodes), tuple(one.isr_nodes))
                for one in sorted(topic.partitions, key=lambda one: one.partition_index)
            ]
            page.append(FoundTopic(topic.name or "", bytes(topic.topic_id), topic.is_internal, found))
            count += len(found)
        yield page


async def find_offsets_at(
    calls: Calls, leader: int, wanted: Sequence[tuple[str, int]], timestamp: int = LATEST
) -> dict[tuple[str, int], int]:
    """Return offsets of partitions that a broker leads; those with an error are left out. Raises PylogdError."""
    found: dict[tuple[str, int], int] = {}
    for at in range(0, len(wanted), PARTITIONS):
        asked = {TopicPartition(*key): timestamp for key in wanted[at : at + PARTITIONS]}
        response = await send(calls, offsets_request(asked, {}), leader)
        for topic in response.topics:
            for one in topic.partitions:
                if not one.error_code:
                    found[topic.name, one.partition_index] = one.offset
    return found


async def log_dir_pages(
    calls: Calls, node: int, topics: Iterable[tuple[str, Sequence[int]]]
) -> AsyncIterator[log_dirs.DescribeLogDirsResponse]:
    """Yield a broker's answers about its directories; each is for some partitions. Raises PylogdError."""
    asked: list[log_dirs.DescribableLogDirTopic] = []
    count = 0
    for name, indexes in topics:
        asked.append(log_dirs.DescribableLogDirTopic(name, list(indexes)))
        count += len(indexes)
        if count >= PARTITIONS:
            yield await _log_dirs(calls, node, asked)
            asked, count = [], 0
    yield await _log_dirs(calls, node, asked)


async def _log_dirs(calls: Calls, node: int, asked: list[Any]) -> log_dirs.DescribeLogDirsResponse:
    response: log_dirs.DescribeLogDirsResponse = await send(calls, log_dirs.DescribeLogDirsRequest(asked), node)
    check(response.error_code)
    return response


async def groups_of(calls: Calls, node: int) -> list[list_groups.ListedGroup]:
    """Return the groups that a broker coordinates. Raises PylogdError."""
    response: list_groups.ListGroupsResponse = await send(calls, list_groups.ListGroupsRequest(), node)
    check(response.error_code)
    return response.groups


class GroupSummary(NamedTuple):
    """The number of members of a group, and their protocol.

    state: the group's state; empty if it is unknown.
    """

    members: int
    protocol: str
    state: str


async def group_summaries(calls: Calls, node: int, group_ids: Sequence[str], *, newer: bool) -> dict[str, GroupSummary]:
    """Return the group_summaries of groups, of the classic or the newer protocol, from their coordinator. Raises
    PylogdError.
    """
    found: dict[str, GroupSummary] = {}
    for at in range(0, len(group_ids), GROUPS):
        some = list(group_ids[at : at + GROUPS])
        if newer:
            answer = await send(calls, consumer_groups.ConsumerGroupDescribeRequest(some), node)
            for group in answer.groups:
                if not group.error_code:
                    found[group.group_id] = GroupSummary(len(group.members), group.assignor_name, group.group_state)
        else:
            answer = await send(calls, describe_groups.DescribeGroupsRequest(some), node)
            for group in answer.groups:
                if not group.error_code:
                    found[group.group_id] = GroupSummary(len(group.members), group.protocol_data, group.group_state)
    return found


async def committed_offsets(
    calls: Calls, node: int, group_ids: Sequence[str]
) -> AsyncIterator[tuple[str, Iterable[tuple[str, int, int]]]]:
    """Yield each group's committed offsets: topic, partition, offset. Raises PylogdError.

    Groups that this broker does not coordinate any more are left out.
    """
    several = True
    at = 0
    while at < len(group_ids):
        some = group_ids[at : at + (GROUPS if several else 1)]
        question = _offsets_of(some, node)
        response: fetch.OffsetFetchResponse = await calls.send(question)
        if response.groups:
            for group in response.groups:
                if not group.error_code:
                    yield group.group_id, _offsets(group.topics)
        elif several and len(some) > 1:
            several = False  # the broker answered for only one group: it does not know version 8
            continue
        elif not response.error_code:
            yield some[0], _offsets(response.topics)
        at += len(some)


def _offsets_of(group_ids: Sequence[str], node: int) -> Question:
    return Question(
        fetch.OffsetFetchRequest, lambda version: all_offsets_request(group_ids, version), node, NAMES_UNTIL
    )


def _offsets(topics: Iterable[Any]) -> Iterable[tuple[str, int, int]]:
    for topic in topics:
        for one in topic.partitions:
            if not one.error_code and one.committed_offset >= 0:
                yield topic.name, one.partition_index, one.committed_offset
