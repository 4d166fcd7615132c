"""The coordinator's assignors: they compute the target assignment of a consumer group.

`uniform` balances: if all members subscribe to the same topics, their numbers of partitions differ by at most one;
otherwise the differences are as small as moves of single partitions can make them. `range` gives neighbouring
partitions of a topic to one member. If topics can be joined (they have the same number of partitions and the same
subscribers), partitions with the same index go to the same member. Within these rules, both leave as many partitions as
possible where they are.

Rules: the result depends only on the arguments, not on the order of sets, so two coordinators assign alike.
Source: KIP-848; the assignors of Kafka's group coordinator, which give the same balance, but not always the same
partitions to the same members.
Must not know: groups, records, clocks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from heapq import heapify, heapreplace
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from pylogd.broker.groups.consumer.members import TopicPartition


class Subscriber(NamedTuple):
    """A member, as assignors need it: the ids of its topics, which all exist, and its last target's partitions."""

    topics: frozenset[bytes]
    target: Set[TopicPartition]


#: The target partitions of each member, by member id.
Target: TypeAlias = dict[str, set[TopicPartition]]
Assignor: TypeAlias = "Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], Target]"


def assign_uniformly(subscribers: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]) -> Target:
    """Return a balanced assignment.

    partition_counts: the number of partitions, by topic id, of every topic that a member subscribes to.
    """
    target, free = _kept(subscribers, partition_counts)
    if len({subscriber.topics for subscriber in subscribers.values()}) <= 1:
        _level(target, free)
    else:
        by_topic = _members_by_topic(subscribers)
        _fill(by_topic, target, free)
        _balance(by_topic, target)
    return target


def _kept(
    subscribers: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]
) -> tuple[Target, list[TopicPartition]]:
    """Return the partitions of its last target that each member may keep, by member ids, and the free partitions."""
    subscriptions = {subscriber.topics for subscriber in subscribers.values()}
    topics = sorted({topic for wanted in subscriptions for topic in wanted})
    free = dict.fromkeys((topic, index) for topic in topics for index in range(partition_counts[topic]))
    target: Target = {}
    for member_id in sorted(subscribers):
        wanted = subscribers[member_id].topics
        mine = {
            partition for partition in subscribers[member_id].target if partition[0] in wanted and partition in free
        }
        target[member_id] = mine
        for partition in mine:
            del free[partition]
    return target, list(free)


def _level(target: Target, free: list[TopicPartition]) -> None:
    """Assign the free partitions to members that all subscribe to the same topics."""
    if not target:
        return
    total = len(free) + sum(map(len, target.values()))
    least, extra = divmod(total, len(target))
    quotas = {}
    for member_id, partitions in sorted(target.items(), key=lambda item: -len(item[1])):
        quotas[member_id] = least + (extra > 0)  # the members with most may keep one more
        extra -= extra > 0
        surplus = sorted(partitions)[quotas[member_id] :]
        partitions.difference_update(surplus)
        free += surplus
    free.sort(reverse=True)
    for member_id, partitions in target.items():
        while len(partitions) < quotas[member_id]:
            partitions.add(free.pop())


def _fill(by_topic: Mapping[bytes, Sequence[str]], target: Target, free: Iterable[TopicPartition]) -> None:
    """Assign each free partition to the subscriber of its topic that has fewest."""
    in_order = sorted(free, key=lambda partition: (len(by_topic[partition[0]]), partition))
    for topic, partitions in groupby(in_order, lambda partition: partition[0]):
        fewest = [(len(target[member_id]), member_id) for member_id in by_topic[topic]]
        heapify(fewest)
        for partition in partitions:
            size, member_id = fewest[0]
            target[member_id].add(partition)
            heapreplace(fewest, (size + 1, member_id))


def _balance(by_topic: Mapping[bytes, Sequence[str]], target: Target) -> None:
    """Move single partitions from members with more to members with fewer, until no move improves the balance.

    Each move reduces the sum of the squares of the numbers, so this ends.
    """
    had = {member_id: _indexes_by_topic(partitions) for member_id, partitions in target.items()}
    moved = True
    while moved:
        moved = False
        for topic, members in by_topic.items():
            sizes = [len(target[member_id]) for member_id in members]
            if max(sizes) <= min(sizes) + 1:
                continue
            indexes = {member_id: sorted(had[member_id].get(topic, ())) for member_id in members}
            changed = False
            while _move_one(topic, indexes, target):
                changed = True
            if changed:
                moved = True
                for member_id, left in indexes.items():
                    had[member_id][topic] = set(left)


def _move_one(topic: bytes, indexes: Mapping[str, list[int]], target: Target) -> bool:
    """Move a partition of the topic from the member that has most to the member that has fewest, if that helps.

    indexes: the indexes of the topic that each of its subscribers has, in order.
    """
    least = min(indexes, key=lambda member_id: (len(target[member_id]), member_id))
    enough = len(target[least]) + 1
    donors = [member_id for member_id, found in indexes.items() if found and len(target[member_id]) > enough]
    if not donors:
        return False
    most = min(donors, key=lambda member_id: (-len(target[member_id]), member_id))
    index = indexes[most].pop()
    target[most].remove((topic, index))
    target[least].add((topic, index))
    insort(indexes[least], index)
    return True


def assign_ranges(subscribers: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]) -> Target:
    """Return an assignment of ranges.

    partition_counts: the number of partitions, by topic id, of every topic that a member subscribes to.
    """
    alike: dict[tuple[tuple[str, ...], int], list[bytes]] = {}
    for topic, members in _members_by_topic(subscribers).items():
        alike.setdefault((tuple(members), partition_counts[topic]), []).append(topic)
    target: Target = {member_id: set() for member_id in sorted(subscribers)}
    last = {member_id: _indexes_by_topic(subscriber.target) for member_id, subscriber in subscribers.items()}
    for (member_ids, count), topics in sorted(alike.items()):
        had = {member_id: _had_of_all(topics, last[member_id], count) for member_id in member_ids}
        for member_id, indexes in _ranges(had, count).items():
            target[member_id].update((topic, index) for topic in topics for index in indexes)
    return target


def _indexes_by_topic(partitions: Iterable[TopicPartition]) -> dict[bytes, set[int]]:
    found: dict[bytes, set[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, set()).add(index)
    return found


def _had_of_all(topics: Sequence[bytes], had: Mapping[bytes, set[int]], count: int) -> list[int]:
    """Return the indexes below `count` that a member had in all these topics, in order."""
    common = set.intersection(*(had.get(topic, set()) for topic in topics))
    return sorted(index for index in common if index < count)


def _ranges(had: Mapping[str, list[int]], count: int) -> dict[str, list[int]]:
    """Return the indexes, of `count`, that each member gets.

    had: each member's current indexes, in order.
    """
    least, extra = divmod(count, len(had))
    quotas = {}
    for member_id, indexes in had.items():
        quotas[member_id] = least + (extra > 0 and len(indexes) > least)  # a member that has one more may keep it
        extra -= quotas[member_id] > least
    for member_id in had:
        if extra > 0 and quotas[member_id] == least:
            quotas[member_id] += 1
            extra -= 1
    ranges, taken = {}, set()
    for member_id, indexes in had.items():
        ranges[member_id] = [index for index in indexes if index not in taken][: quotas[member_id]]
        taken.update(ranges[member_id])
    free = [index for index in range(count - 1, -1, -1) if index not in taken]
    for member_id, kept in ranges.items():
        while len(kept) < quotas[member_id]:
            kept.append(free.pop())
    return ranges


def _members_by_topic(subscribers: Mapping[str, Subscriber]) -> dict[bytes, list[str]]:
    """Return the ids of the members that subscribe to each topic, in order."""
    found: dict[bytes, list[str]] = {}
    for member_id in sorted(subscribers):
        for topic in sorted(subscribers[member_id].topics):
            found.setdefault(topic, []).append(member_id)
    return found


#: By the names that clients use; the default is the first.
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
