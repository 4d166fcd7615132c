"""The controller on a real store in memory's place: elections, assignments, and workers that are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.base.errors import BrokerUnavailable
from pylogd.services.mirror.controller import Controller, Wanted
from pylogd.services.mirror.membership import Assignment, Holdings, MirrorPaths, dump_holdings, parse_assignment
from pylogd.services.mirror.partition_copy import PartitionRoute
from pylogd.store.errors import NoNode
from tests.fakes.metadata import InlineStore, result_of

PATHS = MirrorPaths("test")


def partitions(count: int) -> list[PartitionRoute]:
    return [PartitionRoute(f"r{number % 2}", "events", number, "events") for number in range(count)]


class World:
    """A store, a controller, and workers that do what they are told when they are told to."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = InlineStore(folder / "store")
        result_of(self.store.start())
        for parent in PATHS.parents:
            result_of(self.store.ensure(parent))
        self.wanted: Collection[PartitionRoute] = partitions(8)
        self.unknown: set[str] = set()
        self.fenced: list[tuple[str, str]] = []
        self.unreachable: set[str] = set()
        self.failures: list[Exception] = []
        self.controllers: list[tuple[Controller, Deferred[None]]] = []

    async def _refresh(self, now: float) -> Wanted:
        if self.failures:
            raise self.failures.pop()
        return Wanted(self.wanted, self.unknown)

    async def _fence(self, worker: str, route: str) -> None:
        if route in self.unreachable:
            raise BrokerUnavailable("no broker")
        self.fenced.append((worker, route))

    def control(self, name: str) -> Controller:
        controller = Controller(
            self.store, PATHS, name, reactor=self.clock, refresh=self._refresh, refresh_seconds=2.0, fence=self._fence
        )
        running = Deferred.fromCoroutine(controller.run())
        running.addErrback(lambda _: None)
        self.controllers.append((controller, running))
        return controller

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)

    def join(self, worker: str) -> None:
        result_of(self.store.create(f"{PATHS.holdings}/{worker}", dump_holdings(Holdings(-1, frozenset()))))
        result_of(self.store.create(f"{PATHS.workers}/{worker}"))

    def die(self, worker: str) -> None:
        result_of(self.store.delete(f"{PATHS.holdings}/{worker}"))
        result_of(self.store.delete(f"{PATHS.workers}/{worker}"))

    def assignment(self, worker: str) -> Assignment:
        return parse_assignment(result_of(self.store.get(f"{PATHS.assignments}/{worker}")).data)

    def follow(self, worker: str) -> None:
        """Copy what is assigned and nothing else, and say so."""
        node = result_of(self.store.get(f"{PATHS.assignments}/{worker}"))
        holdings = Holdings(node.stat.version, parse_assignment(node.data).partitions)
        result_of(self.store.set(f"{PATHS.holdings}/{worker}", dump_holdings(holdings)))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    for _, running in found.controllers:
        running.cancel()
    result_of(found.store.close())


def test_workers_get_their_shares(world: World) -> None:
    world.join("a")
    world.control("c")
    world.join("b")
    world.advance(5)
    assert len(world.assignment("a").partitions) in (4, 8)
    world.follow("a")
    world.advance(1)
    assert len(world.assignment("a").partitions) == len(world.assignment("b").partitions) == 4
    assert world.assignment("a").partitions | world.assignment("b").partitions == set(world.wanted)


def test_a_partition_moves_only_after_its_owner_has_released_it(world: World) -> None:
    world.join("a")
    world.control("c")
    world.advance(1)
    world.follow("a")
    world.join("b")
    world.advance(3)
    assert len(world.assignment("a").partitions) == len(world.assignment("a").leaving) == 4
    assert world.assignment("b").partitions == frozenset()
    world.follow("a")
    world.advance(1)
    assert world.assignment("b").partitions == world.assignment("a").leaving


def test_a_worker_that_is_gone_is_fenced_before_others_get_its_partitions(world: World) -> None:
    world.join("a")
    world.control("c")
    world.advance(1)
    world.follow("a")
    world.unreachable = {"r1"}
    world.die("a")
    world.join("b")
    world.advance(5)
    assert world.fenced == [("a", "r0")]
    assert {path.route for path in world.assignment("b").partitions} == {"r0"}
    world.unreachable.clear()
    world.advance(3)
    assert world.fenced == [("a", "r0"), ("a", "r1")]
    assert world.assignment("b").partitions == set(world.wanted)
    with pytest.raises(NoNode):
        world.assignment("a")


def test_workers_that_are_gone_are_fenced_before_it_is_known_what_to_copy(world: World) -> None:
    """Their open transactions would keep it from being known."""
    world.join("a")
    world.control("first")
    world.advance(1)
    world.controllers[0][1].cancel()
    result_of(world.store.delete(PATHS.controller))
    world.die("a")
    world.failures = [BrokerUnavailable("no answer")] * 100
    world.control("second")
    world.advance(1)
    assert world.fenced == [("a", "r0"), ("a", "r1")]


def test_another_controller_goes_on_where_the_first_one_stopped(world: World) -> None:
    world.join("a")
    world.control("first")
    second = world.control("second")
    world.advance(1)
    world.follow("a")
    world.join("b")
    world.advance(3)  # partitions leave, and are not free yet
    assert not second.is_elected
    world.controllers[0][1].cancel()
    result_of(world.store.delete(PATHS.controller))
    world.advance(3)
    assert second.is_elected
    assert world.assignment("b").partitions == frozenset()
    world.follow("a")
    world.advance(1)
    assert len(world.assignment("b").partitions) == 4


def test_topics_that_come_and_go_concern_nobody_else(world: World) -> None:
    for worker in "ab":
        world.join(worker)
    world.control("c")
    world.advance(1)
    before = {worker: world.assignment(worker).partitions for worker in "ab"}
    world.wanted = partitions(10)
    world.advance(3)
    for worker in "ab":
        world.follow(worker)
        assert world.assignment(worker).partitions > before[worker]
        assert not world.assignment(worker).leaving
    world.wanted = partitions(8)
    world.advance(3)
    assert {worker: world.assignment(worker).partitions for worker in "ab"} == before


def test_routes_whose_clusters_do_not_answer_stay_as_they_are(world: World) -> None:
    world.join("a")
    world.control("first")
    world.advance(1)
    before = world.assignment("a").partitions
    world.controllers[0][1].cancel()
    result_of(world.store.delete(PATHS.controller))
    world.wanted, world.unknown = [path for path in world.wanted if path.route == "r0"], {"r1"}
    world.control("second")
    world.advance(5)
    assert world.assignment("a").partitions == before
    world.unknown.clear()
    world.advance(3)
    assert {path.route for path in world.assignment("a").partitions} == {"r0"}


def test_it_tries_again_after_an_error(world: World) -> None:
    world.failures = [BrokerUnavailable("once")]
    world.join("a")
    world.control("c")
    world.advance(3)
    assert world.assignment("a").partitions == set(world.wanted)
