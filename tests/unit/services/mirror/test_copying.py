"""The loop that copies: what is committed together, what happens after failures, and how partitions come and go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.base.errors import ErrorCode, KafkaError, RequestTimedOut
from pylogd.client.core.errors import LogTruncation, UnknownTopic
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.services.mirror.copy_run import CopierOptions
from pylogd.services.mirror.copying import Copier
from pylogd.services.mirror.errors import NotAMember, TopicRecreated
from pylogd.services.mirror.feeds import ByteRateLimit, RouteMeter
from pylogd.services.mirror.offset_map import Run
from pylogd.services.mirror.partition_copy import CommitPace, PartitionRoute
from pylogd.services.mirror.source import OnError
from pylogd.services.mirror.starting import LogRange, SourceState, StartAt
from pylogd.services.mirror.target import SourcePartition
from tests.fakes.mirror import TOPIC_ID, FakeCluster, FakeReader, FakeTarget, refused


class FakeRoute:
    """A route whose source is lists of values."""

    start: StartAt = "earliest"

    def __init__(self, name: str, logs: dict[TopicPartition, list[bytes]]) -> None:
        self.name, self.logs = name, logs
        self.throttle, self.meter = ByteRateLimit(0), RouteMeter()
        self.topic_id = TOPIC_ID
        self.first = 0
        self.errors: dict[str, KafkaError] = {}
        self.readers: list[FakeReader] = []

    def reader(self, on_ready: object, on_error: OnError) -> FakeReader:
        assert callable(on_ready)
        self.readers.append(FakeReader(self.logs, on_ready, on_error))
        return self.readers[-1]

    async def look_up(self, partitions: Sequence[TopicPartition]) -> SourceState:
        known = [partition for partition in partitions if partition.topic not in self.errors]
        ranges = {partition: LogRange(self.first, len(self.logs[partition])) for partition in known}
        return SourceState("source", {p.topic: self.topic_id for p in known}, ranges, self.errors)


class World:
    """A copier with two routes of one partition each, on a clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cluster = FakeCluster()
        self.logs = {TopicPartition("a", 0): [b"a%d" % n for n in range(25)], TopicPartition("b", 0): [b"b0", b"b1"]}
        self.routes = {name: FakeRoute(name, self.logs) for name in "ab"}
        self.member = True
        self.released = 0
        self.throttle = ByteRateLimit(0)
        options = CopierOptions(
            self.routes.get, lambda: FakeTarget(self.cluster), self.clock, lambda: 1234, CommitPace(0.5), self.throttle,
            self._still_member, self._released,
        )  # fmt: skip
        self.copier = Copier(options)
        self.ended: list[object] = []
        Deferred.fromCoroutine(self.copier.run()).addBoth(self.ended.append)

    async def _still_member(self) -> None:
        if not self.member:
            raise NotAMember("gone")

    def _released(self) -> None:
        self.released += 1

    def advance(self, seconds: float) -> None:
        """Let time pass in small steps."""
        for _ in range(round(seconds / 0.05)):
            self.clock.advance(0.05)

    def values(self, topic: str) -> list[bytes]:
        """What is committed at the target."""
        return self.cluster.values.get(TopicPartition(topic, 0), [])

    def checkpoint(self, topic: str) -> int:
        return self.cluster.checkpoints[SourcePartition("source", topic, 0, topic)].offset


A, B = (PartitionRoute(name, name, 0, name) for name in "ab")


@pytest.fixture
def world() -> World:
    found = World()
    found.copier.assign([A, B])
    found.advance(0.1)
    return found


def test_everything_is_committed_together_after_the_interval(world: World) -> None:
    assert world.cluster.commits == 0 and not world.values("a")
    world.advance(0.6)
    assert world.cluster.commits == 1
    assert world.values("a") == world.logs[TopicPartition("a", 0)]
    assert world.values("b") == [b"b0", b"b1"]
    assert (world.checkpoint("a"), world.checkpoint("b")) == (25, 2)
    assert world.cluster.runs[SourcePartition("source", "a", 0, "a")] == [Run(0, 0, 25)]


def test_without_anything_new_nothing_is_committed(world: World) -> None:
    world.advance(5)
    assert world.cluster.commits == 1


def test_the_start_of_a_new_partition_is_committed_before_there_are_records() -> None:
    world = World()
    world.logs[TopicPartition("b", 0)] = []
    world.copier.assign([B])
    world.advance(1)
    assert world.checkpoint("b") == 0


def test_it_goes_on_at_the_checkpoint(world: World) -> None:
    world.advance(1)
    again = World()
    again.cluster.checkpoints = dict(world.cluster.checkpoints)
    again.copier.assign([A])
    again.advance(1)
    assert again.routes["a"].readers[0].reads == [(TopicPartition("a", 0), 25, 3)]


@pytest.mark.parametrize("name", ["open", "begin", "flush", "commit"])
def test_after_a_failure_everything_begins_again_at_the_checkpoints(world: World, name: str) -> None:
    world.advance(1)
    world.logs[TopicPartition("a", 0)] += [b"more"]
    world.cluster.fails[name] = RequestTimedOut("no answer")
    if name == "open":
        world.cluster.fails["flush"] = RequestTimedOut("first this")
    for route in world.routes.values():
        route.readers[-1].on_ready()
    world.advance(5)
    assert world.values("a") == world.logs[TopicPartition("a", 0)]
    assert world.values("b") == [b"b0", b"b1"]
    assert not world.cluster.fails and world.cluster.opened == 2 and not world.ended


def test_a_partition_that_the_target_refuses_is_set_aside_and_the_others_go_on() -> None:
    world = World()
    world.copier.assign([A])
    world.advance(1)
    world.cluster.fails["append"] = refused()
    world.copier.assign([A, B])
    world.advance(1)
    assert world.copier.failed == {B: "TOPIC_AUTHORIZATION_FAILED: not allowed"} or B in world.copier.failed
    world.logs[TopicPartition("a", 0)] += [b"more"]
    world.routes["a"].readers[-1].on_ready()
    world.advance(1)
    assert world.values("a")[-1] == b"more"
    assert world.values("b") == []
    world.advance(6)
    assert world.values("b") == [b"b0", b"b1"] and not world.copier.failed


def test_a_full_target_is_waited_for(world: World) -> None:
    world.advance(1)
    world.cluster.full = True
    world.logs[TopicPartition("a", 0)] += [b"more"]
    world.routes["a"].readers[-1].on_ready()
    world.advance(2)
    assert world.checkpoint("a") == 25
    world.cluster.full = False
    world.advance(2)
    assert world.values("a")[-1] == b"more"


def test_a_partition_that_leaves_is_committed_first_and_then_released(world: World) -> None:
    world.copier.assign([A])
    world.advance(0.05)
    assert B not in world.copier.held
    assert world.values("b") == [b"b0", b"b1"] and world.checkpoint("b") == 2
    assert world.released
    world.logs[TopicPartition("b", 0)] += [b"more"]
    world.advance(2)
    assert world.values("b") == [b"b0", b"b1"]


def test_during_a_commit_a_partition_that_leaves_is_still_held(world: World) -> None:
    world.cluster.held = []
    world.advance(0.6)
    world.copier.assign([A])
    world.advance(1)
    assert B in world.copier.held
    [commit], world.cluster.held = world.cluster.held, None
    commit.callback(None)
    world.advance(0.1)
    assert B not in world.copier.held and world.checkpoint("b") == 2


def test_a_stop_commits_what_was_appended(world: World) -> None:
    world.copier.stop()
    world.advance(0.2)
    assert world.ended == [None] and world.copier.has_ended
    assert world.checkpoint("a") == 25 and world.copier.held == set()


def test_who_is_no_member_any_more_ends_without_a_commit() -> None:
    world = World()
    world.advance(0.1)
    world.cluster.fails["checkpoints"] = RequestTimedOut("no answer")
    world.member = False
    world.cluster.fails["begin"] = RequestTimedOut("no answer")
    world.copier.assign([A])
    world.advance(10)
    assert len(world.ended) == 1 and "gone" in str(world.ended[0])
    assert world.cluster.commits == 0


def test_a_recreated_topic_is_copied_from_its_start_behind_the_former(world: World) -> None:
    world.advance(1)
    world.logs[TopicPartition("b", 0)][:] = [b"new"]
    world.routes["b"].topic_id = bytes(15) + b"2"
    reader = world.routes["b"].readers[-1]
    reader.forget(TopicPartition("b", 0))
    reader.on_error(TopicPartition("b", 0), TopicRecreated("created again"))
    world.advance(1)
    assert world.values("b") == [b"b0", b"b1", b"new"]
    key = SourcePartition("source", "b", 0, "b")
    assert world.cluster.checkpoints[key].topic_id == bytes(15) + b"2" and world.checkpoint("b") == 1


def test_a_truncated_log_is_gone_on_with_where_it_differs(world: World) -> None:
    world.advance(1)
    world.logs[TopicPartition("a", 0)][20:] = [b"other"]
    reader = world.routes["a"].readers[-1]
    reader.forget(TopicPartition("a", 0))
    at = {TopicPartition("a", 0): OffsetAndMetadata(20, leader_epoch=2)}
    reader.on_error(TopicPartition("a", 0), LogTruncation.of({TopicPartition("a", 0): 25}, at))
    world.advance(1)
    assert world.values("a")[24:] == [b"a24", b"other"]
    assert world.checkpoint("a") == 21


def test_records_that_were_deleted_before_they_were_copied_are_counted(world: World) -> None:
    world.advance(1)
    world.logs[TopicPartition("b", 0)] += [b"b2", b"b3", b"b4"]
    world.routes["b"].first = 4
    reader = world.routes["b"].readers[-1]
    reader.forget(TopicPartition("b", 0))
    reader.on_error(TopicPartition("b", 0), KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE))
    world.advance(1)
    assert world.values("b") == [b"b0", b"b1", b"b4"]
    assert world.routes["b"].meter.lost_records == 2


def test_a_topic_that_is_gone_is_asked_for_now_and_then() -> None:
    world = World()
    world.routes["b"].errors["b"] = UnknownTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    world.copier.assign([A, B])
    world.advance(1)
    assert world.values("a") and B in world.copier.failed
    world.routes["b"].errors.clear()
    world.advance(6)
    assert world.values("b") == [b"b0", b"b1"]


def test_a_throttled_route_delays_no_other() -> None:
    world = World()
    world.routes["a"].throttle = ByteRateLimit(100)
    world.advance(0.1)
    world.copier.assign([A, B])
    world.advance(2)
    assert world.values("b") == [b"b0", b"b1"]
    assert len(world.values("a")) < 25
    world.advance(10)
    assert len(world.values("a")) == 25


def test_a_route_that_has_changed_begins_again_with_its_new_settings(world: World) -> None:
    world.advance(1)
    before = world.routes["b"]
    world.routes["b"] = FakeRoute("b", world.logs)
    world.copier.begin_again({"b"})
    world.logs[TopicPartition("b", 0)] += [b"b2"]
    world.advance(2)
    assert before.readers[-1].closed and world.routes["b"].readers
    assert world.values("b") == [b"b0", b"b1", b"b2"]
    assert len(world.routes["a"].readers) == 1


def test_figures_have_the_lag_and_what_went_wrong(world: World) -> None:
    world.advance(1)
    world.logs[TopicPartition("a", 0)] += [b"more"] * 7
    found = world.copier.figures()
    assert (found["a"].partitions, found["a"].lag, found["a"].lag_max, found["a"].records) == (1, 7, 7, 25)
    assert found["b"].lag == 0 and found["b"].failed == {}


def test_lag_is_not_known_before_the_source_has_told_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.advance(1)
    assert world.copier.figures()["a"].measured == 1
    for reader in world.routes["a"].readers:
        monkeypatch.setattr(reader, "end", lambda _partition: -1)
    found = world.copier.figures()["a"]
    assert (found.partitions, found.measured) == (1, 0)


def test_lag_in_seconds_begins_with_what_the_target_has_not(world: World) -> None:
    world.advance(1)
    assert world.copier.figures()["a"].lag_seconds == 0
    world.logs[TopicPartition("a", 0)] += [b"more"]
    world.cluster.full = True
    world.advance(5)
    found = world.copier.figures()
    assert 4.9 < found["a"].lag_seconds < 7.1 and found["b"].lag_seconds == 0
    world.cluster.full = False
    world.advance(2)
    assert world.copier.figures()["a"].lag_seconds == 0


def test_the_time_that_a_throttle_takes_is_counted_for_its_route_only() -> None:
    world = World()
    world.routes["a"].throttle = ByteRateLimit(100)
    world.copier.assign([A, B])
    world.advance(5)
    assert world.routes["a"].meter.throttled_seconds > 1 and world.routes["b"].meter.throttled_seconds == 0
    world.advance(20)
    counted = world.routes["a"].meter.throttled_seconds
    world.advance(5)
    assert world.routes["a"].meter.throttled_seconds == counted, "nothing waits any more"


def test_partitions_that_are_set_aside_are_counted_with_their_errors() -> None:
    world = World()
    world.routes["a"].errors["a"] = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no access")
    world.copier.assign([A, B])
    world.advance(1)
    found = world.copier.figures()["a"]
    assert (found.partitions, found.starting, found.set_aside) == (0, 1, 1)
    assert "no access" in found.failed["a-0"]
    assert (world.copier.commits, world.copier.interruptions) == (1, 0)
