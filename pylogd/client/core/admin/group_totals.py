"""Describe groups and add up their members and lag, in a number of requests that depends on brokers, not on groups.

Strategy: all coordinators are asked at the same time, each for all of its groups at once (`group_answers`); then the
ends of the logs of committed offsets are looked up (`log_ends`). A broker that has not answered is not asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.admin.answers import Answers
from pylogd.client.core.admin.calls import Calls, refresh
from pylogd.client.core.admin.coordinators import coordinators_of
from pylogd.client.core.admin.group_answers import GroupAnswers, description
from pylogd.client.core.admin.log_ends import EndSearch
from pylogd.client.core.model import GroupListing, GroupsDescribed, GroupTotal, GroupTotals


async def _begin(calls: Calls, silent: Iterable[int], timeout: float | None) -> tuple[Answers, GroupAnswers, EndSearch]:
    """Return the objects that collect answers of brokers, answers about groups, and the ends of logs.

    If no broker is known, ask for the brokers first.
    """
    if not calls.metadata.brokers:
        await calls.call(lambda: refresh(calls))
    answers = Answers(calls, silent, timeout)
    return answers, GroupAnswers(answers), EndSearch(calls, answers)


async def add_up_groups(
    calls: Calls, groups: Iterable[GroupListing], silent: Iterable[int], timeout: float | None
) -> GroupTotals:
    """See `GroupOperations.group_totals`."""
    answers, found, ends = await _begin(calls, silent, timeout)
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


async def describe_groups(
    calls: Calls, names: Sequence[str], silent: Iterable[int], timeout: float | None
) -> GroupsDescribed:
    """See `GroupOperations.describe_groups`."""
    answers, found, ends = await _begin(calls, silent, timeout)

    async def attempt() -> None:
        """Ask for the groups that are not known yet. Raises KafkaError if another try may find more."""
        left = [name for name in names if name not in found.described or name in found.errors]
        by_node, errors = await coordinators_of(calls, answers, left)
        await found.ask(by_node)
        found.errors.update(errors)
        for name in left:
            if name in found.errors and found.errors[name].retriable:
                raise found.errors[name]

    with suppress(KafkaError):  # the error is in `found`
        await calls.call(attempt, timeout)
    groups = {name: description(*found.described[name]) for name in names if name in found.described}
    partitions = {at for name in groups for at in found.offsets.get(name, ())}
    partitions.update(at for group in groups.values() for member in group.members for at in member.assignment)
    await ends.find(partitions, sorted(calls.metadata.brokers), timeout)
    return GroupsDescribed(groups, found.offsets, ends.found, tuple(sorted(answers.missed)), found.errors)
