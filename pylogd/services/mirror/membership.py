"""The nodes of a mirror in the metadata store, and their contents.

    /mirror/NAME/controller              the controller; ephemeral
    /mirror/NAME/workers/WORKER          a worker that is alive; ephemeral
    /mirror/NAME/assignments/WORKER      partitions to copy, and partitions that were taken away and may not be free yet
    /mirror/NAME/holdings/WORKER         the partitions that it copies, and the version of its assignment; ephemeral
    /mirror/NAME/status/WORKER           figures for operators; ephemeral

A partition moves in three steps, each of which is written before the next: the controller takes it from the assignment
of its owner and marks it as *leaving*; the owner commits, stops, and writes holdings without it, with the version of
the assignment that it has followed; then the controller gives it to another worker. So no two live workers have the
same partition. The partitions of a worker whose node is gone are free once its transactions are fenced at the targets.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pylogd.services.mirror.errors import MirrorError
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.store.errors import SessionExpired, StoreClosed
from pylogd.store.interfaces import MAX_DATA_BYTES

_ROOT: Final = "/mirror"
#: Errors after which the ephemeral nodes of a process are gone.
SESSION_ENDED: Final = (SessionExpired, StoreClosed)


class MirrorPaths:
    """The paths of one mirror."""

    def __init__(self, name: str) -> None:
        self.root = f"{_ROOT}/{name}"
        self.controller = f"{self.root}/controller"
        self.workers = f"{self.root}/workers"
        self.assignments = f"{self.root}/assignments"
        self.holdings = f"{self.root}/holdings"
        self.status = f"{self.root}/status"

    @property
    def parents(self) -> tuple[str, ...]:
        """The persistent nodes above the other nodes."""
        return self.workers, self.assignments, self.holdings, self.status


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's assignment.

    leaving: partitions that the worker had, and that may not be free yet.
    """

    partitions: frozenset[PartitionRoute] = frozenset()
    leaving: frozenset[PartitionRoute] = frozenset()


class Holdings(NamedTuple):
    """The partitions that a worker copies.

    version: the version of the assignment's node that the worker has applied; -1 for none.
    """

    version: int
    partitions: frozenset[PartitionRoute]


def dump_assignment(assignment: Assignment) -> bytes:
    """Encode an assignment. Raises MirrorError if it is too large for a node."""
    return _dump({"partitions": _pack(assignment.partitions), "leaving": _pack(assignment.leaving)})


def parse_assignment(data: bytes) -> Assignment:
    """Decode the result of `dump_assignment`."""
    found = _load(data)
    return Assignment(frozenset(_unpack(found["partitions"])), frozenset(_unpack(found["leaving"])))


def dump_holdings(holdings: Holdings) -> bytes:
    """Encode a worker's holdings. Raises MirrorError if they are too large for a node."""
    return _dump({"version": holdings.version, "partitions": _pack(holdings.partitions)})


def parse_holdings(data: bytes) -> Holdings:
    """Decode the result of `dump_holdings`."""
    found = _load(data)
    return Holdings(found["version"], frozenset(_unpack(found["partitions"])))


def _dump(value: Any) -> bytes:
    data = zlib.compress(json.dumps(value, separators=(",", ":")).encode())
    if len(data) > MAX_DATA_BYTES:
        raise MirrorError("one worker can't have so many partitions: start more workers, or divide the routes")
    return data


def _load(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


def _pack(partitions: Collection[PartitionRoute]) -> list[list[Any]]:
    """Return partitions by topic: route, topic, topic at the target, and ranges of numbers."""
    topics: dict[tuple[str, str, str], list[int]] = {}
    for path in sorted(partitions):
        topics.setdefault((path.route, path.topic, path.target_topic), []).append(path.partition)
    return [[*topic, _ranges(numbers)] for topic, numbers in topics.items()]


def _unpack(packed: Iterable[Any]) -> Iterable[PartitionRoute]:
    for route, topic, target_topic, ranges in packed:
        for first, last in ranges:
            for number in range(first, last + 1):
                yield PartitionRoute(route, topic, number, target_topic)


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
