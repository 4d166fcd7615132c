"""Labels: which brokers may have replicas of a topic, whoever chooses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail

from pylogd.broker.controller.admin import PartitionAdmin
from pylogd.broker.metadata.configs import ConfigChange, ConfigOperation
from pylogd.broker.metadata.errors import (
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    OutsideLabel,
    UnknownTopic,
)
from pylogd.broker.metadata.image import Broker, Endpoint, Outages, Topic
from pylogd.broker.metadata.labels import ANY_BROKER, candidates, check_within, label_of, misplaced
from pylogd.broker.metadata.layout import decode_broker, encode_broker
from pylogd.store.errors import ConnectionLost
from pylogd.store.interfaces import Delete, SessionState
from pylogd.store.paths import BROKERS
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.conftest import Peer

ONLINE, LOGS = (1, 2, 3), (4, 5, 6)


def labelled(node: int, *labels: str, cordoned: bool = False) -> Broker:
    return Broker(node, (Endpoint("P", "h", 1),), "r", outages=Outages(cordoned=cordoned), labels=labels)


class Cluster:
    """Brokers 1 to 3 with the label `online`, 4 to 6 with `logs`, and 7 without one. Broker 1 is asked."""

    def __init__(self, store: SqliteStore, **settings: Any) -> None:
        self.store = store
        self.peers = {node: Peer(store, node, **settings) for node in range(1, 8)}
        for node, labels in {**dict.fromkeys(ONLINE, ("online",)), **dict.fromkeys(LOGS, ("logs", "hdd"))}.items():
            result_of(self.peers[node].cluster.own.set_labels(labels))
        self.one = self.peers[1]
        self.admin = self.admin_of(1)

    def admin_of(self, node: int) -> PartitionAdmin:
        peer = self.peers[node]
        return PartitionAdmin(peer.cluster, peer.topics, peer.topic_admin.room_on, lambda: 0)

    def create(self, name: str = "t", **more: Any) -> Topic:
        configs = {"placement.label": more.pop("label", "online")}
        made: Topic = result_of(self.one.topic_admin.create_topic(name, configs=configs, **more))
        return made

    def nodes(self, name: str = "t") -> set[int]:
        """Return the brokers that have, or will have, replicas of a topic."""
        return {node for state in self.topic(name).partitions for node in state.target}

    def topic(self, name: str = "t") -> Topic:
        found = self.one.topics.get(name)
        assert found is not None
        return found

    def move(self, targets: dict[int, Any], label: str | None = None, name: str = "t") -> list[Any]:
        labels = {} if label is None else {name: label}
        wanted = {(name, index): nodes for index, nodes in targets.items()}
        return list(result_of(self.admin.move(wanted, labels=labels)).values())

    def alter(self, node: int, label: str) -> Deferred[Topic]:
        """Have a broker change the label of t."""
        change = ConfigChange("placement.label", ConfigOperation.SET, label)
        return self.peers[node].topic_admin.alter_topic_configs("t", [change])

    def set_label(self, label: str) -> None:
        result_of(self.alter(1, label))

    def before_the_next_write(self, act: Callable[[], Deferred[Any]]) -> None:
        """Let another broker act after broker 1 has worked out its next write, and before that is done."""
        write = self.one.feed.write

        async def write_late(*args: Any) -> Any:
            self.one.feed.write = write  # type: ignore[method-assign]
            await act()
            return await write(*args)

        self.one.feed.write = write_late  # type: ignore[method-assign, assignment]


@pytest.fixture
def cluster(store: SqliteStore) -> Cluster:
    return Cluster(store)


class TestRules:
    def test_a_topic_without_a_label_may_be_anywhere(self) -> None:
        assert label_of({}) == label_of({"placement.label": ""}) == ANY_BROKER
        check_within([1, 2, 99], ANY_BROKER, {}, {})

    def test_brokers_that_may_get_replicas(self) -> None:
        brokers = {1: labelled(1, "a", "b"), 2: labelled(2, "b"), 3: labelled(3), 4: labelled(4, "b", cordoned=True)}
        found = candidates(brokers)
        assert found.open("b") == [1, 2] and found.open(ANY_BROKER) == [1, 2, 3]
        assert found.carriers("b") == 'brokers 1, 2, 4 carry the label "b" (broker.labels)'
        assert found.carriers("a") == 'broker 1 carries the label "a" (broker.labels)'
        assert found.carriers("c") == 'no live broker carries the label "c" (broker.labels)'

    def test_a_dead_broker_carries_what_it_carried(self) -> None:
        live, known = {1: labelled(1, "a")}, {1: labelled(1), 2: labelled(2, "a"), 3: labelled(3)}
        check_within([1, 2], "a", live, known)
        with pytest.raises(InvalidReplicaAssignment, match=r'broker 3 does not carry .* 1 carries the label "a"'):
            check_within([1, 3], "a", live, known)
        with pytest.raises(InvalidReplicaAssignment, match="broker 4 is not alive, and its labels are not known"):
            check_within([4], "a", live, known)

    def test_a_broker_registers_its_labels(self) -> None:
        broker = labelled(1, "a", "b")
        assert decode_broker("/brokers/ids/1", encode_broker(broker)) == broker


class TestCreating:
    def test_replicas_are_on_brokers_with_the_label(self, cluster: Cluster) -> None:
        cluster.create(partitions=9, replication_factor=2)
        assert cluster.nodes() == {*ONLINE}
        result_of(cluster.one.topic_admin.add_partitions("t", 20))
        assert cluster.nodes() == {*ONLINE}

    def test_a_topic_without_a_label_is_on_any_broker(self, cluster: Cluster) -> None:
        cluster.create(label="", partitions=7, replication_factor=1)
        assert cluster.nodes() == set(range(1, 8))

    def test_too_few_brokers_carry_the_label(self, cluster: Cluster) -> None:
        with pytest.raises(InvalidReplicationFactor, match=r'carry the label "logs" \(broker.labels: 4, 5, 6\)'):
            cluster.create(label="logs", replication_factor=4)
        with pytest.raises(InvalidReplicationFactor, match='the 0 brokers that are alive, carry the label "other"'):
            cluster.create(label="other")

    def test_replicas_that_the_client_assigns(self, cluster: Cluster) -> None:
        cluster.create(assignment={0: [3, 1]})
        with pytest.raises(
            InvalidReplicaAssignment, match="broker 7 does not carry the topic's label: brokers 1, 2, 3"
        ):
            cluster.create("u", assignment={0: [1, 7]})
        with pytest.raises(InvalidReplicaAssignment, match="broker 4 does not"):
            result_of(cluster.one.topic_admin.add_partitions("t", 2, assignment=[[1, 4]]))
        result_of(cluster.one.topic_admin.add_partitions("t", 2, assignment=[[1, 2]]))
        assert cluster.nodes() == {1, 2, 3}

    @pytest.mark.parametrize("label", ["a b", "a,b", "ü", "x" * 101])
    def test_what_can_be_no_label(self, cluster: Cluster, label: str) -> None:
        with pytest.raises(InvalidConfig, match="a label has 1 to 100 letters"):
            cluster.create(label=label)

    def test_a_default_becomes_the_topics_own(self, store: SqliteStore) -> None:
        cluster = Cluster(store, default_placement_label="logs")
        made = result_of(cluster.one.topic_admin.create_topic("t", partitions=6))
        assert made.configs == {"placement.label": "logs"}
        assert cluster.nodes() == {*LOGS}
        cluster.create("free", label="", partitions=7)
        assert cluster.nodes("free") == set(range(1, 8))

    def test_an_internal_topic_has_as_many_replicas_as_brokers_carry_its_label(self, store: SqliteStore) -> None:
        cluster = Cluster(store, default_placement_label="logs")
        made = result_of(cluster.one.topic_admin.create_topic("__consumer_offsets", partitions=5, replication_factor=5))
        assert {len(state.replicas) for state in made.partitions} == {3}
        assert cluster.nodes("__consumer_offsets") == {*LOGS}


class TestSettingTheLabel:
    def test_accepted_where_the_replicas_are_within_it(self, cluster: Cluster) -> None:
        cluster.create(label="", assignment={0: [4, 5], 1: [5, 6]})
        cluster.set_label("hdd")
        assert cluster.topic().configs == {"placement.label": "hdd"}
        cluster.set_label("")
        cluster.set_label("logs")

    def test_refused_where_replicas_are_outside(self, cluster: Cluster) -> None:
        cluster.create(label="", assignment={0: [4, 7]})
        for alter in (lambda: cluster.set_label("logs"), lambda: cluster.set_label("online")):
            with pytest.raises(OutsideLabel, match=r"replicas on brokers 4, 7, and .* `pylogd topics relabel t"):
                alter()
        with pytest.raises(OutsideLabel):
            result_of(cluster.one.topic_admin.set_topic_configs("t", {"placement.label": "logs"}, validate_only=True))
        assert label_of(cluster.topic().configs) == ""

    def test_other_settings_of_a_topic_with_misplaced_replicas(self, cluster: Cluster) -> None:
        cluster.create(assignment={0: [1, 2]})
        result_of(cluster.peers[2].cluster.own.set_labels(()))
        change = ConfigChange("retention.ms", ConfigOperation.SET, "1000")
        result_of(cluster.one.topic_admin.alter_topic_configs("t", [change]))
        assert cluster.topic().configs == {"placement.label": "online", "retention.ms": "1000"}

    def test_a_move_that_comes_first_is_seen(self, cluster: Cluster) -> None:
        """Another broker moves a replica out after this one has checked the label, and before it writes it."""
        cluster.create(label="", assignment={0: [4, 5]})
        cluster.before_the_next_write(lambda: cluster.admin_of(2).move({("t", 0): [4, 7]}))
        with pytest.raises(OutsideLabel, match="broker 7"):
            cluster.set_label("logs")
        assert label_of(cluster.topic().configs) == ""

    def test_a_label_that_comes_first_is_seen_by_a_move(self, cluster: Cluster) -> None:
        cluster.create(label="", assignment={0: [4, 5]})
        cluster.before_the_next_write(lambda: cluster.alter(2, "logs"))
        (refused,) = cluster.move({0: [4, 7]})
        assert isinstance(refused, InvalidReplicaAssignment)
        assert cluster.nodes() == {4, 5}

    def test_a_label_that_comes_first_is_seen_by_new_partitions(self, cluster: Cluster) -> None:
        cluster.create(label="", assignment={0: [4, 5]})
        cluster.before_the_next_write(lambda: cluster.alter(2, "logs"))
        result_of(cluster.one.topic_admin.add_partitions("t", 12))
        assert cluster.nodes() == {*LOGS}


class TestMoving:
    def test_only_to_brokers_with_the_label(self, cluster: Cluster) -> None:
        cluster.create(assignment={0: [1, 2], 1: [2, 3]})
        assert cluster.move({0: [3, 1]}) == [None]
        (refused,) = cluster.move({1: [2, 7]})
        assert isinstance(refused, InvalidReplicaAssignment)
        assert str(refused) == (
            'broker 7 does not carry the topic\'s label: brokers 1, 2, 3 carry the label "online" (broker.labels)'
        )
        assert cluster.move({0: None}) == [None]
        assert isinstance(cluster.move({0: None})[0], NoReassignmentInProgress)

    def test_a_misplaced_replica_may_stay_but_not_return(self, cluster: Cluster) -> None:
        cluster.create(assignment={0: [1, 2]})
        result_of(cluster.peers[1].cluster.own.set_labels(("else",)))
        assert cluster.move({0: [3, 1]}) == [None]
        assert cluster.move({0: [3, 2]}) == [None]
        (refused,) = cluster.move({0: None})
        assert isinstance(refused, OutsideLabel) and "relabel t" in str(refused)
        (refused,) = cluster.move({0: [1, 3]})
        assert isinstance(refused, InvalidReplicaAssignment)

    def test_the_label_changes_with_the_moves(self, cluster: Cluster) -> None:
        cluster.create(assignment={0: [1, 2], 1: [2, 3]})
        assert cluster.move({0: [4, 5], 1: [5, 6]}, "logs") == [None, None]
        topic = cluster.topic()
        assert label_of(topic.configs) == "logs"
        assert [(state.adding, state.removing) for state in topic.partitions] == [((4, 5), (1, 2)), ((5, 6), (2, 3))]
        result_of(cluster.one.topic_admin.add_partitions("t", 9))
        assert cluster.nodes() == {*LOGS}
        assert [one.topics.get("t") for one in cluster.peers.values()] == [cluster.topic()] * 7

    def test_the_former_label_cancels(self, cluster: Cluster) -> None:
        before = cluster.create(assignment={0: [1, 2], 1: [2, 3]})
        cluster.move({0: [4, 5], 1: [5, 6]}, "logs")
        for refused in cluster.move({0: None, 1: None}):
            assert isinstance(refused, OutsideLabel)
        assert cluster.move({0: [1, 2], 1: [2, 3]}, "online") == [None, None]
        after = cluster.topic()
        assert after.configs == before.configs
        assert [(s.replicas, s.moving) for s in after.partitions] == [((1, 2), False), ((2, 3), False)]
        cluster.move({0: [4, 5], 1: [5, 6]}, "logs")
        assert cluster.move({0: None, 1: None}, "online") == [None, None]
        assert label_of(cluster.topic().configs) == "online" and cluster.nodes() == {*ONLINE}

    @pytest.mark.parametrize(
        "targets",
        [{0: [4, 5], 1: [5, 7]}, {0: [4, 5]}, {0: [4, 5], 1: [5, 5]}],
        ids=["a broker without it", "a partition is missing", "another error"],
    )
    def test_all_partitions_or_none(self, cluster: Cluster, targets: dict[int, list[int]]) -> None:
        before = cluster.create(assignment={0: [1, 2], 1: [2, 3]})
        outcomes = cluster.move(targets, "logs")
        assert len(outcomes) == len(targets)
        assert all(isinstance(one, InvalidReplicaAssignment) for one in outcomes)
        assert cluster.topic() is before

    def test_a_label_without_moves(self, cluster: Cluster) -> None:
        cluster.create(label="logs", assignment={0: [4, 5]})
        assert cluster.move({0: [4, 5]}, "hdd") == [None]
        assert label_of(cluster.topic().configs) == "hdd"
        assert cluster.move({0: [4, 5]}, "") == [None]
        assert cluster.topic().configs == {}

    def test_other_topics_of_the_request(self, cluster: Cluster) -> None:
        cluster.create(assignment={0: [1, 2]})
        cluster.create("u", assignment={0: [1, 2]})
        wanted = {("t", 0): [4, 5], ("u", 0): [2, 3], ("none", 0): [1]}
        outcomes = result_of(cluster.admin.move(wanted, labels={"t": "other", "none": "logs"}))
        assert isinstance(outcomes["t", 0], InvalidReplicaAssignment)
        assert outcomes["u", 0] is None
        assert isinstance(outcomes["none", 0], UnknownTopic)
        bad = result_of(cluster.admin.move({("t", 0): [4, 5]}, labels={"t": "no label"}))
        assert isinstance(bad["t", 0], InvalidConfig)


class TestBrokers:
    def test_misplaced_replicas(self, cluster: Cluster) -> None:
        topic = cluster.create(assignment={0: [1, 2], 1: [2, 3]})
        brokers = cluster.one.cluster.brokers
        assert [misplaced(topic, state, brokers) for state in topic.partitions] == [(), ()]
        result_of(cluster.peers[2].cluster.own.set_labels(()))
        brokers = cluster.one.cluster.brokers
        assert [misplaced(topic, state, brokers) for state in topic.partitions] == [(2,), (2,)]
        cluster.move({0: [1, 3]})
        assert misplaced(cluster.topic(), cluster.topic().partitions[0], brokers) == ()
        without = {node: broker for node, broker in brokers.items() if node != 2}
        assert misplaced(topic, topic.partitions[0], without) == (), "a dead broker has lost no label"

    def test_labels_whose_write_was_lost_are_written_again(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        peer = cluster.peers[7]
        with monkeypatch.context() as lost, pytest.raises(ConnectionLost):
            lost.setattr(cluster.store, "multi", lambda _: fail(ConnectionLost("gone")))
            result_of(peer.cluster.own.set_labels(("new",)))
        assert decode_broker(f"{BROKERS}/7", result_of(cluster.store.get(f"{BROKERS}/7")).data).labels == ()
        peer.cluster._session(SessionState.CONNECTED)
        found = result_of(cluster.store.get(f"{BROKERS}/7"))
        assert decode_broker(f"{BROKERS}/7", found.data).labels == ("new",)

    def test_a_dead_brokers_label_counts(self, cluster: Cluster) -> None:
        cluster.create(label="", assignment={0: [4, 5]})
        result_of(cluster.store.multi([Delete(f"{BROKERS}/5")]))
        cluster.set_label("logs")
        assert label_of(cluster.topic().configs) == "logs"

    def test_who_waits_for_a_change_of_labels(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        ours = cluster.one.cluster
        assert ours.own.labels_settled().called
        held: Deferred[Any] = Deferred()

        async def write(*_: Any) -> Any:
            return await held

        monkeypatch.setattr(cluster.one.feed, "write", write)
        changed, settled = ours.own.set_labels(("new",)), ours.own.labels_settled()
        assert not settled.called
        held.errback(ConnectionLost("gone"))
        assert settled.called
        with pytest.raises(ConnectionLost):
            result_of(changed)
        assert ours.own.labels_settled().called
