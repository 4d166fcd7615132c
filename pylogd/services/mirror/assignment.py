"""Divide the partitions among the workers.

Rules: a pure function of its arguments. A partition keeps its owner, with two exceptions: its owner is gone, or some
worker has clearly less than its share (such as a new worker) and another worker has more than its own. Then only
partitions of the latter move, until the former has its share. So a fourth worker takes at most a quarter of the
partitions, and a worker that ends gives up only its own. Small differences are left, since evening them out would
interrupt partitions for little gain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeVar
from zlib import crc32

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
