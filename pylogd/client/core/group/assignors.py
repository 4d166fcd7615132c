"""Who of a group reads which partition: the assignors that clients know, as pure functions.

The group's leader runs the one that all members name (`partition.assignment.strategy`); names and user data are those
of the Java client and librdkafka, so that any client may lead. `range` gives each member a run of each topic's
partitions, `roundrobin` deals all partitions out in turn, `sticky` moves as few as a fair share allows, and
`cooperative-sticky` does the same without making anybody stop reading what it keeps (KIP-429).

Rules: the same input gives the same answer. Every partition of a topic goes to exactly one of the members that
subscribe to it, but for `cooperative-sticky`, which withholds what another member still has to give up.
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
    """One way to share partitions out. `cooperative` ones let members keep reading through a rebalance."""

    name: str
    cooperative: bool

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What to tell the leader about what this member has."""
        ...

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """Who gets what: `partitions` is how many each topic has. Every member has an entry."""
        ...


class RangeAssignor:
    """Of each topic, the first member gets the first partitions, the next the next; the first ones one more."""

    name = "range"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> None:
        """Nothing: the past plays no part."""

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """As `Assignor.assign`."""
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
    """All partitions in order, one to each member in turn, past those that do not subscribe to the topic."""

    name = "roundrobin"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> None:
        """Nothing: the past plays no part."""

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """As `Assignor.assign`."""
        assignment: Assignment = {member: [] for member in members}
        topics = {member: set(subscription.topics) for member, subscription in members.items()}
        turns = cycle(_in_order(members))
        for partition in _all(partitions, set().union(*topics.values())):
            member = next(member for member in turns if partition.topic in topics[member])
            assignment[member].append(partition)
        return assignment


class StickyAssignor:
    """As evenly as it goes, and within that as much as possible stays where it was."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What the member had before it gave everything up."""
        return encode_sticky_data(owned, generation)

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """As `Assignor.assign`."""
        return _balance(members, partitions, _owners(_claims_in_user_data(members), members, partitions))


class CooperativeStickyAssignor:
    """As `sticky`, in two rounds: what is to move is first taken from its owner, and given away once it is free."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """The generation, as Java's assignor had it before subscriptions carried it (KIP-792)."""
        return generation.to_bytes(4, "big", signed=True)

    def assign(self, members: Members, partitions: Mapping[str, int]) -> Assignment:
        """As `Assignor.assign`."""
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
    """Assignors by name, or as given. ValueError: no such name, none at all, or a mix of both kinds."""
    found: list[Assignor] = []
    for name in names:
        if isinstance(name, str) and name not in ASSIGNORS:
            raise ValueError(f"there is no assignor {name!r}; there are {', '.join(ASSIGNORS)}")
        found.append(ASSIGNORS[name] if isinstance(name, str) else name)
    if not found:
        raise ValueError("a group needs an assignor")
    if len({assignor.cooperative for assignor in found}) > 1:
        raise ValueError("assignors that let members read on can't be mixed with those that don't")
    return found


def _in_order(members: Members) -> list[str]:
    """Static members first, by their instance id, so that they keep their places through restarts; then by id."""
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
        except InvalidReply:  # another assignor's data under this name: a member without a past
            claims[name] = [], NO_GENERATION
    return claims


def _owners(claims: _Claims, members: Members, partitions: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Who had what, of what still exists and is still wanted. The newest generation is right; two claims of the same
    one can't both be, so neither counts.
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
    """From who had what to a fair share: give out what nobody has, then move from the full to the empty.

    Each move makes the sum of the squares of all loads smaller, so it ends; when it does, nobody who may read a
    partition has two fewer than its owner.
    """
    readers = _readers(members, partitions)
    load = dict.fromkeys(_in_order(members), 0)
    given: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for partition, owner in owners.items():
        given[owner].add(partition)
        load[owner] += 1
    free = [partition for partition in _all(partitions, readers) if partition not in owners]
    for partition in sorted(free, key=lambda free: len(readers[free.topic])):  # those with the least choice first
        member = min(readers[partition.topic], key=load.__getitem__)
        given[member].add(partition)
        load[member] += 1
    while _level(given, load, readers):
        pass
    return {member: sorted(partitions) for member, partitions in given.items()}


def _readers(members: Members, partitions: Mapping[str, int]) -> dict[str, list[str]]:
    """The members that subscribe to each topic, in order; topics without one are left out."""
    readers: dict[str, list[str]] = {}
    for member in _in_order(members):
        for topic in set(members[member].topics) & partitions.keys():
            readers.setdefault(topic, []).append(member)
    return readers


def _level(given: dict[str, set[TopicPartition]], load: dict[str, int], readers: Mapping[str, list[str]]) -> bool:
    """Move partitions from members that have two more than another that may read them; whether any was moved."""
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
