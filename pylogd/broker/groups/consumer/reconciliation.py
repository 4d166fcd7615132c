"""Decide the next step of one member towards its target assignment.

The steps are those of KIP-848. A member that has partitions outside its target must give them up, and stays at its
epoch until its heartbeats no longer name them. Then it moves to the target's epoch and gets the free partitions of its
target. It gets partitions that another member still has once that member has given them up.

A partition is never assigned to two members at a time. The member that has it is its owner, even while it gives the
partition up.
Must not know: groups, clocks, records.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import replace

from pylogd.broker.groups.consumer.members import Assigned, ConsumerMember, MemberState, TopicPartition


def next_step(
    member: ConsumerMember,
    target: Set[TopicPartition],
    epoch: int,
    taken: Collection[TopicPartition],
    owned: Set[TopicPartition] | None,
) -> ConsumerMember:
    """Return the member after its next step; the same object if nothing changes.

    target: its target partitions, of the topics to which it subscribes.
    epoch: the target's epoch.
    taken: all partitions that members have or are giving up, including its own.
    owned: the partitions that the member reports; None if it reports none, because they have not changed.
    """
    if member.state is MemberState.STABLE and member.epoch == epoch and target >= member.assigned.keys():
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns(member.revoking, owned):
        return _revoke_more(member, target)
    kept = {partition: since for partition, since in member.assigned.items() if partition in target}
    revoking = {partition: since for partition, since in member.assigned.items() if partition not in target}
    if revoking and _owns(revoking, owned):
        return _changed(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, revoking)
    wanted = target - kept.keys()
    free = {partition for partition in wanted if partition not in taken or partition in member.revoking}
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
    return _changed(member, state, epoch, {**kept, **dict.fromkeys(free, epoch)}, {})


def _owns(partitions: Assigned, owned: Set[TopicPartition] | None) -> bool:
    """Return whether the member has any of these partitions. If it reports none, it still has the earlier ones."""
    return owned is None or not owned.isdisjoint(partitions.keys())


def _revoke_more(member: ConsumerMember, target: Set[TopicPartition]) -> ConsumerMember:
    """Let a member that is giving up partitions also give up partitions that its target has lost since then."""
    if target >= member.assigned.keys():
        return member
    kept = {partition: since for partition, since in member.assigned.items() if partition in target}
    revoking = {partition: since for partition, since in member.assigned.items() if partition not in target}
    state = MemberState.UNREVOKED_PARTITIONS
    return _changed(member, state, member.epoch, kept, {**member.revoking, **revoking})


def _changed(
    member: ConsumerMember, state: MemberState, epoch: int, assigned: Assigned, revoking: Assigned
) -> ConsumerMember:
    previous = member.previous_epoch if epoch == member.epoch else member.epoch
    changed = replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=previous,
        assigned=assigned,
        revoking=revoking,
    )
    return member if changed == member else changed
