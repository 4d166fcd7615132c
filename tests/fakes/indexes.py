"""Check that whatever is looked up beside a table agrees with it: members of groups, fetch sessions, partitions."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from pylogd.broker.groups.consumer.active_group import ActiveGroup
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.members import ConsumerMember, MemberState
from pylogd.broker.groups.group import ClassicGroup, Member
from pylogd.broker.replica.partition_registry import PartitionRegistry
from pylogd.broker.replica.session_cache import FetchSessions


def check_classic_group(group: ClassicGroup) -> None:
    """Fail if an index of a classic group is not that of its members."""
    _check_ids(group)
    votes = Counter(name for member in group.members.values() for name in {name for name, _ in member.protocols})
    assert group._table.votes == votes
    assert group.sync_wait is None or group.sync_wait.missing <= group.members.keys()
    assert group.waiting_joins.keys() | group.waiting_syncs.keys() <= group.members.keys()
    assert group.leader in {None, *group.members}
    assert not group.pending.keys() & group.members.keys()


def check_consumer_group(group: ConsumerGroup) -> None:
    """Fail if an index of a group of the newer protocol is not that of its members."""
    _check_ids(group)
    assert group.owners == {
        partition: member.member_id
        for member in group.members.values()
        for partition in (*member.assigned, *member.revoking)
    }
    assert group.target.keys() <= group.members.keys()


def check_held_group(held: ActiveGroup) -> None:
    """Fail if a time belongs to no member, or to one of the protocol that does not have it."""
    check_consumer_group(held.group)
    members = held.group.members
    classic = {member_id for member_id, member in members.items() if member.classic is not None}
    assert held.deadlines.keys() <= members.keys()
    assert held.join_by.keys() | held.sync_by.keys() <= classic
    revoking = {key for key, member in members.items() if member.state is MemberState.UNREVOKED_PARTITIONS}
    assert held.revoke_by.keys() <= revoking - classic


def _check_ids(group: ClassicGroup | ConsumerGroup) -> None:
    members = cast("dict[str, Member | ConsumerMember]", dict(group.members))
    assert all(member.member_id == member_id for member_id, member in members.items())
    static = [member for member in members.values() if member.instance_id is not None]
    assert group.instances == {member.instance_id: member.member_id for member in static}
    assert len(group.instances) == len(static), "two members have one instance id"


def check_fetch_sessions(sessions: FetchSessions[Any]) -> None:
    """Fail if an index of fetch sessions is not that of the sessions and their entries."""
    owned: dict[object, set[int]] = {}
    for session_id, session in sessions._sessions.items():
        assert session.session_id == session_id
        if session.owner is not None:
            owned.setdefault(session.owner, set()).add(session_id)
        for (topic, index), entry in session.partitions.items():
            assert (entry.topic, entry.wanted.partition, entry.session) == (topic, index, session)
        assert session.dirty.keys() <= set(session.partitions.values())
    assert {owner: ids for owner, ids in sessions._owned.items() if ids} == owned


def check_partitions(partitions: PartitionRegistry) -> None:
    """Fail if an index of a broker's partitions is not that of the partitions by name."""
    by_name = partitions.by_name
    assert all(partition.key == key for key, partition in by_name.items())
    assert partitions.by_id == {(one.topic_id, one.index): one for one in by_name.values()}
    topics = {name: dict(partitions.of_topic(name)) for name in partitions.topics()}
    assert topics == {
        name: {index: one for (topic, index), one in by_name.items() if topic == name} for name, _ in by_name
    }
    assert partitions.replicated.keys() <= by_name.keys()
    assert all(by_name[key] is partition for key, partition in partitions.replicated.items())
