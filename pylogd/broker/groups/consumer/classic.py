"""Members of the classic protocol in a group of the newer protocol: the effects of their requests, and the answers.

A classic member follows the target assignment like the others, but only its JoinGroup requests take steps: they name
its subscription and its partitions. The generation in the answer is its member epoch. When there is a step to take, its
heartbeats are answered REBALANCE_IN_PROGRESS. SyncGroup returns the partitions that it may use. It is never asked to
assign.

Rules: those of `heartbeats` apply. An eager member has given up all its partitions when it joins, so it never waits for
a second round. A refused request raises HeartbeatRefused.
Source: KIP-848 ("Classic Rebalance Protocol" in a consumer group); the error codes are those of Kafka's coordinator.
Must not know: the reactor, logs, timeouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.embedded import CONSUMER, Subscription, assignment_for, read_subscription
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import (
    Change,
    Draft,
    FindTopic,
    HeartbeatRefused,
    View,
    give_place,
    go_on,
    note_member,
)
from pylogd.broker.groups.consumer.members import (
    ClassicProtocol,
    ConsumerMember,
    MemberState,
    TopicPartition,
    partitions_by_topic,
)
from pylogd.broker.groups.values import JoinRequest, LeavingMember
from pylogd.broker.metadata.image import Topic
from pylogd.broker.replica.internal_records import InvalidRecord


def join(group: ConsumerGroup, request: JoinRequest, member_id: str, view: View) -> Change:
    """Return the change that a JoinGroup request makes. Its member's epoch is the generation to answer with.

    member_id: the request's member id, or a new one if it has none.

    Raises HeartbeatRefused.
    """
    subscription = subscription_of(request)
    draft = Draft(group)
    known = _known(draft, request, member_id)
    before = known or ConsumerMember(member_id)
    told = replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=subscription.rack or before.rack_id,
        rebalance_ms=round(request.rebalance * 1000),
        topics=subscription.topics,
        regex=None,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicProtocol(round(request.session * 1000), request.protocols),
    )
    note_member(draft, known, told)
    owned = ids_of(subscription.owned, view.find)
    after = go_on(draft, member_id, owned, view, raised=draft.group.epoch != group.epoch)
    return Change(draft.group, draft.records, after)


def subscription_of(request: JoinRequest) -> Subscription:
    """Return the subscription of a client that joins, the same in all its protocols. Raises HeartbeatRefused."""
    if request.protocol_type != CONSUMER or not request.protocols:
        raise _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return read_subscription(request.protocols[0][1])
    except InvalidRecord as error:
        raise _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error


def supports(group: ConsumerGroup, protocols: Collection[str]) -> bool:
    """Return whether all classic members of a group support one of these protocols."""
    common: set[str] | None = None
    for member in group.members.values():
        if member.classic is not None:
            names = {name for name, _ in member.classic.protocols}
            common = names if common is None else common & names
    return bool(protocols) and (common is None or not common.isdisjoint(protocols))


def _known(draft: Draft, request: JoinRequest, member_id: str) -> ConsumerMember | None:
    """Return the group's member that joins; None if it is new. Raises HeartbeatRefused."""
    if request.instance_id is None:
        return draft.group.members.get(member_id)
    former = draft.group.instances.get(request.instance_id)
    if not request.member_id:
        return None if former is None else give_place(draft, draft.group.members[former], member_id)
    return check(draft.group, request.member_id, request.instance_id)


def check(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return the member that sent a request. Raises HeartbeatRefused if the group does not have it."""
    if instance_id is not None:
        holder = group.instances.get(instance_id)
        if holder not in (None, member_id):
            raise _refused(ErrorCode.FENCED_INSTANCE_ID)
        member = None if holder is None else group.members[holder]
    else:
        member = group.members.get(member_id)
    if member is None:
        raise _refused(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def check_generation(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicProtocol]:
    """Return the classic member that sent a request. Raises HeartbeatRefused for an old generation."""
    member = check(group, member_id, instance_id)
    if member.classic is None:
        raise _refused(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        raise _refused(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def check_protocol(classic: ClassicProtocol, protocol_type: str | None, protocol: str | None) -> None:
    """Raise HeartbeatRefused if a SyncGroup request has another protocol than the answer to JoinGroup had."""
    if protocol_type not in (None, CONSUMER) or protocol not in (None, classic.protocols[0][0]):
        raise _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def has_to_join(group: ConsumerGroup, member: ConsumerMember, epoch: int) -> bool:
    """Return whether a classic member has to join again, to give up or to get partitions.

    epoch: the epoch that a member would get if it joined now.
    """
    if member.epoch != epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)


def is_behind(member: ConsumerMember, epoch: int) -> bool:
    """Return whether a member that sends SyncGroup has to join again first, to get this epoch.

    While it gives up partitions it does not have to.
    """
    return member.epoch != epoch and member.state is not MemberState.UNREVOKED_PARTITIONS


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    missing = group.target_of(member.member_id) - member.assigned.keys()
    return any(partition in group.owners for partition in missing)


def assignment_of(member: ConsumerMember, classic: ClassicProtocol, topic_of: Callable[[bytes], Topic | None]) -> bytes:
    """Encode the partitions that a classic member may use, without those of deleted topics."""
    return encode_assignment(member.assigned, classic.protocols[0][1], topic_of)


def encode_assignment(
    partitions: Collection[TopicPartition], metadata: bytes, topic_of: Callable[[bytes], Topic | None]
) -> bytes:
    """Encode partitions as the assignment of a member that has sent this metadata."""
    named: dict[str, Sequence[int]] = {}
    for topic_id, indexes in partitions_by_topic(partitions).items():
        topic = topic_of(topic_id)
        if topic is not None:
            named[topic.name] = indexes
    return assignment_for(named, metadata)


def who_leaves(group: ConsumerGroup, leavers: Sequence[LeavingMember]) -> list[str | ErrorCode]:
    """Return the member id of each member that a LeaveGroup request names, or an error code.

    A member of the newer protocol does not leave by LeaveGroup and gets UNKNOWN_MEMBER_ID.
    """
    found: list[str | ErrorCode] = []
    for leaver in leavers:
        holder = group.instances.get(leaver.instance_id or "")
        by_instance = leaver.instance_id is not None and not leaver.member_id
        member_id = holder or "" if by_instance else leaver.member_id
        try:
            member = check(group, member_id, leaver.instance_id)
        except HeartbeatRefused as refused:
            found.append(refused.code)
        else:
            found.append(ErrorCode.UNKNOWN_MEMBER_ID if member.classic is None else member.member_id)
    return found


def all_classic(group: ConsumerGroup, without: Collection[str]) -> bool:
    """Return whether only classic members remain when these members leave, one of which has the newer protocol."""
    left = all(member.classic is not None for member_id, member in group.members.items() if member_id not in without)
    return left and any(group.members[member_id].classic is None for member_id in without)


def ids_of(partitions: Collection[tuple[str, int]], find: FindTopic) -> frozenset[TopicPartition]:
    """Return partitions with topic ids instead of names, without topics that no longer exist."""
    topics = {name: find(name) for name in {name for name, _ in partitions}}
    return frozenset((topic.topic_id, index) for name, index in partitions if (topic := topics[name]) is not None)


def _refused(code: ErrorCode) -> HeartbeatRefused:
    return HeartbeatRefused(code, code.text)
