"""Add up the members and the lag of groups, in a number of requests that depends on brokers, not on groups.

Strategy: all coordinators are asked at the same time, each for all of its groups at once; then one broker for the
leaders of the topics with committed offsets, and all leaders at the same time, each for all ends of logs. A broker that
has not answered is not asked again. Brokers before OffsetFetch version 8 (Kafka 3.0) are asked group by group.

Source: KIP-709 for the offsets of several groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from pylogd.client.core.admin.calls import Calls, Question, question, refresh
from pylogd.client.core.admin.offsets import LATEST, offsets_request, read_offsets
from pylogd.client.core.group.commits import NAMES_UNTIL, all_offsets_request, fetched_of_group
from pylogd.client.core.model import GroupListing, GroupTotal, GroupTotals, TopicPartition
from pylogd.errors import ErrorCode, KafkaError, PylogdError, UnsupportedByBroker, error_for
from pylogd.wire.messages import consumer_group_describe, describe_groups
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest

#: Groups that one request is about at most: the answer has the subscriptions of all members, and all offsets.
_MOST_GROUPS: Final = 1000
_DEAD: Final = "Dead"
_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def add_up_groups(
    calls: Calls, groups: Iterable[GroupListing], silent: Iterable[int], timeout: float | None
) -> GroupTotals:
    """See `GroupOperations.group_totals`."""
    return await _Totals(calls, silent, timeout).add_up(groups)


class _Totals:
    """What the brokers have answered so far. `_ends`: log end offsets; a partition without one was not answered."""

    def __init__(self, calls: Calls, silent: Iterable[int], timeout: float | None) -> None:
        self._calls = calls
        self._silent = set(silent)
        self._timeout = timeout
        self._members: dict[str, int] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._errors: dict[str, KafkaError] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._deleted: set[TopicPartition] = set()

    async def add_up(self, groups: Iterable[GroupListing]) -> GroupTotals:
        if not self._calls.metadata.brokers:
            await self._calls.call(lambda: refresh(self._calls))
        by_node: dict[int, list[str]] = {}
        for group in groups:
            by_node.setdefault(group.coordinator, []).append(group.group_id)
        pieces = [(node, names[at : at + _MOST_GROUPS]) for node, names in sorted(by_node.items())
                  for at in range(0, len(names), _MOST_GROUPS)]  # fmt: skip
        newer, older = await self._ask_coordinators(pieces)
        await self._ask_coordinators_again(newer, older)
        with suppress(KafkaError):  # ends that can't be found for now are not known
            await self._calls.call(lambda: self._find_ends(sorted(by_node)), self._timeout)
        totals = {
            name: GroupTotal(self._members.get(name), self._lag(name))
            for names in by_node.values()
            for name in names
            if name not in self._errors or self._errors[name].code is not ErrorCode.GROUP_ID_NOT_FOUND
        }
        errors = {name: error for name, error in self._errors.items() if name in totals}
        return GroupTotals(totals, tuple(sorted(self._silent)), errors)

    async def _ask_coordinators(
        self, pieces: Sequence[tuple[int, list[str]]]
    ) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
        """Ask for the members of classic groups, and for all offsets.

        Return the groups of the newer protocol, and those of brokers that answer for one group only, by broker.
        """
        described = [(node, question(describe_groups.DescribeGroupsRequest(names), node)) for node, names in pieces]
        fetches = [(node, _all_offsets(node, names)) for node, names in pieces]
        answers = await self._send([*described, *fetches])
        newer: dict[int, list[str]] = {}
        older: dict[int, list[str]] = {}
        for (node, _), answer in zip(pieces, answers, strict=False):
            for group in answer.groups if answer is not None else ():
                if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (
                    group.group_state == _DEAD and not group.members
                ):
                    newer.setdefault(node, []).append(group.group_id)
                else:
                    self._learn_members(group)
        for (node, names), answer in zip(pieces, answers[len(pieces) :], strict=True):
            if answer is None:
                continue
            if not answer.groups and len(names) > 1:
                older.setdefault(node, []).extend(names)
            else:
                self._learn_offsets(names, answer)
        return newer, older

    async def _ask_coordinators_again(self, newer: dict[int, list[str]], older: dict[int, list[str]]) -> None:
        """Ask for the members of groups of the newer protocol, and for the offsets of groups one by one."""
        described = [
            (node, question(consumer_group_describe.ConsumerGroupDescribeRequest(names), node))
            for node, names in newer.items()
        ]
        single = [(node, name) for node, names in older.items() for name in names]
        fetches = [(node, _all_offsets(node, [name])) for node, name in single]
        answers = await self._send([*described, *fetches])
        for (node, names), answer in zip(newer.items(), answers, strict=False):
            for group in answer.groups if answer is not None else ():
                self._learn_members(group)
            if answer is None and node not in self._silent:  # without the newer protocol: they were deleted meanwhile
                self._errors.update((name, KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)) for name in names)
        for (_, name), answer in zip(single, answers[len(described) :], strict=True):
            if answer is not None:
                self._learn_offsets([name], answer)

    async def _find_ends(self, nodes: Sequence[int]) -> None:
        """Find the ends of logs that are missing, in one try. Raises KafkaError if another try may find more."""
        committed = {partition for offsets in self._offsets.values() for partition in offsets}
        wanted = sorted(committed - self._ends.keys() - self._deleted)
        leaders = await self._leaders(nodes, {partition.topic for partition in wanted})
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition in wanted:
            leader = leaders.get(partition.topic, {}).get(partition.partition)
            if leader is None and partition.topic in leaders:
                self._deleted.add(partition)
            elif leader is not None and leader >= 0:
                by_leader.setdefault(leader, {})[partition] = LATEST
        questions = [(leader, question(offsets_request(some), leader)) for leader, some in by_leader.items()]
        passing = None
        for answer in await self._send(questions):
            for partition, found in (read_offsets(answer) if answer is not None else {}).items():
                if not isinstance(found, KafkaError):
                    self._ends[partition] = found.offset
                elif found.retriable:
                    passing = found
        if passing is not None:
            raise passing

    async def _leaders(self, nodes: Sequence[int], topics: Collection[str]) -> dict[str, dict[int, int]]:
        """Return the leaders of topics' partitions, none for a topic that was deleted, as the first broker says that
        answers. Topics about which it can't tell are left out.
        """
        metadata = self._calls.metadata
        for node in nodes if topics else ():
            ask = Question(MetadataRequest, lambda version: metadata.request(topics, version, create=False), node)
            [answer] = await self._send([(node, ask)])
            if answer is not None:
                errors = metadata.learn_each(answer)
                deleted = [name for name, error in errors.items() if error.code is _UNKNOWN]
                known = [metadata.topics[name] for name in topics if name in metadata.topics]
                return {name: {} for name in deleted} | {
                    topic.name: {one.index: one.leader for one in topic.partitions} for topic in known
                }
        return {}

    async def _send(self, questions: Sequence[tuple[int, Question]]) -> list[Any]:
        """Return the answers of brokers, all of which are asked at the same time.

        None for one that does not answer, which is then known as silent, and for one that does not know the API.
        """
        silent = set(self._silent)
        asked = [one for node, one in questions if node not in silent]
        answers = iter(await self._calls.send_all(asked, self._timeout) if asked else [])
        found = []
        for node, _ in questions:
            answer = None if node in silent else next(answers)
            if isinstance(answer, PylogdError):
                if not isinstance(answer, (KafkaError, UnsupportedByBroker)):
                    self._silent.add(node)
                answer = None
            found.append(answer)
        return found

    def _learn_members(self, group: Any) -> None:
        if group.error_code:
            self._errors[group.group_id] = KafkaError(error_for(group.error_code), group.error_message)
        else:
            self._members[group.group_id] = len(group.members)

    def _learn_offsets(self, names: Sequence[str], answer: Any) -> None:
        """Take in the answer for groups, or that of an older broker for one group."""
        for name, group in [(one.group_id, one) for one in answer.groups] or [(names[0], answer)]:
            try:
                found = fetched_of_group(group)
            except KafkaError as error:
                self._errors.setdefault(name, error)
            else:
                self._offsets[name] = {at: one.offset for at, one in found.items() if one is not None}

    def _lag(self, name: str) -> int | None:
        """Return the lag of a group; None if its offsets are not known, or the end of a log that still exists."""
        lag = 0
        offsets = self._offsets.get(name)
        for partition, offset in () if offsets is None else offsets.items():
            if partition not in self._deleted:
                if partition not in self._ends:
                    return None
                lag += max(0, self._ends[partition] - offset)
        return None if offsets is None else lag


def _all_offsets(node: int, names: list[str]) -> Question:
    return Question(OffsetFetchRequest, lambda version: all_offsets_request(names, version), node, NAMES_UNTIL)
