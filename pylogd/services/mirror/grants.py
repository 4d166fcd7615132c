"""Decide what each worker's next assignment is, so that no partition ever has two owners.

Rules: pure. A partition that a worker was given counts as its own until its holdings prove that it has stopped copying
it: see `membership`.

A partition keeps its owner, with two exceptions: its owner is gone, or some
worker has clearly less than its share (such as a new worker) and another worker has more than its own. Then only
partitions of the latter move, until the former has its share. So a fourth worker takes at most a quarter of the
partitions, and a worker that ends gives up only its own. Small differences are left, since evening them out would
interrupt partitions for little gain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

from pylogd.services.mirror.membership import Assignment, Holdings
from pylogd.services.mirror.partition_copy import PartitionRoute

P = TypeVar("P", bound=tuple[object, ...])

#: A worker with less than this part of its share gets more.
_TOLERANCE: Final = 0.9


def assign(partitions: Collection[P], workers: Collection[str], current: Mapping[P, str]) -> dict[P, str]:
    """Return the owner of each partition.

    current: the present owners; owners that are not in `workers` have ended.

    Without workers no partition has an owner.
    """
    if not workers:
        return {}
    owned: dict[str, list[P]] = {worker: [] for worker in sorted(workers)}
    free = []
    for partition in sorted(partitions, key=str):
        owner = current.get(partition)
        if owner in owned:
            owned[owner].append(partition)
        else:
            free.append(partition)
    for partition in free:
        min(owned.values(), key=len).append(partition)
    _fill(owned, len(partitions) // len(owned))
    return {partition: worker for worker, found in owned.items() for partition in found}


def _fill(owned: dict[str, list[P]], share: int) -> None:
    """Move partitions to workers that have clearly fewer than their share, from workers that have the most."""
    hungry = [found for found in owned.values() if len(found) < share and len(found) <= _TOLERANCE * share]
    for found in owned.values():
        if len(found) > share and hungry:
            found.sort(key=_mixed)  # so that not all partitions of a topic move
    for taker in hungry:
        while len(taker) < share:
            giver = max(owned.values(), key=len)
            taker.append(giver.pop())


def _mixed(partition: tuple[object, ...]) -> int:
    return crc32(str(partition).encode())


class WorkerRecord(NamedTuple):
    """A worker's nodes in the store.

    version: the version of the assignment's node.
    holdings: the worker's holdings; None if there are none.
    """

    assignment: Assignment
    version: int
    holdings: Holdings | None

    @property
    def not_free(self) -> frozenset[PartitionRoute]:
        """Those leaving partitions that the worker may still copy."""
        holdings = self.holdings
        if holdings is None or holdings.version < self.version:
            return self.assignment.leaving
        return self.assignment.leaving & holdings.partitions


@dataclass(slots=True)
class Grants:
    """The assignments to write, by worker, and whether some partitions wait for their owners to release them."""

    assignments: dict[str, Assignment] = field(default_factory=dict)
    waiting: bool = False


def next_grants(
    wanted: Collection[PartitionRoute],
    live: Collection[str],
    records: Mapping[str, WorkerRecord],
    taken: Collection[PartitionRoute] = (),
) -> Grants:
    """Return the assignments to write now for the `wanted` partitions.

    live: the workers that are alive.
    records: the records of workers that have an assignment.
    taken: partitions that no worker may have yet, because they belong to a worker that is gone and not fenced.
    """
    current = {p: worker for worker in live if worker in records for p in records[worker].assignment.partitions}
    held = {p: worker for worker in live if worker in records for p in records[worker].not_free}
    desired = assign(wanted, live, {**held, **current})
    blocked = set(taken)
    grants = Grants()
    shares: dict[str, set[PartitionRoute]] = {worker: set() for worker in live}
    for path, worker in desired.items():
        owner = current.get(path)
        is_free = owner is None and path not in blocked and held.get(path, worker) == worker
        if owner == worker or is_free:
            shares[worker].add(path)
        else:
            grants.waiting = True
    for worker in live:
        before = records[worker].assignment if worker in records else None
        not_free = records[worker].not_free if worker in records else frozenset()
        had = frozenset() if before is None else before.partitions
        share = frozenset(shares[worker])
        leaving = (had | not_free) - share
        grants.waiting = grants.waiting or bool(leaving)
        if before is None or share != had:
            grants.assignments[worker] = Assignment(share, leaving)
    return grants
