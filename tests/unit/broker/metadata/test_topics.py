"""Topics: created, changed, deleted, and visible to every broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pylogd.broker.metadata import configs
from pylogd.broker.metadata.configs import ConfigChange, ConfigOperation
from pylogd.broker.metadata.errors import (
    InvalidChange,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopicName,
    TooManyPartitions,
    TopicDeletionDisabled,
    TopicError,
    TopicExists,
    UnknownTopic,
)
from pylogd.broker.metadata.feed_machine import FeedEvent
from pylogd.broker.metadata.image import NO_LEADER, PartitionState, TopicChange, TopicUpdate
from pylogd.broker.metadata.layout import (
    Assignment,
    broker_config_path,
    encode_broker,
    encode_topic,
    state_path,
    topic_config_path,
)
from pylogd.store.errors import CorruptMetadata, StoreClosed
from pylogd.store.paths import BROKERS, TOPICS, topic_path
from pylogd.store.sqlite import SqliteStore
from tests.fakes.metadata import result_of
from tests.unit.broker.metadata.conftest import Peer


def test_a_new_topic_is_found_at_once(peer: Peer) -> None:
    topic = result_of(peer.topic_admin.create_topic("flights", partitions=2, configs={"retention.ms": " 5 "}))
    assert topic.partitions == (PartitionState(0, (1,), (1,), 1), PartitionState(1, (1,), (1,), 1))
    assert topic.configs == {"retention.ms": "5"}
    assert peer.topics.get("flights") is topic
    assert peer.topics.by_id(topic.topic_id) is topic
    assert peer.topics.all() == [topic]
    assert len(peer.topics) == 1
    assert peer.changes == [TopicChange(None, topic)]
    assert not topic.internal


def test_defaults_are_the_brokers(store: SqliteStore) -> None:
    peer = Peer(store, 1, num_partitions=3)
    assert len(result_of(peer.topic_admin.create_topic("a")).partitions) == 3
    assert len(result_of(peer.topic_admin.create_topic("b", partitions=-1, replication_factor=-1)).partitions) == 3


def test_replicas_are_spread(store: SqliteStore) -> None:
    peers = [Peer(store, node_id) for node_id in (1, 2, 3)]
    topic = result_of(peers[0].topic_admin.create_topic("a", partitions=6, replication_factor=2))
    assert sorted(state.leader for state in topic.partitions) == [1, 1, 2, 2, 3, 3]
    assert all(len(set(state.replicas)) == 2 and state.isr == state.replicas for state in topic.partitions)
    given = result_of(peers[0].topic_admin.create_topic("b", assignment={1: [2, 1], 0: [3, 2]}))
    assert [state.replicas for state in given.partitions] == [(3, 2), (2, 1)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": ""}, InvalidTopicName),
        ({"name": "."}, InvalidTopicName),
        ({"name": "a" * 250}, InvalidTopicName),
        ({"name": "caf\u00e9"}, InvalidTopicName),
        ({"name": "a/b"}, InvalidTopicName),
        ({"name": "a b\n"}, InvalidTopicName),
        ({"name": "there"}, TopicExists),
        ({"name": "with_dot"}, InvalidTopicName),
        ({"name": "x", "partitions": 0}, InvalidPartitions),
        ({"name": "x", "partitions": 10_001}, TooManyPartitions),
        ({"name": "x", "replication_factor": 2}, InvalidReplicationFactor),
        ({"name": "x", "replication_factor": 0}, InvalidReplicationFactor),
        ({"name": "x", "assignment": {0: [1], 2: [1]}}, InvalidReplicaAssignment),
        ({"name": "x", "assignment": {0: [2]}}, InvalidReplicaAssignment),
        ({"name": "x", "assignment": {0: [1]}, "partitions": 1}, InvalidChange),
        ({"name": "x", "configs": {"no.such": "1"}}, InvalidConfig),
        ({"name": "x", "configs": {"retention.ms": None}}, InvalidConfig),
        ({"name": "x", "configs": {"retention.ms": "soon"}}, InvalidConfig),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_invalid_topics_are_refused(
    peer: Peer, arguments: dict[str, Any], error: type[TopicError], validate_only: bool
) -> None:
    result_of(peer.topic_admin.create_topic("there"))
    result_of(peer.topic_admin.create_topic("with.dot"))
    with pytest.raises(error) as caught:
        result_of(peer.topic_admin.create_topic(**arguments, validate_only=validate_only))
    assert caught.value.code
    assert len(peer.topics) == 2


def test_a_refused_topic_leaves_its_name_free(peer: Peer, store: SqliteStore) -> None:
    result_of(store.create(topic_config_path("a.b")))
    with pytest.raises(TopicExists):
        result_of(peer.topic_admin.create_topic("a.b"))
    assert result_of(peer.topic_admin.create_topic("a_b")).name == "a_b"


def test_names_are_free_again_after_deletion(peer: Peer) -> None:
    first = result_of(peer.topic_admin.create_topic("a.b"))
    result_of(peer.topic_admin.delete_topic("a.b"))
    result_of(peer.topic_admin.create_topic("a_b"))
    result_of(peer.topic_admin.delete_topic("a_b"))
    again = result_of(peer.topic_admin.create_topic("a.b"))
    assert again.topic_id != first.topic_id
    assert peer.topics.by_id(first.topic_id) is None


def test_validation_alone_writes_nothing(peer: Peer, store: SqliteStore) -> None:
    topic = result_of(peer.topic_admin.create_topic("a", partitions=2, validate_only=True))
    assert len(topic.partitions) == 2
    assert peer.topics.get("a") is None
    assert result_of(store.children(TOPICS)) == []
    result_of(peer.topic_admin.create_topic("a"))
    assert len(result_of(peer.topic_admin.add_partitions("a", 5, validate_only=True)).partitions) == 5
    assert result_of(peer.topic_admin.set_topic_configs("a", {"retention.ms": "1"}, validate_only=True)).configs
    topic_now = peer.topics.get("a")
    assert topic_now is not None
    assert (len(topic_now.partitions), topic_now.configs) == (1, {})


def test_a_deleted_topic_is_gone(peer: Peer, store: SqliteStore) -> None:
    topic = result_of(peer.topic_admin.create_topic("a", configs={"retention.ms": "1"}))
    result_of(peer.topic_admin.delete_topic("a"))
    assert peer.topics.get("a") is None
    assert peer.topics.by_id(topic.topic_id) is None
    assert peer.changes[-1] == TopicChange(topic, None)
    assert result_of(store.exists(topic_config_path("a"))) is None
    with pytest.raises(UnknownTopic):
        result_of(peer.topic_admin.delete_topic("a"))


def test_leaders_of_partitions(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that can't be read is not deleted: markers of transactions wait for its leaders."""
    result_of(peer.topic_admin.create_topic("a"))
    assert [peer.topics.leader_of("a", index) for index in range(2)] == [1, None]
    assert peer.topics.leader_of("b", 0) is None
    monkeypatch.setattr(peer.topics, "unreadable", {"b": CorruptMetadata("/brokers/topics/b", "broken")})
    assert peer.topics.leader_of("b", 0) == NO_LEADER


class TestAnotherTopicOfTheName:
    """A change that is meant for a topic is not made to the one that gets its name meanwhile."""

    def recreate(self, peer: Peer) -> None:
        result_of(peer.topic_admin.delete_topic("a"))
        result_of(peer.topic_admin.create_topic("a"))

    def test_settings_of_the_old_one_are_not_taken_over(
        self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = Peer(store, 1), Peer(store, 2)
        result_of(one.topic_admin.create_topic("a", configs={"flush.ms": "7"}))
        reads = iter([True])

        async def read_then_recreate(*args: Any) -> Any:
            found = await configs.read_configs(*args)
            if next(reads, False):
                self.recreate(one)
            return found

        monkeypatch.setattr("pylogd.broker.metadata.topic_admin.read_configs", read_then_recreate)
        change = [ConfigChange("retention.ms", ConfigOperation.SET, "1")]
        assert result_of(two.topic_admin.alter_topic_configs("a", change)).configs == {"retention.ms": "1"}
        assert one.topics.all() == two.topics.all()

    def test_a_deletion_by_id_deletes_no_other(self, store: SqliteStore) -> None:
        one, two = Peer(store, 1), Peer(store, 2)
        old = result_of(one.topic_admin.create_topic("a"))
        two.feed._machine.handle(FeedEvent.STOP)  # it hears of nothing
        self.recreate(one)
        two.feed._machine.handle(FeedEvent.START)
        two.feed._machine.handle(FeedEvent.BROKE)
        with pytest.raises(UnknownTopic):
            result_of(two.topic_admin.delete_topic("a", old.topic_id))
        new = one.topics.get("a")
        assert new is not None and new.topic_id != old.topic_id
        result_of(two.topic_admin.delete_topic("a", new.topic_id))
        assert one.topics.get("a") is None


def test_deletion_can_be_forbidden(store: SqliteStore) -> None:
    peer = Peer(store, 1, delete_topic_enable=False)
    result_of(peer.topic_admin.create_topic("a"))
    with pytest.raises(TopicDeletionDisabled):
        result_of(peer.topic_admin.delete_topic("a"))
    assert peer.topics.get("a") is not None


def test_partitions_are_added(peer: Peer) -> None:
    before = result_of(peer.topic_admin.create_topic("a", partitions=2, configs={"retention.ms": "1"}))
    after = result_of(peer.topic_admin.add_partitions("a", 4))
    assert after.topic_id == before.topic_id
    assert after.configs == before.configs
    assert after.partitions[:2] == before.partitions
    assert [state.index for state in after.partitions] == [0, 1, 2, 3]
    assert peer.changes[-1] == TopicChange(before, after)
    assert len(result_of(peer.topic_admin.add_partitions("a", 5, assignment=[[1]])).partitions) == 5


@pytest.mark.parametrize(
    ("name", "total", "assignment", "error"),
    [
        ("none", 2, None, UnknownTopic),
        ("a", 1, None, InvalidPartitions),
        ("a", 0, None, InvalidPartitions),
        ("a", 20_000, None, TooManyPartitions),
        ("a", 3, [[1]], InvalidReplicaAssignment),
        ("a", 2, [[1], [1]], InvalidReplicaAssignment),
        ("a", 2, [], InvalidReplicaAssignment),
        ("a", 2, [[1, 2]], InvalidReplicaAssignment),
        ("a", 2, [[9]], InvalidReplicaAssignment),
        ("a", 2, [[]], InvalidReplicaAssignment),
    ],
)
def test_partitions_that_cannot_be_added(
    peer: Peer, name: str, total: int, assignment: list[list[int]] | None, error: type[TopicError]
) -> None:
    result_of(peer.topic_admin.create_topic("a"))
    with pytest.raises(error):
        result_of(peer.topic_admin.add_partitions(name, total, assignment=assignment))


def test_settings_are_replaced_and_altered(peer: Peer) -> None:
    result_of(peer.topic_admin.create_topic("a", configs={"retention.ms": "1", "segment.bytes": "2000000"}))
    assert result_of(peer.topic_admin.set_topic_configs("a", {"retention.ms": "2"})).configs == {"retention.ms": "2"}
    changes = [
        ConfigChange("retention.ms", ConfigOperation.DELETE),
        ConfigChange("cleanup.policy", ConfigOperation.APPEND, "compact"),
        ConfigChange("flush.ms", ConfigOperation.SET, "7"),
    ]
    topic = result_of(peer.topic_admin.alter_topic_configs("a", changes))
    assert topic.configs == {"cleanup.policy": "delete,compact", "flush.ms": "7"}
    assert peer.topics.get("a") is topic
    assert peer.topics.by_id(topic.topic_id) is topic
    subtract = [ConfigChange("cleanup.policy", ConfigOperation.SUBTRACT, "delete")]
    assert result_of(peer.topic_admin.alter_topic_configs("a", subtract)).configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (ConfigChange("no.such", ConfigOperation.SET, "1"), InvalidConfig),
        (ConfigChange("retention.ms", ConfigOperation.SET, "soon"), InvalidConfig),
        (ConfigChange("retention.ms", ConfigOperation.SET, None), InvalidChange),
        (ConfigChange("retention.ms", ConfigOperation.APPEND, "1"), InvalidConfig),
        (ConfigChange("cleanup.policy", ConfigOperation.APPEND, "shred"), InvalidConfig),
        (ConfigChange("segment.bytes", ConfigOperation.SET, "1"), InvalidConfig),
    ],
)
def test_changes_that_are_refused(peer: Peer, change: ConfigChange, error: type[TopicError]) -> None:
    result_of(peer.topic_admin.create_topic("a"))
    with pytest.raises(error):
        result_of(peer.topic_admin.alter_topic_configs("a", [change]))
    with pytest.raises(UnknownTopic):
        result_of(peer.topic_admin.alter_topic_configs("b", [change]))


def test_deleting_a_setting_that_does_not_exist_changes_nothing(peer: Peer) -> None:
    result_of(peer.topic_admin.create_topic("a", configs={"retention.ms": "1"}))
    changed = result_of(peer.topic_admin.alter_topic_configs("a", [ConfigChange("no.such", ConfigOperation.DELETE)]))
    assert changed.configs == {"retention.ms": "1"}


def test_a_setting_named_twice_is_refused(peer: Peer) -> None:
    result_of(peer.topic_admin.create_topic("a"))
    change = ConfigChange("retention.ms", ConfigOperation.SET, "1")
    with pytest.raises(InvalidChange):
        result_of(peer.topic_admin.alter_topic_configs("a", [change, change]))


def test_every_broker_hears_of_every_change(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    result_of(one.topic_admin.create_topic("a"))
    result_of(two.topic_admin.create_topic("b", configs={"retention.ms": "1"}))
    result_of(one.topic_admin.set_topic_configs("b", {}))
    result_of(two.topic_admin.add_partitions("a", 3))
    result_of(one.topic_admin.delete_topic("b"))
    assert one.topics.all() == two.topics.all()
    assert one.changes == two.changes
    assert len(one.changes) == 5
    late = Peer(store, 3)
    assert late.topics.all() == one.topics.all()
    assert late.changes == [TopicChange(None, topic) for topic in one.topics.all()]


def test_what_a_change_tells(peer: Peer) -> None:
    made = result_of(peer.topic_admin.create_topic("t", partitions=2))
    grown = result_of(peer.topic_admin.add_partitions("t", 3))
    result_of(peer.topic_admin.set_topic_configs("t", {"retention.ms": "1"}))
    result_of(peer.topic_admin.delete_topic("t"))
    assert [change.of_names for change in peer.changes] == [True, False, False, True]
    assert [list(change.states) for change in peer.changes] == [list(made.partitions), [grown.partitions[2]], [], []]


def test_the_names_of_changed_topics_are_known_for_a_while(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.broker.metadata.topics._CHANGES_KEPT", 20)
    peer = Peer(store, 1)
    topics = peer.topics
    for name in ("b", "a", "c"):
        result_of(peer.topic_admin.create_topic(name))
    before = topics.generation
    assert list(topics.ordered()) == ["a", "b", "c"]
    assert topics.changed_since(before) == set()
    result_of(peer.topic_admin.create_topic("aa"))
    result_of(peer.topic_admin.delete_topic("c"))
    assert list(topics.ordered()) == ["a", "aa", "b"]
    assert topics.changed_since(before) == {"aa", "c"}
    assert topics.on_broker(1) == {"a", "aa", "b"}
    for _ in range(10):
        result_of(peer.topic_admin.create_topic("d"))
        result_of(peer.topic_admin.delete_topic("d"))
    assert topics.changed_since(before) is None
    assert topics.changed_since(before + 3) == {"d"}
    assert topics.on_broker(1) == {"a", "aa", "b"}


def test_a_broker_that_missed_writes_catches_up_with_all_of_them(store: SqliteStore) -> None:
    one, two = Peer(store, 1), Peer(store, 2)
    result_of(one.topic_admin.create_topic("kept"))
    result_of(one.topic_admin.create_topic("anew"))
    kept = two.topics.get("kept")
    two.changes.clear()
    two.feed._machine.handle(FeedEvent.STOP)  # so it is not notified
    result_of(one.topic_admin.create_topic("new"))
    result_of(one.topic_admin.delete_topic("anew"))
    result_of(one.topic_admin.create_topic("anew", partitions=2))
    two.feed._machine.handle(FeedEvent.START)
    two.feed._machine.handle(FeedEvent.BROKE)  # the next write makes it read again
    result_of(two.topic_admin.create_topic("own"))
    assert two.topics.all() == one.topics.all()
    assert two.topics.get("kept") is kept  # not decoded a second time
    names = [(change.before and change.before.name, change.after and change.after.name) for change in two.changes]
    assert sorted(names, key=str) == sorted([("anew", None), (None, "anew"), (None, "new"), (None, "own")], key=str)


def test_a_listener_that_raises_harms_nobody(peer: Peer) -> None:
    def broken(_: TopicChange) -> None:
        raise RuntimeError("a listener's own fault")

    forget = peer.topics.subscribe(broken)
    heard: list[TopicChange] = []
    peer.topics.subscribe(heard.append)
    result_of(peer.topic_admin.create_topic("a"))
    assert len(heard) == 1
    forget()


DAMAGED = [
    b"", b"[]", b'{"partitions":{}}', b"\xff", b"[" * 100_000,
    encode_topic(Assignment(bytes(15), [(1,)])), encode_topic(Assignment(bytes(16), [()])),
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED, ids=lambda data: str(data[:12]))
def test_a_damaged_topic_is_named_and_harms_no_other(store: SqliteStore, data: bytes) -> None:
    topic = result_of(Peer(store, 1).topic_admin.create_topic("sound"))
    result_of(store.ensure(topic_path("broken")))
    result_of(store.set(topic_path("broken"), data))
    peer = Peer(store, 1)
    assert peer.topics.all() == [topic]
    assert "/brokers/topics/broken" in str(peer.topics.unreadable["broken"])
    result_of(peer.topic_admin.create_topic("another"))
    with pytest.raises(TopicExists):
        result_of(peer.topic_admin.create_topic("broken"))
    with pytest.raises(InvalidChange, match="/brokers/topics/broken"):
        result_of(peer.topic_admin.add_partitions("broken", 9))
    result_of(peer.topic_admin.delete_topic("broken"))
    assert not peer.topics.unreadable
    assert result_of(peer.topic_admin.create_topic("broken")).name == "broken"


@pytest.mark.parametrize("which", ["topic", "state", "configs"])
def test_a_topic_that_can_no_longer_be_read_stays_as_it_was(store: SqliteStore, which: str) -> None:
    peer = Peer(store, 1)
    topic = result_of(peer.topic_admin.create_topic("t", configs={"retention.ms": "7"}))
    other = result_of(peer.topic_admin.create_topic("u"))
    path = {
        "topic": topic_path("t"), "state": state_path("t", topic.topic_id), "configs": topic_config_path("t"),
    }[which]  # fmt: skip
    sound = result_of(store.get(path)).data
    result_of(store.set(path, b"junk"))
    peer.feed._seen = -1  # the next write makes it read everything again
    result_of(peer.topic_admin.create_topic("v"))
    assert peer.topics.get("t") == topic
    assert set(peer.topics.unreadable) == {"t"}
    after = tuple(replace(state, leader_epoch=5, partition_epoch=5) for state in other.partitions)
    result_of(peer.topics.write_states([TopicUpdate(topic, topic.partitions), TopicUpdate(other, after)]))
    found = peer.topics.get("u")
    assert found is not None
    assert found.partitions[0].leader_epoch == 5
    result_of(store.set(path, sound))
    result_of(peer.topic_admin.create_topic("w"))
    assert not peer.topics.unreadable
    result_of(peer.topic_admin.add_partitions("t", 2))


def test_a_damaged_node_of_broker_settings_does_not_stop_the_start(store: SqliteStore) -> None:
    result_of(Peer(store, 1).configs.replace(None, {"log.retention.ms": "60000"}))
    result_of(store.set(broker_config_path(None), b"junk"))
    assert result_of(Peer(store, 1).topic_admin.create_topic("t")).name == "t"


def test_writes_fail_once_the_feed_is_stopped(peer: Peer) -> None:
    peer.feed.stop()
    waiting = peer.topic_admin.create_topic("a")
    peer.feed.stop()
    with pytest.raises(StoreClosed):
        result_of(waiting)


def test_many_partitions_fit_in_one_node(peer: Peer) -> None:
    assert len(result_of(peer.topic_admin.create_topic("wide", partitions=10_000)).partitions) == 10_000


def test_a_node_has_its_limit(store: SqliteStore) -> None:
    peer = Peer(store, 1, max_partitions_per_request=1_000_000)
    with pytest.raises(InvalidPartitions, match="too many"):
        result_of(peer.topic_admin.create_topic("wider", partitions=200_000))
    assert peer.topics.get("wider") is None


def test_a_broker_gets_no_more_partitions_than_it_may_hold(store: SqliteStore) -> None:
    peer = Peer(store, 1)
    registered = peer.cluster.brokers[1]
    result_of(store.set(f"{BROKERS}/1", encode_broker(replace(registered, partition_limit=5))))
    peer = Peer(store, 2)
    result_of(peer.topic_admin.create_topic("a", assignment={index: [1] for index in range(3)}))
    with pytest.raises(InvalidPartitions, match="broker 1 has room for 2 more partitions, not for 3"):
        result_of(peer.topic_admin.create_topic("b", assignment={index: [1, 2] for index in range(3)}))
    result_of(peer.topic_admin.create_topic("b", assignment={0: [1, 2]}))
    with pytest.raises(InvalidPartitions, match="room for 1"):
        result_of(peer.topic_admin.add_partitions("a", 5, assignment=[[1], [1]]))
    result_of(peer.topic_admin.delete_topic("a"))
    assert peer.topic_admin.room_on(1) == 4
    assert peer.topic_admin.room_on(2) is None
    result_of(peer.topic_admin.create_topic("c", assignment={index: [1] for index in range(4)}))
    many = {index: [1] for index in range(50)}
    result_of(peer.topic_admin.create_topic("__consumer_offsets", assignment=many))
