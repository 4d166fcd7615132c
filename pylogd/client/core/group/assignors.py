"""Assign partitions to the members of a group: Kafka's assignors, as pure functions.

The group's leader runs the one that all members name (`partition.assignment.strategy`); names and user data are those
of the Java client and librdkafka, so that any client may lead. `range` gives each member consecutive partitions of each
topic, `roundrobin` assigns all partitions in turn, `sticky` moves as few partitions as a balanced assignment allows,
and `cooperative-sticky` does the same while members keep reading the partitions that stay with them (KIP-429).

Rules: the same input gives the same answer. Every partition of a topic goes to exactly one of the members that
subscribe to it; `cooperative-sticky` withholds partitions that another member still has to give up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Protocol

from pylogd.client.core.errors import InvalidReply
from pylogd.client.core.group.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_sticky_data,
    encode_sticky_data,
)
from pylogd.client.core.model import TopicPartition

Members = Mapping[str, Subscription]
Assignment = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """A way to assign partitions. With a `cooperative` assignor, members keep reading during a rebalance."""

    name: str
    cooperative: bool

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return what to send to the leader about the partitions of this member."""
        ...

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """Return the partitions of every member. `partitions` has the number of partitions of each topic."""
        ...


class RangeAssignor:
    """Give each member consecutive partitions of each topic; the first members get one more if some are left over."""

    name = "range"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> None:
        """Return nothing: earlier assignments play no part."""

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """See `Assignor.assign`."""
        assignment: Assignment = {member: [] for member in members}
        order = _in_order(members)
        for topic in sorted(partitions):
            readers = [member for member in order if topic in members[member].topics]
            if not readers:
                continue
            share, more = divmod(partitions[topic], len(readers))
            at = 0
            for place, member in enumerate(readers):
                end = at + share + (place < more)
                assignment[member] += [TopicPartition(topic, index) for index in range(at, end)]
                at = end
        return assignment


class RoundRobinAssignor:
    """Give the partitions to the members in turn, except to members that do not subscribe to the topic."""

    name = "roundrobin"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> None:
        """Return nothing: earlier assignments play no part."""

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """See `Assignor.assign`."""
        assignment: Assignment = {member: [] for member in members}
        topics = {member: set(subscription.topics) for member, subscription in members.items()}
        turns = cycle(_in_order(members))
        for partition in _all(partitions, set().union(*topics.values())):
            member = next(member for member in turns if partition.topic in topics[member])
            assignment[member].append(partition)
        return assignment


class StickyAssignor:
    """Balance partitions, and move as few as possible."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the partitions that the member had before it gave up all of them."""
        return encode_sticky_data(owned, generation)

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """See `Assignor.assign`."""
        return _balance(members, partitions, _owners(_claims_in_user_data(members), members, partitions))


class CooperativeStickyAssignor:
    """Assign as `sticky`, in two rebalances: a partition that moves is revoked in the first, assigned in the second."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the generation in the form of Java's assignor, from before subscriptions had a field for it."""
        return generation.to_bytes(4, "big", signed=True)

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """See `Assignor.assign`."""
        claims = {name: (list(member.owned), _generation(member)) for name, member in members.items()}
        owners = _owners(claims, members, partitions)
        assignment = _balance(members, partitions, owners)
        held = {partition: name for name, member in members.items() for partition in member.owned}
        held.update(owners)
        return {
            member: [partition for partition in given if held.get(partition, member) == member]
            for member, given in assignment.items()
        }


ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}


def find_assignors(names: Iterable[str | Assignor]) -> list[Assignor]:
    """Return assignors by name, or as given. Raises ValueError for an unknown name, none at all, or both kinds."""
    found: list[Assignor] = []
    for name in names:
        if isinstance(name, str) and name not in ASSIGNORS:
            raise ValueError(f"there is no assignor {name!r}; there are {', '.join(ASSIGNORS)}")
        found.append(ASSIGNORS[name] if isinstance(name, str) else name)
    if not found:
        raise ValueError("a group needs an assignor")
    if len({assignor.cooperative for assignor in found}) > 1:
        raise ValueError("cooperative and eager assignors can't be mixed")
    return found


def _in_order(members: Members) -> list[str]:
    """Return members in order: static ones by instance id, so that a restart changes nothing; then the others by id."""
    return sorted(members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or "", name))


def _all(partitions: Mapping[str, int], topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for topic in sorted(topics) for index in range(partitions.get(topic, 0))]


# Stickiness ---------------------------------------------------------------------------------------------------------

_Claims = Mapping[str, tuple[list[TopicPartition], int]]


def _generation(member: Subscription) -> int:
    if member.generation == NO_GENERATION and member.user_data is not None and len(member.user_data) >= 4:
        return int.from_bytes(member.user_data[:4], "big", signed=True)
    return member.generation


def _claims_in_user_data(members: Members) -> _Claims:
    claims = {}
    for name, member in members.items():
        try:
            claims[name] = decode_sticky_data(member.user_data) if member.user_data else ([], NO_GENERATION)
        except InvalidReply:  # data of another assignor: the member has no earlier partitions
            claims[name] = [], NO_GENERATION
    return claims


def _owners(claims: _Claims, members: Members, partitions: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Return the earlier owner of each partition that still exists and is subscribed to. The claim of the newest
    generation counts; two claims of the same generation are both ignored.
    """
    owners: dict[TopicPartition, str] = {}
    since: dict[TopicPartition, int] = {}
    for name in sorted(claims):
        topics = set(members[name].topics)
        owned, generation = claims[name]
        for partition in owned:
            if partition.topic not in topics or not 0 <= partition.partition < partitions.get(partition.topic, 0):
                continue
            known = since.get(partition)
            if known is None or generation > known:
                owners[partition], since[partition] = name, generation
            elif generation == known:
                owners.pop(partition, None)
    return owners


def _balance(members: Members, partitions: Mapping[str, int], owners: Mapping[TopicPartition, str]) -> Assignment:
    """Balance an assignment: assign the free partitions, then move some from members with most to members with least.

    Each move makes the sum of the squares of all loads smaller, so the loop ends. Then no member that may read a
    partition has two partitions fewer than the partition's owner.
    """
    readers = _readers(members, partitions)
    load = dict.fromkeys(_in_order(members), 0)
    given: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for partition, owner in owners.items():
        given[owner].add(partition)
        load[owner] += 1
    free = [partition for partition in _all(partitions, readers) if partition not in owners]
    for partition in sorted(free, key=lambda free: len(readers[free.topic])):  # topics with the fewest members first
        member = min(readers[partition.topic], key=load.__getitem__)
        given[member].add(partition)
        load[member] += 1
    while _level(given, load, readers):
        pass
    return {member: sorted(partitions) for member, partitions in given.items()}


def _readers(members: Members, partitions: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the members that subscribe to each topic, in order. Topics without subscribers are left out."""
    readers: dict[str, list[str]] = {}
    for member in _in_order(members):
        for topic in set(members[member].topics) & partitions.keys():
            readers.setdefault(topic, []).append(member)
    return readers


def _level(given: dict[str, set[TopicPartition]], load: dict[str, int], readers: Mapping[str, list[str]]) -> bool:
    """Move partitions to members that have at least two fewer than the owner. Return whether a partition moved."""
    moved = False
    for member in sorted(load, key=load.__getitem__, reverse=True):
        for partition in sorted(given[member], reverse=True):
            if load[member] < min(load.values()) + 2:
                break
            other = min(readers[partition.topic], key=load.__getitem__)
            if load[other] + 1 < load[member]:
                given[member].remove(partition)
                given[other].add(partition)
                load[member] -= 1
                load[other] += 1
                moved = True
    return moved
