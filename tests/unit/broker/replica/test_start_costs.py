"""What each partition that nobody uses costs a start, and its creation: bytecode instructions, on any machine the same.

The limits are a tenth above what Python 3.11 took when they were set. 1,000 instructions for each of 10,000 partitions
are 0.1 s of a start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from twisted.internet.defer import Deferred

from pylogd.broker.controller.decisions import Snapshot, settle_all
from pylogd.broker.log.manager import LogManager
from pylogd.broker.metadata.image import Broker, PartitionState, Topic
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts
from tests.hotpath import instructions

FEW, MANY = 50, 250
SLACK = 1.0 if sys.version_info[:2] == (3, 11) else 1.5
TOPIC_ID = bytes(range(16))
MOST_TO_CREATE, MOST_TO_LOAD, MOST_TO_HOST, MOST_TO_SETTLE = 1760, 1120, 1056, 93


def for_each(cost: Callable[[int], int]) -> float:
    """Return what one partition costs, given what so many do. The first call pays for what is made once."""
    cost(FEW)
    return (cost(MANY) - cost(FEW)) / (MANY - FEW) / SLACK


def loaded_manager(directory: Path) -> LogManager:
    manager = LogManager([str(directory)], now_ms=lambda: NOW_MS)
    manager.load()
    return manager


def test_creating_a_log(tmp_path: Path) -> None:
    def create(partitions: int) -> int:
        manager = loaded_manager(Path(mkdtemp(dir=tmp_path)))
        found = instructions(lambda: manager.create_all("t", range(partitions), TOPIC_ID))
        assert len(manager.logs) == partitions
        manager.close()
        return found

    assert for_each(create) < MOST_TO_CREATE


def test_opening_a_log_as_the_last_stop_left_it(tmp_path: Path) -> None:
    def load(partitions: int) -> int:
        directory = Path(mkdtemp(dir=tmp_path))
        manager = loaded_manager(directory)
        manager.create_all("t", range(partitions), TOPIC_ID)
        manager.close()
        manager = LogManager([str(directory)], now_ms=lambda: NOW_MS)
        found = instructions(manager.load)
        assert [log.at_rest for log in manager.logs.values()] == [True] * partitions
        manager.close()
        return found

    assert for_each(load) < MOST_TO_LOAD


def test_hosting_a_partition(tmp_path: Path) -> None:
    def host(partitions: int) -> int:
        parts = Parts(Path(mkdtemp(dir=tmp_path)))
        parts.create("t", partitions=partitions)
        for partition in list(parts.partitions.by_name.values()):
            parts.hosting._unhost(partition)
        parts.hosting.unsubscribe()
        found = instructions(lambda: result_of(Deferred.fromCoroutine(parts.hosting.start())))
        assert len(parts.partitions.by_name) == partitions
        parts.close()
        return found

    assert for_each(host) < MOST_TO_HOST


def test_deciding_on_a_partition_whose_only_replica_has_come_back() -> None:
    snapshot = Snapshot({1: Broker(1, (), incarnation=2)}, {1: 1})

    def settle(partitions: int) -> int:
        states = tuple(PartitionState.initial(index, (1,)) for index in range(partitions))
        topic = Topic("t", TOPIC_ID, states, {})
        updates: list[object] = []
        found = instructions(lambda: updates.extend(settle_all(snapshot, [topic], frozenset(), lambda _: 1)))
        assert not updates
        return found

    assert for_each(settle) < MOST_TO_SETTLE
