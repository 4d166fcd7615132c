"""The administrator's operations on consumer groups, for all faces (see `operations`).

Strategy: to describe many groups, or to add up their members and lag, all coordinators are asked at the same time, each
for all of its groups at once (`group_answers`); then the ends of the logs of committed offsets are looked up. So the
number of requests depends on brokers, not on groups. A broker that has not answered is not asked again.

Rules: each try looks up the coordinator of each group again, because it may have moved. A group that has members
refuses changes of its committed offsets: NON_EMPTY_GROUP, GROUP_SUBSCRIBED_TO_TOPIC, or UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.admin.calls import Answers, Calls, question, refresh
from pylogd.client.core.admin.coordinators import ask_coordinator, coordinator_of, coordinators_of
from pylogd.client.core.admin.group_answers import GroupAnswers, description, is_missing, missing
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, EndSearch, find_offsets
from pylogd.client.core.group import commits
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.metadata import check, error_text
from pylogd.client.core.model import (
    GroupDescription,
    GroupListing,
    GroupsDescribed,
    GroupTotal,
    GroupTotals,
    OffsetAndMetadata,
    OffsetSpec,
    TopicPartition,
)
from pylogd.wire.messages import consumer_group_describe, delete_groups, describe_groups, list_groups, offset_delete
from pylogd.wire.messages.offset_commit import OffsetCommitRequest
from pylogd.wire.messages.offset_fetch import OffsetFetchRequest

Outcome = dict[str, KafkaError | None]
Offset = int | OffsetAndMetadata


class GroupOperations:
    """Operations that list, describe, delete and reset groups."""

    _calls: Calls

    async def list_groups(self, states: Sequence[str] = ()) -> list[GroupListing]:
        """Return all groups of all brokers, by id, or those in some states (as the protocol names states).

        The brokers are asked at the same time. Raises the error of a broker that does not answer.
        """
        wanted = {state.lower() for state in states}

        async def attempt() -> list[GroupListing]:
            await refresh(self._calls, [])
            found: list[GroupListing] = []
            for answer in (await self._listed(self._calls.metadata.brokers)).values():
                if isinstance(answer, PylogdError):
                    raise answer
                found += answer
            return sorted(group for group in found if not wanted or group.state.lower() in wanted)

        return await self._calls.call(attempt)

    async def groups_by_broker(
        self, timeout: float | None = None, silent: Iterable[int] = ()
    ) -> dict[int, list[GroupListing] | PylogdError]:
        """Return the groups that each broker coordinates, or its error if it does not answer within `timeout` seconds.

        All brokers are asked at the same time. Those that still load their groups are asked again. Raises the error if
        the brokers' addresses can't be found.

        silent: brokers that have not answered before, and are not asked.
        """
        await self._calls.call(lambda: refresh(self._calls, [], timeout))
        found: dict[int, list[GroupListing] | PylogdError] = {}
        left_out = set(silent)

        async def attempt() -> None:
            nodes = self._calls.metadata.brokers.keys() - left_out
            found.update(
                await self._listed([one for one in nodes if one not in found or _is_loading(found[one])], timeout)
            )
            for answer in found.values():
                if isinstance(answer, KafkaError) and _is_loading(answer):
                    raise answer

        with suppress(KafkaError):  # the error is in `found`
            await self._calls.call(attempt)
        return dict(sorted(found.items()))

    async def _listed(
        self, nodes: Iterable[int], timeout: float | None = None
    ) -> dict[int, list[GroupListing] | PylogdError]:
        """Return the groups of some brokers, or the error of each. All brokers are asked at the same time."""
        some = sorted(nodes)
        questions = [question(list_groups.ListGroupsRequest(), node) for node in some]
        answers = await self._calls.send_all(questions, timeout)
        return {node: _listings(node, answer) for node, answer in zip(some, answers, strict=True)}

    async def group_totals(
        self, groups: Iterable[GroupListing], silent: Iterable[int] = (), timeout: float | None = None
    ) -> GroupTotals:
        """Return the number of members and the lag in records of listed groups that still exist.

        All needed brokers are asked at the same time, each for all of its groups or logs at once. The result names the
        brokers that do not answer within `timeout` seconds; figures that only they know are None.

        silent: brokers that did not answer earlier, and are not asked again.
        """
        answers, found, ends = await _begin(self._calls, silent, timeout)
        by_node: dict[int, list[str]] = {}
        for group in groups:
            by_node.setdefault(group.coordinator, []).append(group.group_id)
        await found.ask(by_node)
        committed = {partition for offsets in found.offsets.values() for partition in offsets}
        await ends.find(committed, sorted(by_node), timeout)
        totals = {
            name: GroupTotal(_members(found, name), _lag(found, ends, name))
            for names in by_node.values()
            for name in names
            if name not in found.errors or found.errors[name].code is not ErrorCode.GROUP_ID_NOT_FOUND
        }
        errors = {name: error for name, error in found.errors.items() if name in totals}
        return GroupTotals(totals, tuple(sorted(answers.silent)), errors)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Return a group, its members and their assignments. Raises KafkaError: GROUP_ID_NOT_FOUND.

        Groups of the classic protocol are searched first, then groups of the newer protocol (KIP-848).
        """
        try:
            return await self._describe_classic(group_id)
        except KafkaError as missing:
            if missing.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            try:
                return await self._describe_consumers(group_id)
            except KafkaError as error:
                if error.code is ErrorCode.UNSUPPORTED_VERSION:
                    raise missing from None
                raise

    async def _describe_consumers(self, group_id: str) -> GroupDescription:
        request = consumer_group_describe.ConsumerGroupDescribeRequest([group_id])
        node, response = await self._ask(group_id, lambda _: request, lambda r: [g.error_code for g in r.groups])
        [group] = response.groups
        check(group.error_code, group.error_message)
        return description(node, group)

    async def _describe_classic(self, group_id: str) -> GroupDescription:
        request = describe_groups.DescribeGroupsRequest(groups=[group_id])
        node, response = await self._ask(group_id, lambda _: request, lambda r: [g.error_code for g in r.groups])
        [group] = response.groups
        if is_missing(group):
            raise missing(group_id)
        check(group.error_code, group.error_message)
        return description(node, group)

    async def describe_groups(
        self, group_ids: Iterable[str], silent: Iterable[int] = (), timeout: float | None = None
    ) -> GroupsDescribed:
        """Return groups, their members and committed offsets, and the ends of the logs that they read.

        All brokers that are needed are asked at the same time, and each for all of its groups or logs at once. Those
        that do not answer within `timeout` seconds are in the result.

        silent: brokers that have not answered before, and are not asked.
        """
        names = list(dict.fromkeys(group_ids))
        answers, found, ends = await _begin(self._calls, silent, timeout)

        async def attempt() -> None:
            """Ask for the groups that are not known yet. Raises KafkaError if another try may find more."""
            left = [name for name in names if name not in found.described or name in found.errors]
            by_node, errors = await coordinators_of(self._calls, answers, left)
            await found.ask(by_node)
            found.errors.update(errors)
            for name in left:
                if name in found.errors and found.errors[name].retriable:
                    raise found.errors[name]

        with suppress(KafkaError):  # the error is in `found`
            await self._calls.call(attempt, timeout)
        groups = {name: description(*found.described[name]) for name in names if name in found.described}
        partitions = {at for name in groups for at in found.offsets.get(name, ())}
        partitions.update(at for group in groups.values() for member in group.members for at in member.assignment)
        await ends.find(partitions, sorted(self._calls.metadata.brokers), timeout)
        return GroupsDescribed(groups, found.offsets, ends.found, tuple(sorted(answers.missed)), found.errors)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, and its committed offsets. Raises KafkaError."""
        for error in (await self.delete_groups([group_id])).values():
            if error is not None:
                raise error

    async def delete_groups(self, group_ids: Sequence[str]) -> Outcome:
        """Delete groups that have no members, and their committed offsets. Return the outcome by group."""
        return {group_id: await self._delete(group_id) for group_id in group_ids}

    async def _delete(self, group_id: str) -> KafkaError | None:
        request = delete_groups.DeleteGroupsRequest(groups_names=[group_id])
        try:
            _, response = await self._ask(group_id, lambda _: request, lambda r: [g.error_code for g in r.results])
            for answer in response.results:
                check(answer.error_code, f"group {group_id}: {error_text(answer.error_code)}")
        except KafkaError as error:
            return error
        return None

    async def group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets, of some partitions or of all.

        Partitions without an offset are left out.
        """
        wanted = None if partitions is None else [TopicPartition(*partition) for partition in partitions]
        _, response = await self._ask(
            group_id,
            lambda version: commits.fetch_request(group_id, wanted, version),
            lambda r: [r.groups[0].error_code if r.groups else r.error_code],
            api=OffsetFetchRequest,
            highest=commits.NAMES_UNTIL,
        )
        return {partition: offset for partition, offset in commits.fetched(response).items() if offset is not None}

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]
    ) -> None:
        """Commit offsets for a group that has no members, each the offset of the next record to read.

        Raises KafkaError.
        """
        chosen = {
            TopicPartition(*partition): offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
            for partition, offset in offsets.items()
        }
        _, response = await self._ask(
            group_id,
            lambda version: commits.commit_request(GroupMetadata(group_id), chosen, version),
            lambda r: commits.commit_errors(r).values(),
            api=OffsetCommitRequest,
            highest=commits.NAMES_UNTIL,
        )
        errors = commits.commit_errors(response)
        for partition, error in errors.items():
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members: stop them first")
            done = len(chosen) - len(errors)
            raise KafkaError(error, f"{partition}: {error.text} ({done} of {len(chosen)} offsets are committed)")

    async def plan_group_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], to: OffsetSpec
    ) -> dict[TopicPartition, int]:
        """Return the offsets that a reset would commit for a group. Nothing is changed.

        An offset outside a log is replaced by the nearest offset in the log. `to.shift` counts from the committed
        offset: partitions without a committed offset are left out. Partitions that are not in `to.offsets` are left
        out too.
        """
        wanted = [TopicPartition(*partition) for partition in partitions]
        begins = await find_offsets(self._calls, dict.fromkeys(wanted, EARLIEST))
        ends = await find_offsets(self._calls, dict.fromkeys(wanted, LATEST))
        targets: dict[TopicPartition, int]
        if to.timestamp is not None:
            found = await find_offsets(self._calls, dict.fromkeys(wanted, to.timestamp))
            targets = {p: at.offset if at.offset >= 0 else ends[p].offset for p, at in found.items()}
        elif to.shift is not None:
            known = await self.group_offsets(group_id, wanted)
            targets = {partition: offset.offset + to.shift for partition, offset in known.items()}
        elif to.offset is not None:
            targets = dict.fromkeys(wanted, to.offset)
        elif to.offsets is not None:
            targets = {p: to.offsets[p] for p in wanted if p in to.offsets}
        else:
            targets = {p: (begins if to.earliest else ends)[p].offset for p in wanted}
        return {p: max(begins[p].offset, min(offset, ends[p].offset)) for p, offset in targets.items()}

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Delete a group's committed offsets of some partitions. Raises KafkaError: GROUP_SUBSCRIBED_TO_TOPIC."""
        topics: dict[str, offset_delete.OffsetDeleteRequestTopic] = {}
        for name, index in partitions:
            topic = topics.setdefault(name, offset_delete.OffsetDeleteRequestTopic(name))
            topic.partitions.append(offset_delete.OffsetDeleteRequestPartition(index))
        request = offset_delete.OffsetDeleteRequest(group_id, list(topics.values()))
        _, response = await self._ask(group_id, lambda _: request, lambda r: [r.error_code])
        check(response.error_code)
        for answered in response.topics:
            for answer in answered.partitions:
                code = answer.error_code
                check(code, f"{answered.name}-{answer.partition_index}: {error_text(code)}")

    # The coordinator

    async def coordinator(self, group_id: str) -> int:
        """Return the id of the broker that coordinates a group. The group need not exist yet. Raises KafkaError."""
        return await self._calls.call(lambda: coordinator_of(self._calls, group_id))

    async def _ask(
        self,
        group_id: str,
        at: Callable[[int], Any],
        codes: Callable[[Any], Iterable[int]],
        *,
        api: Any = None,
        highest: int | None = None,
    ) -> tuple[int, Any]:
        """Return the coordinator, and its answer to the request that `at` makes for a version. Ask again after a
        retriable error.
        """
        return await ask_coordinator(self._calls, group_id, at, codes, api=api, highest=highest)


def _is_loading(answer: object) -> bool:
    """Return whether a broker has answered that it can list its groups later."""
    return isinstance(answer, KafkaError) and answer.retriable


def _listings(node: int, answer: list_groups.ListGroupsResponse | PylogdError) -> list[GroupListing] | PylogdError:
    """Return a broker's groups, or the error."""
    if isinstance(answer, PylogdError):
        return answer
    if answer.error_code:
        return KafkaError(error_for(answer.error_code))
    return [GroupListing(one.group_id, one.group_state, one.protocol_type, node) for one in answer.groups]


async def _begin(calls: Calls, silent: Iterable[int], timeout: float | None) -> tuple[Answers, GroupAnswers, EndSearch]:
    """Return the objects that collect answers of brokers, answers about groups, and the ends of logs.

    If no broker is known, ask for the brokers first.
    """
    if not calls.metadata.brokers:
        await calls.call(lambda: refresh(calls))
    answers = Answers(calls, silent, timeout)
    return answers, GroupAnswers(answers), EndSearch(calls, answers)


def _members(found: GroupAnswers, name: str) -> int | None:
    return len(found.described[name][1].members) if name in found.described else None


def _lag(found: GroupAnswers, ends: EndSearch, name: str) -> int | None:
    """Return the lag of a group; None if its offsets, or the end of a log that still exists, are not known."""
    if name not in found.offsets:
        return None
    lag = 0
    for partition, committed in found.offsets[name].items():
        if partition not in ends.deleted:
            if partition not in ends.found:
                return None
            lag += max(0, ends.found[partition] - committed.offset)
    return lag
