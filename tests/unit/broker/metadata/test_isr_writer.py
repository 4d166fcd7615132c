"""Partition states: read, written with versions, and in-sync sets that only leaders change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.errors import FencedLeader, IneligibleReplica, StalePartition, UnknownTopic
from pylogd.broker.metadata.feed_machine import FeedEvent
from pylogd.broker.metadata.image import (
    NO_LEADER,
    Broker,
    Endpoint,
    IsrChange,
    Outages,
    PartitionState,
    Topic,
    TopicUpdate,
)
from pylogd.broker.metadata.layout import decode_topic, state_path
from pylogd.store.errors import BadVersion, NoNode
from pylogd.store.interfaces import Check, Operation, SetData
from pylogd.store.paths import TOPICS, topic_path
from pylogd.store.sqlite import SqliteStore
from pylogd.store.zookeeper import MAX_MULTI_BYTES
from tests.fakes.metadata import result_of
from tests.scale.store import written_bytes
from tests.unit.broker.metadata.conftest import Peer


@pytest.fixture
def peers(store: SqliteStore) -> list[Peer]:
    return [Peer(store, node_id) for node_id in (1, 2, 3)]


def make(peer: Peer, name: str = "a", partitions: int = 1) -> Topic:
    return result_of(peer.topic_admin.create_topic(name, assignment={index: [1, 2, 3] for index in range(partitions)}))


def change_of(topic: Topic, isr: tuple[int, ...], index: int = 0, **fields: Any) -> IsrChange:
    state = topic.partitions[index]
    epochs = dict.fromkeys(isr, 0)  # the first broker epoch of each broker
    made = IsrChange(topic.name, topic.topic_id, index, state.leader_epoch, state.partition_epoch, isr, epochs)
    return replace(made, **fields)


def test_a_leader_shrinks_and_grows_its_isr(peers: list[Peer]) -> None:
    topic = make(peers[0])
    (shrunk,) = result_of(peers[0].isr_writer.alter([change_of(topic, (1, 2))]))
    assert shrunk == replace(topic.partitions[0], isr=(1, 2), partition_epoch=1)
    now = peers[0].topics.get("a")
    assert now is not None
    assert now.partitions == (shrunk,)
    assert peers[2].topics.get("a") == now
    (grown,) = result_of(peers[0].isr_writer.alter([change_of(now, (1, 2, 3))]))
    assert isinstance(grown, PartitionState)
    assert (grown.isr, grown.partition_epoch, grown.leader_epoch) == ((1, 2, 3), 2, 0)


def test_a_change_that_was_made_already_is_answered_with_its_state(peers: list[Peer]) -> None:
    topic = make(peers[0])
    change = change_of(topic, (1,))
    (first,) = result_of(peers[0].isr_writer.alter([change]))
    assert result_of(peers[0].isr_writer.alter([change])) == [first]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"leader_epoch": 1}, FencedLeader),
        ({"partition_epoch": 7}, StalePartition),
        ({"isr": (2, 3)}, IneligibleReplica),
        ({"topic": "b"}, UnknownTopic),
        ({"topic_id": bytes(16)}, UnknownTopic),
        ({"index": 1}, UnknownTopic),
        ({"index": -1}, UnknownTopic),
    ],
)
def test_changes_that_are_refused(peers: list[Peer], fields: dict[str, Any], error: type[Exception]) -> None:
    topic = make(peers[0])
    (outcome,) = result_of(peers[0].isr_writer.alter([replace(change_of(topic, (1, 2)), **fields)]))
    assert isinstance(outcome, error)
    assert peers[0].topics.get("a") == topic


def test_only_the_leader_changes_an_isr(peers: list[Peer]) -> None:
    (outcome,) = result_of(peers[1].isr_writer.alter([change_of(make(peers[1]), (1, 2))]))
    assert isinstance(outcome, FencedLeader)


def test_replicas_that_may_not_join_are_refused(peers: list[Peer], store: SqliteStore) -> None:
    topic = result_of(peers[0].topic_admin.create_topic("a", assignment={0: [1, 2]}))
    strange = result_of(peers[0].isr_writer.alter([change_of(topic, (1, 2, 3))]))
    (shrunk,) = result_of(peers[0].isr_writer.alter([change_of(topic, (1,))]))
    assert isinstance(shrunk, PartitionState)
    result_of(store.delete("/brokers/ids/2"))
    dead = result_of(peers[0].isr_writer.alter([change_of(topic, (1, 2), partition_epoch=1)]))
    stopping = Broker(2, (Endpoint("PLAINTEXT", "host2", 9092),), stopping=True)
    result_of(peers[1].cluster.register(stopping))
    leaving = result_of(peers[0].isr_writer.alter([change_of(topic, (1, 2), partition_epoch=1)]))
    assert [type(one[0]) for one in (strange, dead, leaving)] == [IneligibleReplica] * 3


def test_a_replica_from_the_latest_offset_joins_in_its_time(store: SqliteStore) -> None:
    now = [1_000]
    peers = [Peer(store, 1, now_ms=lambda: now[0]), Peer(store, 2)]
    topic = result_of(peers[0].topic_admin.create_topic("a", assignment={0: [1]}))
    moved = replace(topic.partitions[0], replicas=(1, 2), adding=(2,), latest_until_ms=2_000, partition_epoch=1)
    result_of(peers[0].topics.write_states([TopicUpdate(topic, (moved,))]))
    found = peers[0].topics.get("a")
    assert found is not None
    assert found.partitions == (moved,)
    (early,) = result_of(peers[0].isr_writer.alter([change_of(found, (1, 2))]))
    assert isinstance(early, IneligibleReplica)
    now[0] = 2_000
    (joined,) = result_of(peers[0].isr_writer.alter([change_of(found, (1, 2))]))
    assert isinstance(joined, PartitionState)


def test_changes_of_many_partitions_are_one_write(peers: list[Peer], store: SqliteStore) -> None:
    topics = [make(peers[0], name, 3) for name in ("a", "b")]
    before = result_of(store.get("/changes")).stat.version
    changes = [change_of(topic, (1,), index) for topic in topics for index in (0, 2)]
    outcomes = result_of(peers[0].isr_writer.alter(changes))
    assert [isinstance(outcome, PartitionState) for outcome in outcomes] == [True] * 4
    assert result_of(store.get("/changes")).stat.version == before + 1
    after = peers[1].topics.get("a")
    assert after is not None
    assert [state.isr for state in after.partitions] == [(1,), (1, 2, 3), (1,)]
    assert after.partitions[1] is not topics[0].partitions[1]  # another object than the broker's
    mine = peers[0].topics.get("a")
    assert mine is not None
    assert mine.partitions[1] is topics[0].partitions[1]


def test_a_late_write_is_checked_again(peers: list[Peer], store: SqliteStore) -> None:
    topic = make(peers[0], partitions=2)
    # A write of the controller that broker 1 does not know yet.
    deaf(peers[0])
    other = peers[1].topics.get("a")
    assert other is not None
    moved = replace(other.partitions[1], leader=2, leader_epoch=1, partition_epoch=1, isr=(2, 3))
    result_of(peers[1].topics.write_states([TopicUpdate(other, (other.partitions[0], moved))]))
    asked = peers[0].isr_writer.alter([change_of(topic, (1, 2), 0), change_of(topic, (1, 2), 1)])
    hearing(peers[0])
    kept, fenced = result_of(asked)
    assert isinstance(kept, PartitionState)
    assert isinstance(fenced, FencedLeader)
    after = peers[1].topics.get("a")
    assert after is not None
    assert after.partitions == (kept, moved)


def deaf(peer: Peer) -> None:
    """Stop notifying the broker of changes."""
    peer.feed._machine.handle(FeedEvent.STOP)


def hearing(peer: Peer) -> None:
    peer.feed._machine.handle(FeedEvent.START)
    peer.feed._machine.handle(FeedEvent.BROKE)
    peer.feed._wake(FeedEvent.CHANGED)


def test_changes_of_many_topics_are_done_while_others_keep_writing_to_one_of_them(peers: list[Peer]) -> None:
    """As when a rack returns: each leader writes to topics that the others write to as well."""
    names = [f"t{number}" for number in range(8)]
    topics = [make(peers[0], name, 2) for name in names]
    write, asked = peers[0].topics.write_states, []

    def contended(updates: Sequence[TopicUpdate], **more: Any) -> Deferred[None]:
        asked.append(len(updates))
        if len(updates) == 1 or updates[-1].before.name != "t7":
            return write(updates, **more)
        deaf(peers[0])
        found = peers[1].topics.get("t7")
        assert found is not None
        kept, other = found.partitions
        after = kept, replace(other, partition_epoch=other.partition_epoch + 1)
        result_of(peers[1].topics.write_states([TopicUpdate(found, after)]))
        done = write(updates, **more)
        hearing(peers[0])
        return done

    with patch.object(peers[0].topics, "write_states", contended):
        outcomes = result_of(peers[0].isr_writer.alter([change_of(topic, (1, 2)) for topic in topics]))
    assert [isinstance(outcome, PartitionState) and outcome.isr for outcome in outcomes] == [(1, 2)] * 8
    assert asked[:5] == [8, 2, 2, 2, 2] and len(asked) <= 7  # whatever is in the way of one part, the others are done


def test_a_guard_that_fails_fails_the_write(peers: list[Peer], store: SqliteStore) -> None:
    topic = make(peers[0])
    after = replace(topic.partitions[0], leader=NO_LEADER, partition_epoch=1)
    with pytest.raises(BadVersion):
        result_of(peers[0].topics.write_states([TopicUpdate(topic, (after,))], guards=[Check(TOPICS, 99)]))
    assert peers[0].topics.get("a") == topic


def test_late_writers_do_not_change_a_recreated_topic(peers: list[Peer], store: SqliteStore) -> None:
    topic = make(peers[0])
    deaf(peers[1])
    result_of(peers[0].topic_admin.delete_topic("a"))
    again = make(peers[0])
    seen = peers[1].topics.get("a")
    assert seen is not None
    assert seen.topic_id == topic.topic_id
    with pytest.raises(NoNode):
        result_of(peers[1].topics.write_states([TopicUpdate(seen, seen.partitions)]))
    assert peers[0].topics.get("a") is again


def test_replicas_and_states_are_written_together(peers: list[Peer], store: SqliteStore) -> None:
    topic = make(peers[0])
    state = replace(topic.partitions[0], replicas=(2, 3, 1), removing=(1,), partition_epoch=1)
    assert state.target == (2, 3)
    assert state.moving
    result_of(peers[0].topics.write_states([TopicUpdate(topic, (state,))], controller_epoch=3))
    heard = peers[2].topics.get("a")
    assert heard is not None
    assert heard.partitions == (state,)
    assignment = decode_topic("", result_of(store.get(topic_path("a"))).data)
    assert (assignment.replicas, assignment.removing) == ([(2, 3, 1)], {0: (1,)})


def test_wide_topics_are_written_in_several_steps(peers: list[Peer], store: SqliteStore) -> None:
    topics = [
        result_of(peers[0].topic_admin.create_topic(name, partitions=9_000, replication_factor=3)) for name in "abc"
    ]
    before = result_of(store.get("/changes")).stat.version
    updates = [
        TopicUpdate(topic, tuple(replace(state, isr=(state.leader,), partition_epoch=1) for state in topic.partitions))
        for topic in topics
    ]
    result_of(store.create("/last"))
    result_of(peers[0].topics.write_states(updates, last=[SetData("/last", b"done")]))
    assert result_of(store.get("/changes")).stat.version == before + 2
    assert result_of(store.get("/last")).data == b"done"
    assert peers[1].topics.all() == peers[0].topics.all()


def test_a_tree_of_an_earlier_release_gets_its_states(peers: list[Peer], store: SqliteStore) -> None:
    topic = make(peers[0], partitions=2)
    path = state_path("a", topic.topic_id)
    result_of(store.delete(path))
    late = Peer(store, 4)
    bare = late.topics.get("a")
    assert bare is not None
    assert [state.leader for state in bare.partitions] == [NO_LEADER, NO_LEADER]
    result_of(late.topics.make_missing_states())
    found = late.topics.get("a")
    assert found is not None
    assert found == topic
    version = result_of(store.get(path)).stat.version
    result_of(late.topics.make_missing_states())
    assert result_of(store.get(path)).stat.version == version


def test_brokers_are_told_what_states_are_and_need_not_read_them(peers: list[Peer], store: SqliteStore) -> None:
    topics = [make(peers[0], name) for name in "abc"]
    asked: list[str] = []
    real, real_many = store.get, store.get_many

    def counted(path: str, watch: object = None) -> object:
        asked.append(path)
        return real(path, watch)  # type: ignore[arg-type]

    def counted_many(paths: Sequence[str]) -> object:
        asked.extend(paths)
        return real_many(paths)

    store.get, store.get_many = counted, counted_many  # type: ignore[method-assign,assignment]
    updates = [TopicUpdate(topic, (replace(topic.partitions[0], isr=(1,), partition_epoch=1),)) for topic in topics]
    result_of(peers[0].topics.write_states(updates))
    assert [path for path in asked if path.startswith(TOPICS)] == []
    assert all(peer.topics.all()[0].partitions[0].isr == (1,) for peer in peers)
    assert all(peer.topics.all() == peers[0].topics.all() for peer in peers)
    # The next write uses the versions that the response named.
    again = peers[2].topics.get("a")
    assert again is not None
    result_of(peers[2].topics.write_states([TopicUpdate(again, (replace(again.partitions[0], partition_epoch=2),))]))
    assert late_view(store) == peers[2].topics.all()


def test_a_write_of_topics_with_long_names_is_not_too_large(peers: list[Peer], store: SqliteStore) -> None:
    topics = [make(peers[0], f"{number:0249}", partitions=3) for number in range(500)]
    sizes: list[int] = []
    real = store.multi

    def measured(operations: Sequence[Operation], session: int | None = None) -> object:
        sizes.append(written_bytes(operations))
        return real(operations, session)

    store.multi = measured  # type: ignore[method-assign,assignment]
    updates = [
        TopicUpdate(topic, tuple(replace(state, isr=(1,), partition_epoch=1) for state in topic.partitions))
        for topic in topics
    ]
    result_of(peers[0].topics.write_states(updates))
    assert 1 < len(sizes) < 5 and max(sizes) < MAX_MULTI_BYTES * 0.8
    assert all(peer.topics.all() == peers[0].topics.all() for peer in peers)


def late_view(store: SqliteStore) -> list[Topic]:
    """Return the topics as a broker reads them that starts now."""
    return Peer(store, 9).topics.all()


@pytest.mark.parametrize("full", [False, True])
def test_a_replica_on_an_offline_or_full_directory_does_not_join(peers: list[Peer], full: bool) -> None:
    topic = make(peers[0])
    this = frozenset({(topic.topic_id, 0)})
    result_of(peers[0].isr_writer.alter([change_of(topic, (1, 2))]))
    result_of(peers[2].cluster.own.report_outages(Outages(full=this) if full else Outages(offline=this)))
    now = peers[0].topics.get("a")
    assert now is not None
    (refused,) = result_of(peers[0].isr_writer.alter([change_of(now, (1, 2, 3))]))
    assert isinstance(refused, IneligibleReplica)
    result_of(peers[2].cluster.own.report_outages(Outages()))
    (joined,) = result_of(peers[0].isr_writer.alter([change_of(now, (1, 2, 3))]))
    assert isinstance(joined, PartitionState)
