"""Random histories of groups whose members speak both protocols, with coordinators that fail over.

At no moment do two consumers use the same partition; the epoch does not go back while the group has members; in the end
every partition is used by one consumer, and the coordinator knows nobody else.
"""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from pylogd.broker.groups.consumer import service
from pylogd.broker.groups.consumer.work import MUCH_WORK
from pylogd.broker.metadata.image import Topic
from tests.fakes.group_histories import ClassicConsumer, Consumer, NewConsumer, World
from tests.unit.broker.groups.consumer.test_heartbeats import topic

NAMES = ("t", "u")


def make_topics() -> dict[str, Topic]:
    return {"t": topic("t", 5), "u": topic("u", 3)}


@pytest.fixture(autouse=True)
def _numbered_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have members get the same ids in each run."""
    numbers = count()
    monkeypatch.setattr("uuid.uuid4", lambda: f"{next(numbers):04}")


class History:
    """One random history of a group."""

    def __init__(self, seed: int, **settings: str) -> None:
        self.random = Random(seed)
        self.world = World(make_topics(), **settings)
        self.world.load()
        self.cooperative = self.random.random() < 0.5
        self.made = 0
        self.epoch = 0

    def add(self, kind: type[Consumer] | None = None) -> None:
        if kind is None:
            kind = self.random.choice((NewConsumer, ClassicConsumer))
        topics = set(self.random.choice((("t",), ("t", "u"), ("t", "u"))))
        instance = f"i{self.made}" if self.random.random() < 0.2 else None
        arguments = (self.world, f"c{self.made}", topics, self.random, instance)
        self.made += 1
        if kind is NewConsumer:
            NewConsumer(*arguments)
        else:
            ClassicConsumer(*arguments, cooperative=self.cooperative)

    def step(self) -> None:
        """Do something, and let the consumers do what is due."""
        world, random = self.world, self.random
        what = random.random()
        if len(world.consumers) < 2 or (what < 0.15 and len(world.consumers) < 6):
            self.add()
        elif what < 0.27:
            random.choice(world.consumers).leave()
        elif what < 0.32:
            random.choice(world.consumers).die()
        elif what < 0.38:
            world.load()
            if world.coordinator._consumers.get("g") is None:
                self.epoch = 0  # a classic generation is in the log once its leader has assigned
        elif what < 0.43:
            random.choice(world.consumers).subscribe(set(random.choice((("t",), ("t", "u")))))
        elif what < 0.46 and len(world.topics["u"].partitions) < 6:
            world.topics["u"] = topic("u", len(world.topics["u"].partitions) + 1)
            world.coordinator._consumers.topics_changed()
        elif what < 0.55:
            world.log.waits = True
        elif what < 0.7:
            world.log.go_on()
        for consumer in random.sample(world.consumers, random.randint(1, len(world.consumers))):
            if consumer in world.consumers:
                consumer.tick()
                world.check()
        if random.random() < 0.5:
            self.pass_time(1.0)
        self.check_epoch()

    def pass_time(self, seconds: float) -> None:
        """Let time pass. Consumers that live send something in time, so no session ends but of those that died."""
        self.world.log.go_on()
        self.world.tick()
        self.world.clock.advance(seconds)
        self.world.check()

    def check_epoch(self) -> None:
        """Fail if the epoch went back, except that a group that was empty and changed protocol begins anew."""
        epoch = self.world.epoch
        assert epoch >= self.epoch or not self.world.member_ids or epoch < 3
        self.epoch = epoch if self.world.member_ids else 0

    def settle(self) -> None:
        """Let the consumers that are left go on until nothing changes."""
        for consumer in self.world.consumers:
            consumer.lossy = 0.0
        for _ in range(80):
            self.pass_time(1.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"group.consumer.migration.policy": "bidirectional"},
        {"group.consumer.migration.policy": "upgrade"},
        {"group.consumer.assignment.interval.ms": "3000"},
    ],
)
@pytest.mark.parametrize("part", range(4))
def test_no_partition_has_two_owners_and_all_have_one_in_the_end(
    part: int, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(part * 25, part * 25 + 25):
        monkeypatch.setattr(service, "MUCH_WORK", -1 if seed % 2 else MUCH_WORK)  # in a thread, or at once
        history = History(seed, **settings)
        for _ in range(40):
            history.step()
        history.settle()
        world = history.world
        assert world.owned() == sorted(world.all_partitions()), (seed, [(c.name, c.owned) for c in world.consumers])
        assert len(world.member_ids) == len(world.consumers), seed
        assert all(len(times) <= len(world.consumers) for times in times_of(world)), seed


def times_of(world: World) -> list[dict[str, float]]:
    held = world.coordinator._consumers._held.get("g")
    return [] if held is None else list(held.times)


def test_answers_that_are_lost_are_asked_for_again() -> None:
    for seed in range(30):
        history = History(1000 + seed)
        for _ in range(3):
            history.add()
        for _ in range(30):
            history.step()
            for consumer in history.world.consumers:
                consumer.lossy = 0.2
        history.settle()
        assert history.world.owned() == sorted(history.world.all_partitions()), seed


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_rolling_change_of_clients_to_the_newer_protocol_and_back(cooperative: bool) -> None:
    history = History(0)
    history.cooperative = cooperative
    world = history.world

    def replace(kind: type[Consumer]) -> None:
        for consumer in list(world.consumers):
            consumer.leave()
            history.settle()
            history.add(kind)
            history.world.consumers[-1].topics = {"t", "u"}
            history.settle()
            assert world.owned() == sorted(world.all_partitions())

    for _ in range(3):
        history.add(ClassicConsumer)
    history.settle()
    assert world.coordinator._consumers.get("g") is None
    replace(NewConsumer)
    consumers = world.coordinator._consumers.get("g")
    assert consumers is not None and all(member.classic is None for member in consumers.members.values())
    upgraded = consumers.epoch
    replace(ClassicConsumer)
    assert world.coordinator._consumers.get("g") is None
    assert world.coordinator._groups["g"].generation > upgraded


@pytest.mark.parametrize("down", [False, True])
def test_a_topic_that_is_made_anew_is_assigned_by_its_new_id(down: bool) -> None:
    """Subscriptions name topics, assignments have ids: also if no coordinator ran when the topic was deleted."""
    history = History(0)
    world = history.world
    for _ in range(3):
        history.add(NewConsumer)
        world.consumers[-1].topics = {"t", "u"}
    history.settle()
    world.topics["t"] = topic("t", 5, version=1)
    if down:
        world.load()
    else:
        world.coordinator._consumers.topics_changed()
    history.settle()
    consumers = world.coordinator._consumers.get("g")
    assert consumers is not None
    wanted = {(one.topic_id, index) for one in world.topics.values() for index in range(len(one.partitions))}
    assert set().union(*consumers.target.values()) == wanted
    assert {partition for member in consumers.members.values() for partition in member.assigned} == wanted
    assert world.owned() == sorted(world.all_partitions())
