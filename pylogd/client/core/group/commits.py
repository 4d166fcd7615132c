"""Commit and look up offsets: OffsetCommit and OffsetFetch as plain functions, and the queue of commits.

Each function makes the message for a negotiated version, or reads an answer. Topics are named by ids if all ids are
known and the broker's version has them, else by names. With ids, offsets of a deleted topic are not taken for those of
a new topic of the same name. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pylogd.base.errors import ErrorCode, KafkaError, error_for
from pylogd.client.core.group.member_model import NO_IDS, NOBODY, GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pylogd.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

#: The last version of OffsetCommit and OffsetFetch with topic names; later versions have topic ids.
NAMES_UNTIL = 9
_STATIC_FROM = 7  # a version of OffsetCommit
_GROUPS_FROM = 8  # a version of OffsetFetch
_STABLE_FROM = 7
_EPOCHS_FROM = 9
_ALL_FROM = 2

#: Errors of a commit after which the member has to join again, or another member has the partitions.
LOST_MEMBERSHIP = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
#: Errors of a look-up in the name of a member. The look-up is repeated with another member epoch, or without a member.
OUTDATED_MEMBER = frozenset(
    {ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
)  # fmt: skip
#: Errors after which a commit is repeated: the next heartbeat brings a new member epoch. A topic id that the
#: coordinator has assigned and no longer knows belongs to a deleted topic.
_PASSING = frozenset(code for code in ErrorCode if code.retriable) - {ErrorCode.UNKNOWN_TOPIC_ID} | {
    ErrorCode.STALE_MEMBER_EPOCH
}


def highest_version(topics: Iterable[str] | None, topic_ids: Mapping[str, bytes]) -> int | None:
    """Return the highest version of OffsetCommit and OffsetFetch that can name these topics; None for any.

    topics: the topics to name; None means all of the group.
    topic_ids: the known ids, by name.
    """
    by_id = topics is not None and all(topic in topic_ids for topic in topics)
    return None if by_id else NAMES_UNTIL


def commit_request(
    identity: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    version: int,
    topic_ids: Mapping[str, bytes] = NO_IDS,
) -> OffsetCommitRequest:
    """Return the request to commit offsets in the name of a member, or of no member."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, index), (offset, metadata, leader_epoch) in offsets.items():
        if name not in topics:
            by_id = version > NAMES_UNTIL
            topics[name] = OffsetCommitRequestTopic("", topic_ids[name]) if by_id else OffsetCommitRequestTopic(name)
        topics[name].partitions.append(OffsetCommitRequestPartition(index, offset, leader_epoch, metadata))
    return OffsetCommitRequest(
        group_id=identity.group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id if version >= _STATIC_FROM else None,
        topics=list(topics.values()),
    )


def commit_errors(
    response: OffsetCommitResponse, topic_ids: Mapping[str, bytes] = NO_IDS
) -> dict[TopicPartition, ErrorCode]:
    """Return the errors of the partitions that could not be committed."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    return {
        TopicPartition(topic.name or names[bytes(topic.topic_id)], answer.partition_index): error_for(answer.error_code)
        for topic in response.topics
        for answer in topic.partitions
        if answer.error_code
    }


def fetch_request(
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    version: int,
    *,
    stable: bool = False,
    reader: tuple[str | None, int] = NOBODY,
    topic_ids: Mapping[str, bytes] = NO_IDS,
) -> OffsetFetchRequest:
    """Return the request for the committed offsets of partitions; None means all of the group (from version 2 on).

    stable: whether to wait for transactions that may still change the offsets.
    reader: member id and epoch of a member of the newer protocol.
    """
    by_topic: dict[str, list[int]] | None = None if partitions is None else {}
    for name, index in partitions or ():
        assert by_topic is not None
        by_topic.setdefault(name, []).append(index)
    request = OffsetFetchRequest(require_stable=stable and version >= _STABLE_FROM)
    if version >= _GROUPS_FROM:
        by_id = version > NAMES_UNTIL
        some = None if by_topic is None else [
            OffsetFetchRequestTopics("", topic_ids[name], indexes) if by_id
            else OffsetFetchRequestTopics(name, partition_indexes=indexes)
            for name, indexes in by_topic.items()
        ]  # fmt: skip
        request.groups = [OffsetFetchRequestGroup(group_id, topics=some)]
        if version >= _EPOCHS_FROM:
            request.groups[0].member_id, request.groups[0].member_epoch = reader
    else:
        request.group_id = group_id
        if by_topic is not None:
            request.topics = [OffsetFetchRequestTopic(name, indexes) for name, indexes in by_topic.items()]
        else:
            request.topics = None if version >= _ALL_FROM else []
    return request


def all_offsets_request(group_ids: Sequence[str], version: int) -> OffsetFetchRequest:
    """Return the request for all committed offsets of groups; before version 8, only of the first group."""
    if version < _GROUPS_FROM:
        return fetch_request(group_ids[0], None, version)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(one, topics=None) for one in group_ids])


def fetched(
    response: OffsetFetchResponse, topic_ids: Mapping[str, bytes] = NO_IDS
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the committed offset of each partition; None if there is none, such as for a deleted topic.

    Raises the first error as KafkaError.
    """
    return fetched_of_group(response.groups[0] if response.groups else response, topic_ids)


def fetched_of_group(
    answer: Any, topic_ids: Mapping[str, bytes] = NO_IDS
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the same as `fetched` for one of several groups in a response."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    if answer.error_code:
        raise KafkaError(error_for(answer.error_code))
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for topic in answer.topics:
        for said in topic.partitions:
            partition = TopicPartition(topic.name or names[bytes(topic.topic_id)], said.partition_index)
            if said.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                found[partition] = None
                continue
            if said.error_code:
                error = error_for(said.error_code)
                raise KafkaError(error, f"{partition}: {error.text}")
            known = said.committed_offset >= 0
            found[partition] = (
                OffsetAndMetadata(said.committed_offset, said.metadata or "", said.committed_leader_epoch)
                if known
                else None
            )
    return found


class CommitQueue:
    """Offsets to commit: the newest of each partition. One request at a time is sent, so that a retried older offset
    never overtakes a newer one.
    """

    def __init__(self) -> None:
        """The queue is empty."""
        self._waiting: dict[TopicPartition, OffsetAndMetadata] = {}
        self._sent: dict[TopicPartition, OffsetAndMetadata] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sent)

    def put(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Add offsets; they replace waiting offsets of the same partitions."""
        self._waiting.update(offsets)

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether offsets of these partitions wait or are in flight."""
        return any(partition in self._waiting or partition in self._sent for partition in partitions)

    @property
    def ready(self) -> bool:
        """Whether `take` has offsets to return."""
        return bool(self._waiting) and not self._sent

    def take(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to send now. Call `answered`, `failed` or `refused` after it."""
        self._sent, self._waiting = self._waiting, {}
        return dict(self._sent)

    def answered(self, errors: Mapping[TopicPartition, ErrorCode]) -> dict[TopicPartition, ErrorCode]:
        """Apply the errors of an answer: offsets with retriable errors wait again. Return the other errors."""
        final = {partition: error for partition, error in errors.items() if error not in _PASSING}
        self._again({p: offset for p, offset in self._sent.items() if p in errors and p not in final})
        return final

    def failed(self) -> None:
        """Record that there was no answer: the sent offsets wait again, unless newer offsets wait."""
        self._again(self._sent)

    def refused(self) -> list[TopicPartition]:
        """Drop the sent offsets, which can't be committed, and return their partitions."""
        sent, self._sent = self._sent, {}
        return list(sent)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop offsets that wait for partitions that the member no longer has."""
        for partition in partitions:
            self._waiting.pop(partition, None)

    def _again(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._waiting = {**offsets, **self._waiting}
        self._sent = {}
