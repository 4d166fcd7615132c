"""A plan that is refused has changed nothing: settings and replicas are as before, whenever it was refused."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.placement.layout import Assigned, Layout
from pylogd.client.core.admin.move_operations import (
    CORDONED,
    RATES,
    THROTTLED,
    ClusterLayout,
    MoveOperations,
    MovesRefused,
)
from pylogd.client.core.model import Broker, ClusterDescription, ConfigEntry, LogDir, TopicPartition

T = TypeVar("T")
FIRST, SECOND, MOVING = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
Targets = Mapping[TopicPartition, Sequence[int] | None]


class Cluster(MoveOperations):
    """Three brokers. settings: what was set at run time. replicas: the targets. refused: partitions that a broker
    refuses although the plan is in order, as if the cluster had changed meanwhile.
    """

    def __init__(self) -> None:
        self.settings: dict[tuple[str, str, str], str] = {
            ("broker", "1", RATES[0]): "7", ("topic", "u", THROTTLED[0]): "*",
        }  # fmt: skip
        self.before = {FIRST: Assigned((1, 2)), SECOND: Assigned((1, 2)), MOVING: Assigned((2,), (1,))}
        self.replicas: dict[TopicPartition, tuple[int, ...]] = {at: one.replicas for at, one in self.before.items()}
        self.refused: set[TopicPartition] = set()
        self.error: ErrorCode | None = None

    async def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        return ClusterDescription("c", 1, tuple(Broker(node, "h", 1, cordoned=node == 9) for node in (1, 2, 3, 9)))

    async def layout(self, topics: Iterable[str] | None = None) -> ClusterLayout:
        return Layout((await self.describe_cluster()).placement, self.before)

    async def describe_log_dirs(self, brokers: Iterable[int] | None = None) -> list[LogDir]:
        return [LogDir(3, "/d", None, 1, 1, {}, bool(self.settings.get(("broker", "3", CORDONED))))]

    async def describe_configs(self, kind: Any, name: str, keys: Any = None, *, documentation: bool = False) -> Any:
        source = "topic" if kind == "topic" else "broker, at run time"
        own = [
            ConfigEntry(key, value, source, False, False, None)
            for (of, whose, key), value in self.settings.items()
            if (of, whose) == (kind, name) and key in keys
        ]
        return [*own, ConfigEntry(RATES[1], "5", "all brokers, at run time", False, False, None)]

    async def alter_configs(self, kind: Any, name: str, changes: Mapping[str, str | None], **_: Any) -> None:
        for key, value in changes.items():
            self.settings.pop((kind, name, key), None)
            if value is not None:
                self.settings[kind, name, key] = value

    async def _until_cordoned(self, broker: int, cordoned: bool) -> None:
        pass

    async def reassign(self, targets: Any, **_: Any) -> Any:
        if self.error is not None:
            raise KafkaError(self.error)
        outcome: dict[TopicPartition, KafkaError | None] = {}
        for at, nodes in cast(Targets, targets).items():
            if at in self.refused:
                outcome[at] = KafkaError(ErrorCode.INELIGIBLE_REPLICA, "broker 3 is cordoned")
            elif nodes is None and set(self.replicas[at]) == set(self.before[at].replicas):
                outcome[at] = KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            else:
                self.replicas[at] = self.before[at].replicas if nodes is None else tuple(nodes)
                outcome[at] = None
        return outcome


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")


def test_a_plan_begins_with_its_cordon_and_throttle() -> None:
    cluster = Cluster()
    at_once(cluster.begin_moves({FIRST: (1, 2), SECOND: (2, 1)}, throttle=100, cordon=3))
    assert cluster.settings["broker", "3", CORDONED] == "*"
    assert cluster.settings["broker", "1", RATES[0]] == cluster.settings["broker", "2", RATES[1]] == "100"
    assert cluster.settings["topic", "t", THROTTLED[0]] == "*" and cluster.replicas[SECOND] == (2, 1)
    assert at_once(cluster.throttle_rate()) == 100


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        ({FIRST: (1, 9)}, "broker 9 is cordoned"),
        ({FIRST: (1, 4)}, "broker 4 is not alive"),
        ({TopicPartition("t", 7): (1,)}, "there is no such partition"),
        ({FIRST: (1, 1)}, "different brokers"),
    ],
)
def test_what_brokers_would_refuse_is_not_asked_for(targets: Any, reason: str) -> None:
    cluster = Cluster()
    before = dict(cluster.settings), dict(cluster.replicas)
    with pytest.raises(MovesRefused, match=rf"1 of 2 moves are not possible. Nothing was changed: .*{reason}"):
        at_once(cluster.begin_moves({**targets, SECOND: (1, 3)}, throttle=100, cordon=3))
    assert (cluster.settings, cluster.replicas) == before


@pytest.mark.parametrize("first", [(1, 3), (2, 1)])
def test_what_a_broker_refuses_nevertheless_is_undone(first: tuple[int, ...]) -> None:
    cluster = Cluster()
    cluster.refused = {SECOND}
    before = dict(cluster.settings), dict(cluster.replicas)
    with pytest.raises(MovesRefused, match=r"1 of 3 moves are not possible. Nothing was changed: t-1: .*cordoned"):
        at_once(cluster.begin_moves({FIRST: first, SECOND: (1, 3), MOVING: (3,)}, throttle=100, cordon=3))
    assert (cluster.settings, cluster.replicas) == before, "also the move that was under way before"


def test_settings_are_undone_if_the_moves_may_not_be_asked_for() -> None:
    cluster = Cluster()
    cluster.error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    before = dict(cluster.settings)
    with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
        at_once(cluster.begin_moves({FIRST: (1, 3)}, throttle=100, cordon=3))
    assert cluster.settings == before


def test_the_throttle_stays_if_nobody_knows_whether_the_moves_have_begun() -> None:
    cluster = Cluster()
    cluster.error = ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(KafkaError, match="REQUEST_TIMED_OUT"):
        at_once(cluster.begin_moves({FIRST: (1, 3)}, throttle=100))
    assert cluster.settings["broker", "2", RATES[0]] == "100"
