"""Ask each coordinator for the members and the committed offsets of all of its groups at once.

Brokers before OffsetFetch version 8 (Kafka 3.0) are asked for offsets group by group.

Source: KIP-709 for the offsets of several groups, KIP-848 for the groups of the newer protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pylogd.base.errors import ErrorCode, KafkaError, error_for
from pylogd.client.core.admin.calls import Answers, Question, question
from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.group.commits import NAMES_UNTIL, all_offsets_request, fetched_of_group
from pylogd.client.core.group.consumer_protocol import decode_assignment, decode_subscription
from pylogd.client.core.model import GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from pylogd.wire.messages import consumer_group_describe, describe_groups
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest

#: The most groups in one request, since the answer has the subscriptions of all members, and all offsets.
_MOST_GROUPS: Final = 1000
_CONSUMERS: Final = "consumer"
_DEAD: Final = "Dead"


class GroupAnswers:
    """What coordinators have answered, by group id.

    described: the coordinator and its answer, which `description` reads.
    offsets: the committed offsets.
    errors: the errors of groups that are not described, or whose offsets are not known.

    A group whose broker does not answer is in none of them.
    """

    def __init__(self, answers: Answers) -> None:
        self.described: dict[str, tuple[int, Any]] = {}
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.errors: dict[str, KafkaError] = {}
        self._answers = answers

    async def ask(self, by_node: Mapping[int, Sequence[str]]) -> None:
        """Ask each broker for the groups that it coordinates, and forget earlier errors of these groups."""
        for names in by_node.values():
            for name in names:
                self.errors.pop(name, None)
        pieces = [(node, list(names[at : at + _MOST_GROUPS])) for node, names in sorted(by_node.items())
                  for at in range(0, len(names), _MOST_GROUPS)]  # fmt: skip
        newer, older = await self._ask_all(pieces)
        await self._ask_again(newer, older)

    async def _ask_all(
        self, pieces: Sequence[tuple[int, list[str]]]
    ) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
        """Ask for the members of classic groups, and for all offsets.

        Return the groups of the newer protocol, and the groups of brokers that answer only for one group, by broker.
        """
        described = [(node, question(describe_groups.DescribeGroupsRequest(names), node)) for node, names in pieces]
        fetches = [(node, _all_offsets(node, names)) for node, names in pieces]
        answers = await self._answers.of([*described, *fetches])
        newer: dict[int, list[str]] = {}
        older: dict[int, list[str]] = {}
        for (node, _), answer in zip(pieces, answers, strict=False):
            for group in answer.groups if answer is not None else ():
                if is_missing(group):
                    newer.setdefault(node, []).append(group.group_id)
                else:
                    self._learn_group(node, group)
        for (node, names), answer in zip(pieces, answers[len(pieces) :], strict=True):
            if answer is None:
                continue
            if not answer.groups and len(names) > 1:
                older.setdefault(node, []).extend(names)
            else:
                self._learn_offsets(names, answer)
        return newer, older

    async def _ask_again(self, newer: dict[int, list[str]], older: dict[int, list[str]]) -> None:
        """Ask for the members of groups of the newer protocol, and for the offsets of groups one by one."""
        described = [
            (node, question(consumer_group_describe.ConsumerGroupDescribeRequest(names), node))
            for node, names in newer.items()
        ]
        single = [(node, name) for node, names in older.items() for name in names]
        fetches = [(node, _all_offsets(node, [name])) for node, name in single]
        answers = await self._answers.of([*described, *fetches])
        for (node, names), answer in zip(newer.items(), answers, strict=False):
            for group in answer.groups if answer is not None else ():
                self._learn_group(node, group)
            if answer is None and node not in self._answers.silent:  # no newer protocol: the groups were deleted
                self.errors.update((name, missing(name)) for name in names)
        for (_, name), answer in zip(single, answers[len(described) :], strict=True):
            if answer is not None:
                self._learn_offsets([name], answer)

    def _learn_group(self, node: int, group: Any) -> None:
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            self.errors[group.group_id] = missing(group.group_id)
        elif group.error_code:
            self.errors[group.group_id] = KafkaError(error_for(group.error_code), group.error_message)
        else:
            self.described[group.group_id] = node, group

    def _learn_offsets(self, names: Sequence[str], answer: Any) -> None:
        """Record the offsets in the answer for several groups, or in an older broker's answer for one group."""
        for name, group in [(one.group_id, one) for one in answer.groups] or [(names[0], answer)]:
            try:
                found = fetched_of_group(group)
            except KafkaError as error:
                self.errors.setdefault(name, error)
            else:
                self.offsets[name] = {at: one for at, one in found.items() if one is not None}


def description(node: int, group: Any) -> GroupDescription:
    """Return a group as its coordinator described it, by the classic or by the newer protocol."""
    if isinstance(group, consumer_group_describe.DescribedConsumerGroup):
        newer = tuple(sorted(map(_newer_member, group.members)))
        return GroupDescription(group.group_id, group.group_state, _CONSUMERS, group.assignor_name, node, newer)
    kind = group.protocol_type
    members = tuple(
        sorted(
            GroupMember(
                member.member_id, member.group_instance_id, member.client_id, member.client_host,
                _topics(kind, member.member_metadata), _assigned(kind, member.member_assignment),
            )
            for member in group.members
        )
    )  # fmt: skip
    return GroupDescription(group.group_id, group.group_state, kind, group.protocol_data, node, members)


def _newer_member(member: Any) -> GroupMember:
    assigned = tuple(
        TopicPartition(topic.topic_name, index)
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    )
    return GroupMember(
        member.member_id, member.instance_id, member.client_id, member.client_host,
        tuple(member.subscribed_topic_names), assigned,
    )  # fmt: skip


def is_missing(group: Any) -> bool:
    """Return whether a coordinator has no classic group of this name."""
    return group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (group.group_state == _DEAD and not group.members)


def missing(name: str) -> KafkaError:
    """Return the error for a group that does not exist."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}")


def _topics(kind: str, metadata: bytes | memoryview) -> tuple[str, ...]:
    try:
        return decode_subscription(metadata).topics if kind == _CONSUMERS and len(metadata) else ()
    except InvalidReply:  # the member sent invalid bytes
        return ()


def _assigned(kind: str, assignment: bytes | memoryview) -> tuple[TopicPartition, ...]:
    try:
        return tuple(decode_assignment(assignment)) if kind == _CONSUMERS else ()
    except InvalidReply:
        return ()


def _all_offsets(node: int, names: list[str]) -> Question:
    return Question(OffsetFetchRequest, lambda version: all_offsets_request(names, version), node, NAMES_UNTIL)
