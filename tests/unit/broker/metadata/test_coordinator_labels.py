"""Partitions of internal topics that belong to a label are placed within it, by whoever places them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pylogd.broker.controller.decisions import Snapshot
from pylogd.broker.controller.internal import grow
from pylogd.broker.controller.misplaced import MisplacedReport
from pylogd.broker.metadata.configs import ConfigChange, ConfigOperation
from pylogd.broker.metadata.errors import (
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    OutsideLabel,
)
from pylogd.broker.metadata.image import PartitionState, Topic
from pylogd.broker.metadata.labels import label_at, misplaced
from pylogd.config import Settings
from pylogd.store.paths import OFFSETS_TOPIC
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.test_labels import LOGS, ONLINE, Cluster, labelled

LABELS = "online:0-3:pay-,logs:4-7:log-"
COUNT = 10


@pytest.fixture
def cluster(store: SqliteStore) -> Cluster:
    return Cluster(store, **{"coordinator.labels": LABELS})


def made(cluster: Cluster, factor: int = 2) -> Topic:
    create = cluster.one.topic_admin.create_topic
    topic: Topic = result_of(create(OFFSETS_TOPIC, partitions=COUNT, replication_factor=factor))
    return topic


def nodes(topic: Topic, first: int, last: int) -> set[int]:
    return {node for state in topic.partitions[first : last + 1] for node in state.target}


def test_each_label_has_its_partitions(cluster: Cluster) -> None:
    topic = made(cluster)
    assert topic.configs["coordinator.labels"] == LABELS
    assert nodes(topic, 0, 3) == {*ONLINE} and nodes(topic, 4, 7) == {*LOGS}
    assert [label_at(topic.configs, index) for index in (0, 3, 4, 7, 8)] == ["online", "online", "logs", "logs", ""]
    assert {state.replicas[0] for state in topic.partitions[:4]} == {*ONLINE}, "leaders are spread"


def test_added_partitions_have_no_label_of_groups(cluster: Cluster) -> None:
    made(cluster)
    topic = result_of(cluster.one.topic_admin.add_partitions(OFFSETS_TOPIC, COUNT + 4))
    assert nodes(topic, 0, 3) == {*ONLINE} and nodes(topic, 4, 7) == {*LOGS}
    assert len(topic.partitions) == COUNT + 4


def test_other_topics_do_not_get_it(cluster: Cluster) -> None:
    topic = cluster.create(partitions=4, replication_factor=1)
    assert "coordinator.labels" not in topic.configs
    with pytest.raises(InvalidConfig, match="is only for __consumer_offsets and __transaction_state"):
        result_of(cluster.one.topic_admin.create_topic("u", configs={"coordinator.labels": LABELS}))


def test_a_topic_with_too_few_partitions_is_not_made(cluster: Cluster) -> None:
    with pytest.raises(InvalidConfig, match="has only 6"):
        result_of(cluster.one.topic_admin.create_topic(OFFSETS_TOPIC, partitions=6, replication_factor=1))


def test_each_label_needs_a_broker(store: SqliteStore) -> None:
    cluster = Cluster(store, **{"coordinator.labels": "gone:0-3:pay-"})
    with pytest.raises(InvalidReplicationFactor, match='carry the label "gone"'):
        made(cluster)


def test_it_can_not_be_changed(cluster: Cluster) -> None:
    made(cluster)
    for change in (
        ConfigChange("coordinator.labels", ConfigOperation.SET, "online:0-4:pay-"),
        ConfigChange("coordinator.labels", ConfigOperation.DELETE, None),
    ):
        with pytest.raises(OutsideLabel, match="can't be changed: groups and transactional ids"):
            result_of(cluster.one.topic_admin.alter_topic_configs(OFFSETS_TOPIC, [change]))
    other = ConfigChange("segment.bytes", ConfigOperation.SET, "16777216")
    topic = result_of(cluster.one.topic_admin.alter_topic_configs(OFFSETS_TOPIC, [other]))
    assert topic.configs["coordinator.labels"] == LABELS


def test_partitions_move_within_their_label(cluster: Cluster) -> None:
    made(cluster)
    outcomes = cluster.move({0: (4, 5), 1: (1, 3), 4: (1, 2), 5: (4, 6), 8: (7, 1)}, name=OFFSETS_TOPIC)
    refused = [isinstance(outcome, InvalidReplicaAssignment) for outcome in outcomes]
    assert refused == [True, False, True, False, False], outcomes


def test_the_topics_own_label_concerns_the_others_only(cluster: Cluster) -> None:
    made(cluster)
    assert cluster.move({8: (4, 5), 9: (5, 6)}, "hdd", OFFSETS_TOPIC) == [None, None]
    topic = cluster.topic(OFFSETS_TOPIC)
    assert topic.configs["placement.label"] == "hdd" and nodes(topic, 0, 3) == {*ONLINE}


def partition(index: int, *replicas: int) -> PartitionState:
    return PartitionState(index, replicas, replicas, replicas[0])


def test_the_controller_adds_replicas_within_the_label() -> None:
    brokers = {node: labelled(node, label) for label, some in (("online", ONLINE), ("logs", LOGS)) for node in some}
    topic = Topic(
        OFFSETS_TOPIC, bytes(16), (partition(0, 1), partition(1, 4), partition(2, 4)),
        {"coordinator.labels": "online:0-0:pay-,logs:1-1:log-"},
    )  # fmt: skip
    (update,) = grow(Snapshot(brokers, {}), [topic], Settings())
    targets = [set(state.target) for state in update.after]
    assert targets[0] == {*ONLINE} and targets[1] == {*LOGS} and len(targets[2]) == 3


def test_replicas_outside_are_reported() -> None:
    configs: Mapping[str, str] = {"coordinator.labels": "online:0-0:pay-,logs:1-1:log-"}
    brokers = {1: labelled(1, "online"), 4: labelled(4, "logs")}
    topic = Topic(OFFSETS_TOPIC, bytes(16), (partition(0, 4, 1), partition(1, 4), partition(2, 1)), configs)
    assert [misplaced(topic, state, brokers) for state in topic.partitions] == [(4,), (), ()]
    report = MisplacedReport()
    report.look([topic], brokers)
    assert report.counts == {(4, "online"): 1}
