"""The effect of a member's heartbeat on its group: the records to write, and the answer to send when they are written.

Strategy: every function returns a `Change` and alters nothing. A heartbeat takes up to four steps. The member is made
or updated. The group epoch is raised if this, or a change of topics, affects the assignment. The target assignment is
made if it is for an earlier group epoch. The member takes its next step towards the target. Most heartbeats take none
of these steps.

Rules: a member is known by its member id. A static member can be replaced under another member id only after it has
announced that it leaves for a while, or if it uses the classic protocol. A member whose epoch is not the coordinator's
has to give up its partitions and join again. If it sends the previous epoch and has only partitions that it was given,
an answer was lost, and it need not. Epochs are only compared for equality: the last one is followed by 1.
Source: KIP-848; the checks and error codes are those of Kafka's group coordinator.
Must not know: the reactor, logs, requests of the protocol.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.base.limits.shares import NOBODY, Share
from pylogd.broker.groups.consumer.assignors import ASSIGNORS, Subscriber
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.members import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    ConsumerMember,
    MemberState,
    TopicPartition,
)
from pylogd.broker.groups.consumer.reconciliation import next_step
from pylogd.broker.groups.consumer.records import (
    AssignmentEpoch,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    Record,
    RecordType,
    RegularExpression,
    Removed,
    TargetAssignment,
)
from pylogd.broker.groups.values import next_generation
from pylogd.broker.metadata.image import Topic

#: Returns a topic by its name; None if there is no such topic.
FindTopic = Callable[[str], Topic | None]
#: Returns the topics that a regular expression matches and that the member may see. Raises HeartbeatRefused.
Match = Callable[[str], frozenset[str]]


class HeartbeatRefused(PylogdError):
    """A heartbeat is answered with an error."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Heartbeat(NamedTuple):
    """A heartbeat. None in a field, and -1 in `rebalance_ms`, mean that nothing has changed.

    epoch: the member epoch, or one of JOINING, LEAVING and LEAVING_FOR_A_WHILE.
    owned: the partitions that the member has.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None
    client_id: str = ""
    client_host: str = ""
    share: Share = NOBODY

    @property
    def is_full(self) -> bool:
        """Whether it has all fields, as after an answer with an error. Then the answer has all fields too."""
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_ms >= 0 and subscribes and self.owned is not None


class Change(NamedTuple):
    """The effect of a heartbeat.

    group: the group after `records`.
    member: the member after `records`; None if it left.
    assignment: the partitions to send to the member; None if they have not changed.
    """

    group: ConsumerGroup
    records: Sequence[Record]
    member: ConsumerMember | None = None
    assignment: Set[TopicPartition] | None = None


class View(NamedTuple):
    """The context of a change, besides the group.

    find: returns a topic by its name.
    match: finds topics by a regular expression.
    now_ms: the wall clock.
    changed: whether topics may have changed since the group's last change.
    interval_ms: how long after an assignment the next one may be made.
    """

    find: FindTopic
    match: Match
    now_ms: int
    changed: bool = False
    interval_ms: int = 0


class Draft:
    """A group that is being changed, and the records that change it."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.records: list[Record] = []

    def add(self, *records: Record) -> None:
        if self.records:
            self.group.apply(records)  # the group is already a copy
        elif records:
            self.group = self.group.with_records(records)
        self.records += records


def check(request: Heartbeat, group_id: str, *, may_name_itself: bool) -> None:
    """Raise HeartbeatRefused for a heartbeat that is invalid in any group.

    may_name_itself: whether the member id may be empty, so that the coordinator chooses it (version 0).
    """
    if not group_id.strip():  # as in Kafka, spaces alone do not count as text
        raise _invalid("The group id is empty.")
    if not request.member_id.strip() and not (may_name_itself and request.epoch == JOINING):
        raise _invalid("The member id is empty.")
    if request.epoch < LEAVING_FOR_A_WHILE:
        raise _invalid(f"The member epoch is {request.epoch}; the lowest is {LEAVING_FOR_A_WHILE}.")
    if any(text is not None and not text.strip() for text in (request.instance_id, request.rack_id)):
        raise _invalid("The instance id or the rack id is empty; null stands for none.")
    if request.epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        raise _invalid("Only a member with an instance id can leave for a while.")
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        names = ", ".join(ASSIGNORS)
        raise HeartbeatRefused(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"There is no assignor {request.assignor!r}; there are {names}."
        )
    if request.epoch == JOINING:
        _check_join(request)


def _check_join(request: Heartbeat) -> None:
    if request.rebalance_ms == -1:
        raise _invalid("A member that joins has to say its rebalance timeout.")
    if request.owned is None or request.owned:
        raise _invalid("A member that joins has to say that it has no partitions.")
    if request.topics is None and request.regex is None:
        raise _invalid("A member that joins has to say what it subscribes to.")


def _invalid(text: str) -> HeartbeatRefused:
    return HeartbeatRefused(ErrorCode.INVALID_REQUEST, text)


def beat(
    group: ConsumerGroup,
    request: Heartbeat,
    find: FindTopic,
    match: Match,
    now_ms: int,
    *,
    topics_changed: bool = False,
    interval_ms: int = 0,
) -> Change:
    """Return the effect of a heartbeat of a member that joins or stays. Raises HeartbeatRefused.

    topics_changed: whether topics may have changed since the group's last change.
    interval_ms: see `View`.
    """
    draft = Draft(group)
    before = _find_or_replace(draft, request)
    _update(draft, before, request)
    view = View(find, match, now_ms, topics_changed, interval_ms)
    after = go_on(draft, request.member_id, request.owned, view, raised=draft.group.epoch != group.epoch)
    told = request.is_full or after.assigned.keys() != before.assigned.keys()
    return Change(draft.group, draft.records, after, after.assigned.keys() if told else None)


def go_on(
    draft: Draft, member_id: str, owned: Set[TopicPartition] | None, view: View, *, raised: bool
) -> ConsumerMember:
    """Compute a new target assignment if it is due, and let a member take its next step. Return the member.

    If the assignment is not due yet, the member follows the previous one, in which a new member has nothing.

    owned: the partitions that it has; None if they have not changed.
    raised: whether the draft has raised the group epoch.

    Raises HeartbeatRefused.
    """
    if view.changed or draft.records:
        _match(draft, member_id, view.match, view.now_ms, anew=view.changed)
        _note_topics(draft, view.find, raised=raised)
    if draft.group.epoch != draft.group.assignment_epoch and may_assign(draft.group, view.interval_ms, view.now_ms):
        draft.add(*assign(draft.group, view.find, view.now_ms))
    group = draft.group
    member = group.members[member_id]
    if group.is_settled(member) and not view.changed and not draft.records:
        return member
    after = next_step(member, _wanted(group, member, view.find), group.assignment_epoch, group.owners, owned)
    if after is not member:
        draft.add(current(group.group_id, after))
    return after


def may_assign(group: ConsumerGroup, interval_ms: int, now_ms: int) -> bool:
    """Return whether enough time has passed since a group's last assignment for another one (KIP-1263).

    A time in the future comes from a coordinator whose clock was ahead. Such a time, or an unknown one, delays nothing.
    """
    return not group.assigned_ms or not 0 <= now_ms - group.assigned_ms < interval_ms


def leave(group: ConsumerGroup, request: Heartbeat) -> Change:
    """Return the effect of a member's last heartbeat, which leaves for good or for a while. Raises HeartbeatRefused."""
    member = _known(group, request)
    if request.epoch == LEAVING_FOR_A_WHILE:
        gone = replace(member, epoch=LEAVING_FOR_A_WHILE, state=MemberState.STABLE, revoking={})
        records: Sequence[Record] = [current(group.group_id, gone)]
        return Change(group.with_records(records), records)
    return remove(group, [member.member_id])


def remove(group: ConsumerGroup, member_ids: Iterable[str]) -> Change:
    """Return the effect of members that have left, or are removed because they are late."""
    records = [record for member_id in member_ids for record in removal(group.group_id, member_id)]
    records.append(GroupEpoch(group.group_id, next_generation(group.epoch), group.metadata_hash))
    return Change(group.with_records(records), records)


def delete(group: ConsumerGroup) -> Sequence[Record]:
    """Return the records that delete a group without members."""
    kinds = (RecordType.TARGET, RecordType.GROUP)
    matched = [Removed(RecordType.REGULAR_EXPRESSION, group.group_id, expression) for expression in group.matched]
    return [*matched, *(Removed(kind, group.group_id) for kind in kinds)]


def removal(group_id: str, member_id: str) -> list[Record]:
    """Return the records that delete a member."""
    kinds = (RecordType.CURRENT_OF_MEMBER, RecordType.TARGET_OF_MEMBER, RecordType.MEMBER)
    return [Removed(kind, group_id, member_id) for kind in kinds]


# -- the member


def _known(group: ConsumerGroup, request: Heartbeat) -> ConsumerMember:
    """Return the member that sent a heartbeat. Raises HeartbeatRefused."""
    holder = None if request.instance_id is None else group.instances.get(request.instance_id)
    if holder not in (None, request.member_id):
        raise HeartbeatRefused(
            ErrorCode.FENCED_INSTANCE_ID, f"Another member has the instance id {request.instance_id!r} now."
        )
    member = group.members.get(request.member_id)
    if member is None or (request.instance_id is not None and holder is None):
        raise HeartbeatRefused(
            ErrorCode.UNKNOWN_MEMBER_ID, f"The group has no member {request.member_id!r}; it has to join again."
        )
    return member


def _find_or_replace(draft: Draft, request: Heartbeat) -> ConsumerMember:
    """Return the member as it was before this heartbeat. A member that joins has no partitions yet."""
    if request.epoch != JOINING:
        member = _known(draft.group, request)
        _check_epoch(member, request)
        return member
    former = draft.group.instances.get(request.instance_id or "")
    if former is not None and former != request.member_id:
        return _take_over(draft, draft.group.members[former], request)
    known = draft.group.members.get(request.member_id)
    if known is None:
        return ConsumerMember(request.member_id, request.instance_id)
    fresh = replace(known, epoch=0, previous_epoch=0, state=MemberState.STABLE, assigned={}, revoking={})
    draft.add(current(draft.group.group_id, fresh))
    return fresh


def _take_over(draft: Draft, former: ConsumerMember, request: Heartbeat) -> ConsumerMember:
    """Let a static member return with another member id. It gets the target assignment of its former id."""
    if not former.has_left_for_a_while and former.classic is None:
        raise HeartbeatRefused(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Member {former.member_id!r} still has the instance id {request.instance_id!r}.",
        )
    return replace(give_place(draft, former, request.member_id), assigned={})


def give_place(draft: Draft, former: ConsumerMember, member_id: str) -> ConsumerMember:
    """Let a member replace a static member, with its target and its partitions. Return the new member."""
    group_id, target = draft.group.group_id, draft.group.target_of(former.member_id)
    back = replace(former, member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
    draft.add(
        *removal(group_id, former.member_id),
        MemberMetadata(group_id, back),
        TargetAssignment(group_id, back.member_id, target),
        current(group_id, back),
    )
    return back


def _check_epoch(member: ConsumerMember, request: Heartbeat) -> None:
    if request.epoch == member.epoch:
        return
    lost_answer = request.epoch == member.previous_epoch and request.owned is not None
    if not lost_answer or not request.owned <= member.assigned.keys():  # type: ignore[operator]  # not None
        raise HeartbeatRefused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member is at epoch {member.epoch}, not {request.epoch}; it has to give up its partitions and join "
            "again.",
        )


def _update(draft: Draft, before: ConsumerMember, request: Heartbeat) -> None:
    """Add the records of a member's subscription to the draft."""
    known = draft.group.members.get(request.member_id)
    told = replace(
        known or before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        rebalance_ms=before.rebalance_ms if request.rebalance_ms < 0 else request.rebalance_ms,
        topics=before.topics if request.topics is None else request.topics,
        regex=before.regex if request.regex is None else request.regex,
        assignor=before.assignor if request.assignor is None else request.assignor,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )
    note_member(draft, known, told)


def note_member(draft: Draft, known: ConsumerMember | None, told: ConsumerMember) -> None:
    """Add the records of a member that has changed. If its subscription has changed, raise the group epoch.

    known: the member as the group has it; None if it is new.
    """
    if told == known:
        return
    group = draft.group
    draft.add(MemberMetadata(group.group_id, told))
    wants = (told.topics, told.regex, told.assignor)
    if known is None or wants != (known.topics, known.regex, known.assignor):
        draft.add(GroupEpoch(group.group_id, next_generation(group.epoch), group.metadata_hash))


def current(group_id: str, member: ConsumerMember) -> CurrentAssignment:
    """Return the record of a member's epochs, state and partitions."""
    return CurrentAssignment(
        group_id,
        member.member_id,
        member.epoch,
        member.previous_epoch,
        member.state,
        member.assigned,
        member.revoking,
    )


# -- the target


def _match(draft: Draft, member_id: str, match: Match, now_ms: int, *, anew: bool) -> None:
    """Find the topics of the member's regular expression, if it is new to the group or must be matched again.

    Expressions that no member uses any more are removed.
    """
    group = draft.group
    expression = group.members[member_id].regex
    if expression and (anew or expression not in group.matched):
        topics = match(expression)
        before = group.matched.get(expression)
        if before is None or before.topics != topics:
            draft.add(RegularExpression(group.group_id, expression, topics, now_ms, now_ms))
    unused = group.matched.keys() - {member.regex for member in group.members.values()}
    draft.add(*(Removed(RecordType.REGULAR_EXPRESSION, group.group_id, one) for one in sorted(unused)))


def _note_topics(draft: Draft, find: FindTopic, *, raised: bool) -> None:
    """If topics changed to which the group subscribes, raise the group epoch, unless it has been `raised` already."""
    group = draft.group
    found = hash_of_topics(group, find)
    if found != group.metadata_hash:
        draft.add(GroupEpoch(group.group_id, group.epoch if raised else next_generation(group.epoch), found))


def hash_of_topics(group: ConsumerGroup, find: FindTopic) -> int:
    """Return a number that changes when a topic to which the group subscribes is created, deleted or extended."""
    subscriptions = {(member.topics, member.regex): member for member in group.members.values()}
    names = {name for member in subscriptions.values() for name in group.subscribed(member)}
    topics = [topic for topic in map(find, sorted(names)) if topic is not None]
    text = b"".join(topic.topic_id + len(topic.partitions).to_bytes(4, "big") for topic in topics)
    return zlib.crc32(text) + (len(topics) << 32)


def assign(group: ConsumerGroup, find: FindTopic, now_ms: int) -> list[Record]:
    """Return the records of a new target assignment for the group epoch."""
    counts: dict[bytes, int] = {}
    alike: dict[tuple[frozenset[str], str | None], frozenset[bytes]] = {}  # most members subscribe to the same
    subscribers = {}
    for member_id, member in group.members.items():
        subscription = member.topics, member.regex
        topic_ids = alike.get(subscription)
        if topic_ids is None:
            topics = [topic for topic in map(find, group.subscribed(member)) if topic is not None]
            counts.update((topic.topic_id, len(topic.partitions)) for topic in topics)
            topic_ids = alike[subscription] = frozenset(topic.topic_id for topic in topics)
        subscribers[member_id] = Subscriber(topic_ids, group.target_of(member_id))
    target = ASSIGNORS[assignor_of(group)](subscribers, counts)
    changed = [
        TargetAssignment(group.group_id, member_id, frozenset(partitions))
        for member_id, partitions in target.items()
        if member_id not in group.target or partitions != group.target[member_id]
    ]
    return [*changed, AssignmentEpoch(group.group_id, group.epoch, now_ms)]


def assignor_of(group: ConsumerGroup) -> str:
    """Return the assignor that most members ask for; the default if none does."""
    votes = Counter(member.assignor for member in group.members.values() if member.assignor in ASSIGNORS)
    if not votes:
        return next(iter(ASSIGNORS))
    return min(votes, key=lambda name: (-votes[name], list(ASSIGNORS).index(name or ""))) or ""


def _wanted(group: ConsumerGroup, member: ConsumerMember, find: FindTopic) -> frozenset[TopicPartition]:
    """Return a member's target, without deleted topics and topics to which it no longer subscribes."""
    target = group.target_of(member.member_id)
    found = (find(name) for name in group.subscribed(member))
    topics = {topic.topic_id for topic in found if topic is not None}
    return frozenset(partition for partition in target if partition[0] in topics)
