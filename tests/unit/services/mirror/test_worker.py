"""A worker follows its assignment, and the store always has at least what it copies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.services.mirror.copying import Copier
from pylogd.services.mirror.errors import NotAMember
from pylogd.services.mirror.membership import Assignment, Holdings, MirrorPaths, dump_assignment, parse_holdings
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.services.mirror.worker import Worker
from tests.fakes.metadata import InlineStore, result_of

PATHS = MirrorPaths("test")
ONE, TWO, THREE = (PartitionRoute(f"r{number}", "events", number, "events") for number in range(3))


class FakeCopier(Copier):
    """A copier that only notes what it is told. `busy`: what it can't release yet."""

    has_ended = False

    def __init__(self, world: World) -> None:
        self._world = world
        self.wanted: set[PartitionRoute] = set()
        self.busy: set[PartitionRoute] = set()
        self.failure: Exception | None = None

    def assign(self, wanted: Iterable[PartitionRoute]) -> None:
        wanted = set(wanted)
        started = wanted - self.wanted
        written = self._world.worker.written
        assert written is not None and started <= written.partitions, "it is started before the store has it"
        self.busy |= self.wanted - wanted
        self.wanted = wanted

    @property
    def held(self) -> set[PartitionRoute]:
        return self.wanted | self.busy

    async def run(self) -> None:
        if self.failure is not None:
            raise self.failure
        await Deferred()

    def stop(self) -> None:
        self.wanted.clear()
        self.has_ended = True


class World:
    """A worker on a store."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = InlineStore(folder / "store")
        result_of(self.store.start())
        self.copiers: dict[str, FakeCopier] = {}
        self.failure: Exception | None = None
        self.worker = Worker(
            self.store, PATHS, "w", reactor=self.clock, target_of=lambda route: "t2" if route == "r2" else "t1",
            make_copier=self._make, figures=lambda: {"a": 1},
        )  # fmt: skip
        self.ended: list[Any] = []
        self.running = Deferred.fromCoroutine(self.worker.run())
        self.running.addBoth(self.ended.append)

    def _make(self, target: str, worker: Worker) -> Copier:
        copier = self.copiers[target] = FakeCopier(self)
        copier.failure = self.failure
        return copier

    def assign(self, *partitions: PartitionRoute) -> None:
        path, data = f"{PATHS.assignments}/w", dump_assignment(Assignment(frozenset(partitions)))
        if result_of(self.store.exists(path)) is None:
            result_of(self.store.create(path, data))
        else:
            result_of(self.store.set(path, data))
        self.clock.advance(0)

    def holdings(self) -> Holdings:
        return parse_holdings(result_of(self.store.get(f"{PATHS.holdings}/w")).data)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.running.cancel()
    result_of(found.store.close())


def test_it_registers_with_nothing(world: World) -> None:
    assert result_of(world.store.children(PATHS.workers)) == ["w"]
    assert world.holdings() == Holdings(-1, frozenset())


def test_it_follows_at_once_by_targets(world: World) -> None:
    world.assign(ONE, THREE)
    assert world.copiers["t1"].wanted == {ONE} and world.copiers["t2"].wanted == {THREE}
    assert world.holdings() == Holdings(0, frozenset({ONE, THREE}))


def test_what_is_not_released_yet_stays_in_its_holdings(world: World) -> None:
    world.assign(ONE, TWO)
    world.assign(TWO)
    assert world.holdings() == Holdings(1, frozenset({ONE, TWO}))
    world.copiers["t1"].busy.clear()
    world.worker.released()
    assert world.holdings() == Holdings(1, frozenset({TWO}))


def test_its_membership_is_proven_by_a_write(world: World) -> None:
    result_of(Deferred.fromCoroutine(world.worker.still_member()))
    result_of(world.store.delete(f"{PATHS.workers}/w"))
    with pytest.raises(NotAMember):
        result_of(Deferred.fromCoroutine(world.worker.still_member()))


def test_it_ends_once_a_copier_finds_that_it_is_no_member(world: World) -> None:
    world.failure = NotAMember("gone")
    world.assign(ONE)
    world.clock.advance(1)
    [ended] = world.ended
    assert ended.check(NotAMember)


def test_it_leaves_with_everything_released(world: World) -> None:
    world.assign(ONE)
    result_of(Deferred.fromCoroutine(world.worker.leave()), lambda: world.clock.advance(0.1))
    assert world.copiers["t1"].has_ended
    assert world.holdings().partitions == frozenset()


def test_its_status_has_figures(world: World) -> None:
    world.assign(ONE)
    world.clock.advance(6)
    assert json.loads(result_of(world.store.get(f"{PATHS.status}/w")).data) == {"a": 1}
