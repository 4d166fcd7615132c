"""The controller: its election, fencing, and the changes that it makes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.controller.machines import TermEvent
from pylogd.broker.metadata.image import NO_LEADER, Broker, Endpoint, IsrChange, PartitionState, TopicUpdate
from pylogd.broker.metadata.layout import decode_controller, decode_incarnations, encode_broker, encode_controller
from pylogd.store.errors import BadVersion, ConnectionLost
from pylogd.store.interfaces import SessionState, SetData
from pylogd.store.paths import BROKERS, CHANGES, CONTROLLER, CONTROLLER_EPOCH, INCARNATIONS, OFFSETS_TOPIC
from tests.fakes.metadata import result_of
from tests.unit.broker.controller.conftest import FakeCluster


def version(cluster: FakeCluster) -> int:
    """Return the version of a node, which counts its writes."""
    return result_of(cluster.store.get(CHANGES)).stat.version


def test_the_first_broker_is_the_controller(cluster: FakeCluster) -> None:
    peer = cluster.start(1)
    controller = cluster.controllers[1]
    assert controller.active
    assert controller.epoch == 1
    assert peer.cluster.controller_id == 1
    assert decode_controller(result_of(cluster.store.get(CONTROLLER)).data) == 1
    assert result_of(cluster.store.get(CONTROLLER_EPOCH)).data == b"1"
    assert peer.cluster.accepted


def test_every_new_broker_is_processed(three: FakeCluster) -> None:
    known = decode_incarnations(result_of(three.store.get(INCARNATIONS)).data)
    assert known == {node: broker.incarnation for node, broker in three.peers[1].cluster.brokers.items()}
    assert all(peer.cluster.accepted for peer in three.peers.values())


def test_a_leader_that_dies_is_followed_in_one_batch(three: FakeCluster) -> None:
    for name in ("a", "b", "c"):
        three.make(name, (1, 2, 3))
    three.make("d", (2, 3))
    before = version(three)
    three.die(1)
    assert version(three) == before + 1
    for name in ("a", "b", "c"):
        state = three.state(name)
        assert (state.leader, state.leader_epoch, state.isr, state.partition_epoch) == (2, 1, (2, 3), 1)
    assert three.state("d").partition_epoch == 0


def test_the_last_replica_in_sync_is_waited_for(three: FakeCluster) -> None:
    three.make()
    for node in (1, 2, 3):
        three.die(node)
    assert (three.state().leader, three.state().isr) == (NO_LEADER, (3,))
    three.come(1)
    assert three.state().leader == NO_LEADER
    three.come(3)
    assert (three.state().leader, three.state().isr, three.state().leader_epoch) == (3, (3,), 4)
    assert sum(one.unclean_elections for one in three.controllers.values()) == 0


def test_an_unclean_election_where_the_topic_allows_it(three: FakeCluster) -> None:
    three.make("clean")
    three.make("unclean", unclean_leader_election_enable="true")
    for node in (1, 2, 3):
        three.die(node)
    three.come(1)
    assert three.state("clean").leader == NO_LEADER
    assert (three.state("unclean").leader, three.state("unclean").isr) == (1, (1,))
    assert sum(one.unclean_elections for one in three.controllers.values()) == 1


def test_unclean_elections_may_be_allowed_while_it_runs(three: FakeCluster) -> None:
    three.make()
    for node in (1, 2, 3):
        three.die(node)
    three.come(1)
    result_of(three.peers[1].configs.replace(None, {"unclean.leader.election.enable": "true"}))
    three.settle()
    assert three.state().leader == 1


def test_a_broker_that_came_back_unnoticed_leaves_what_it_led(three: FakeCluster) -> None:
    three.make("t")
    three.make("alone", (1,))
    three.bounce(1)
    assert (three.state().leader, three.state().isr) == (2, (2, 3))
    assert three.state("alone") == PartitionState(0, (1,), (1,), 1)
    assert three.peers[1].cluster.acknowledged[1] == three.peers[1].cluster.brokers[1].incarnation


def test_the_next_controller_knows_who_came_back_unnoticed(three: FakeCluster) -> None:
    three.make()
    result_of(three.controllers[1].stop())
    three.bounce(1)
    assert three.state().leader == 1
    result_of(three.controllers[2].start())
    three.settle()
    assert three.controllers[2].epoch == 2
    assert (three.state().leader, three.state().isr) == (2, (2, 3))


def test_a_controller_that_stops_makes_room_at_once(three: FakeCluster) -> None:
    result_of(three.controllers[1].stop())
    assert result_of(three.store.exists(CONTROLLER)) is None
    result_of(three.controllers[3].start())
    assert three.controllers[3].active
    assert not three.controllers[1].active
    assert three.peers[3].cluster.controller_id == 3


def test_the_writes_of_a_former_controller_fail(three: FakeCluster) -> None:
    three.make()
    former = three.controllers[1]
    result_of(three.store.set(CONTROLLER_EPOCH, b"7"))  # another one has been elected
    three.die(2)
    # Its write failed, so it read the node again and found itself: it is elected, with that epoch.
    assert former.epoch == 7
    three.settle()
    assert three.state().isr == (1, 3)


def test_writes_of_a_former_controller_are_refused(three: FakeCluster) -> None:
    topic = three.make()
    result_of(three.store.set(CONTROLLER_EPOCH, b"7"))  # another one has been elected
    state = replace(topic.partitions[0], leader=2, leader_epoch=1, partition_epoch=1)
    write = three.controllers[1]._write([TopicUpdate(topic, (state,))], {})
    with pytest.raises(BadVersion, match=CONTROLLER_EPOCH):
        result_of(Deferred.fromCoroutine(write))
    result_of(three.peers[2].topics.catch_up())
    assert three.peers[2].topics.get("t") == topic


def test_a_former_controller_that_sees_another_ends_its_term(three: FakeCluster) -> None:
    three.controllers[1]._election._note_controller(2, ours=False)
    assert not three.controllers[1].active
    assert three.peers[1].cluster.controller_id == 2


def test_an_expired_session_ends_the_term_and_a_new_one_tries_again(three: FakeCluster) -> None:
    store = three.store
    store._tell(SessionState.EXPIRED)
    assert not three.controllers[1].active
    result_of(store.delete(CONTROLLER))  # the watch fires, and it is elected again
    assert three.controllers[1].active
    store._tell(SessionState.CONNECTED)
    three.settle()
    assert three.controllers[1].active


def test_a_lost_node_is_made_again(three: FakeCluster) -> None:
    three.lose_controller()
    assert three.controllers[1].active
    assert three.controllers[1].epoch == 2
    assert decode_controller(result_of(three.store.get(CONTROLLER)).data) == 1


def test_a_topic_is_looked_at_when_it_changes(three: FakeCluster) -> None:
    topic = three.make()
    state = replace(topic.partitions[0], leader=NO_LEADER, partition_epoch=5)
    result_of(three.peers[1].topics.write_states([TopicUpdate(topic, (state,))]))
    three.settle()
    assert three.state().leader == 1
    assert three.state().partition_epoch == 6


def test_a_reassignment_ends_when_all_are_in_sync(three: FakeCluster) -> None:
    topic = three.make(replicas=(1, 2))
    state = replace(topic.partitions[0], replicas=(2, 3, 1), adding=(3,), removing=(1,), partition_epoch=1)
    result_of(three.peers[1].topics.write_states([TopicUpdate(topic, (state,))]))
    three.settle()
    assert three.state() == state
    change = IsrChange("t", topic.topic_id, 0, 0, 1, (1, 2, 3), {3: 0})
    (joined,) = result_of(three.peers[1].isr_writer.alter([change]))
    assert isinstance(joined, PartitionState)
    three.settle()
    after = three.state()
    assert (after.replicas, after.isr, after.leader, after.leader_epoch) == ((2, 3), (2, 3), 2, 1)
    assert not after.moving


def test_preferred_leaders_come_back_after_a_while(three: FakeCluster) -> None:
    topic = three.make()
    three.die(1)
    three.come(1)
    assert three.state().leader == 2
    result_of(three.peers[2].isr_writer.alter([IsrChange("t", topic.topic_id, 0, 1, 1, (1, 2, 3))]))
    three.clock.advance(301)
    three.settle()
    assert (three.state().leader, three.state().leader_epoch) == (1, 2)
    three.clock.advance(301)
    assert three.state().leader_epoch == 2


def test_preferred_leaders_may_be_left_alone(cluster: FakeCluster) -> None:
    for node in (1, 2, 3):
        cluster.start(node, auto_leader_rebalance_enable=False)
    topic = cluster.make()
    cluster.die(1)
    cluster.come(1)
    result_of(cluster.peers[2].isr_writer.alter([IsrChange("t", topic.topic_id, 0, 1, 1, (1, 2, 3))]))
    cluster.clock.advance(301)
    cluster.settle()
    assert cluster.state().leader == 2


def test_a_broker_that_stops_hands_over(three: FakeCluster) -> None:
    three.make()
    three.controllers[2]._election._term.handle(TermEvent.START)
    three.controllers[2]._undo = [three.peers[2].topics.subscribe(three.controllers[2]._topic_changed)]
    three.make("mine", (2, 1))
    leaving = three.controllers[2].stop_leading()
    assert not leaving.called
    three.settle()
    three.settle()
    assert leaving.called
    assert (three.state("mine").leader, three.state("mine").isr) == (1, (1,))
    assert three.state().isr == (1, 3)
    assert three.peers[1].cluster.brokers[2].stopping


def test_a_broker_with_nobody_beside_it_stops_at_once(cluster: FakeCluster) -> None:
    cluster.start(1)
    cluster.make(replicas=(1,))
    assert cluster.controllers[1].stop_leading().called
    assert cluster.state().leader == 1


def test_who_waits_to_hand_over_may_give_up(three: FakeCluster) -> None:
    three.make(replicas=(2, 1))
    result_of(three.controllers[1].stop())
    three.controllers[2]._election._term.handle(TermEvent.START)
    leaving: Deferred[None] = three.controllers[2].stop_leading()
    leaving.addErrback(lambda failure: failure.trap(Exception) and None)
    leaving.cancel()
    assert leaving.called


def test_a_write_that_fails_is_tried_again(three: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    three.make()
    topics = three.peers[1].topics
    real = topics.write_states
    failures = [BadVersion("/x"), BadVersion("/x")]

    def fail_first(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(topics, "write_states", fail_first)
    three.die(1)
    assert not failures
    assert three.state().leader == 2


def test_a_store_that_fails_is_tried_again_later(three: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    three.make()
    topics = three.peers[1].topics
    real = topics.write_states
    failures = [ConnectionLost("gone")]

    def fail_first(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(topics, "write_states", fail_first)
    three.die(1)
    assert three.state().leader == 1
    three.clock.advance(1.1)
    assert three.state().leader == 2


def test_a_damaged_controller_node_is_looked_at_again(cluster: FakeCluster) -> None:
    result_of(cluster.store.create(CONTROLLER, b"?"))
    cluster.start(1)
    assert cluster.active is None
    result_of(cluster.store.delete(CONTROLLER))
    cluster.clock.advance(1.1)
    assert cluster.controllers[1].active


@pytest.mark.parametrize("content", [b"?", b"{}", b'{"version":1,"brokers":{"x":"y"}}'])
def test_a_damaged_node_of_incarnations_is_replaced(three: FakeCluster, content: bytes) -> None:
    three.make()
    good = result_of(three.store.get(INCARNATIONS)).data
    before = three.peers[1].cluster.acknowledged
    write = three.peers[2].feed.write([SetData(INCARNATIONS, content)], [INCARNATIONS])
    result_of(Deferred.fromCoroutine(write))
    assert three.peers[1].cluster.acknowledged == before
    three.make("other")
    assert three.state("other").leader == 1, "topics are still made"
    three.bounce(3)
    assert three.state().isr == (1, 2), "who came back unnoticed is still found out"
    now = decode_incarnations(result_of(three.store.get(INCARNATIONS)).data)
    assert now.keys() == {1, 2, 3} and now != decode_incarnations(good)
    three.die(1)
    assert three.state().leader == 2


def test_a_broker_that_starts_beside_a_damaged_node_of_incarnations(three: FakeCluster) -> None:
    result_of(three.store.set(INCARNATIONS, b"?"))
    peer = three.start(4)
    assert peer.cluster.accepted
    assert sorted(decode_incarnations(result_of(three.store.get(INCARNATIONS)).data)) == [1, 2, 3, 4]


def test_a_damaged_controller_epoch_is_replaced_by_a_greater_one(three: FakeCluster) -> None:
    three.make()
    former = three.controllers[1]
    three.lose_controller()
    highest = max(controller.epoch for controller in three.controllers.values())
    assert highest > 1
    result_of(three.store.set(CONTROLLER_EPOCH, b"?"))
    three.lose_controller()
    assert former.active
    assert former.epoch > highest
    assert int(result_of(three.store.get(CONTROLLER_EPOCH)).data) == former.epoch
    three.die(2)
    assert three.state().isr == (1, 3)


def test_the_other_controllers_node_is_watched(cluster: FakeCluster) -> None:
    result_of(cluster.store.ensure(BROKERS))
    result_of(cluster.store.create(CONTROLLER, encode_controller(9, 0)))  # of no session
    peer = cluster.start(1)
    assert not cluster.controllers[1].active
    # The brokers share a session here, so only the broker id differs.
    assert peer.cluster.controller_id == 9
    result_of(cluster.store.delete(CONTROLLER))
    assert cluster.controllers[1].active


class TestInternalTopics:
    """`__consumer_offsets` gets more replicas as brokers join the cluster."""

    def make(self, cluster: FakeCluster, partitions: int = 4) -> None:
        peer = next(iter(cluster.peers.values()))
        result_of(peer.topic_admin.create_topic(OFFSETS_TOPIC, partitions=partitions, replication_factor=1))
        cluster.settle()

    def in_sync(self, cluster: FakeCluster) -> None:
        """Let all added replicas join the in-sync set."""
        topic = cluster.topic(OFFSETS_TOPIC)
        result_of(
            cluster.peers[1].isr_writer.alter(
                [
                    IsrChange(
                        topic.name,
                        topic.topic_id,
                        s.index,
                        s.leader_epoch,
                        s.partition_epoch,
                        s.replicas,
                        {node: broker.epoch for node, broker in cluster.peers[1].cluster.brokers.items()},
                    )
                    for s in topic.partitions
                ]
            )
        )
        cluster.settle()

    def test_they_get_replicas_as_brokers_come(self, cluster: FakeCluster) -> None:
        cluster.start(1)
        self.make(cluster)
        cluster.start(2)
        for state in cluster.topic(OFFSETS_TOPIC).partitions:
            assert (state.adding, state.isr, state.leader) == ((2,), (1,), 1)
        self.in_sync(cluster)
        assert [state.replicas for state in cluster.topic(OFFSETS_TOPIC).partitions] == [(1, 2), (2, 1)] * 2
        cluster.start(3)
        self.in_sync(cluster)
        cluster.start(4)
        for state in cluster.topic(OFFSETS_TOPIC).partitions:
            assert sorted(state.replicas) == [1, 2, 3]
            assert not state.moving
            assert state.leader_epoch == 0
        assert len({state.replicas[0] for state in cluster.topic(OFFSETS_TOPIC).partitions}) == 3

    def test_no_more_than_the_setting_asks_for(self, cluster: FakeCluster) -> None:
        cluster.start(1, **{"offsets.topic.replication.factor": 2})
        self.make(cluster)
        cluster.start(2)
        self.in_sync(cluster)
        cluster.start(3)
        assert all(sorted(state.replicas) == [1, 2] for state in cluster.topic(OFFSETS_TOPIC).partitions)

    def test_a_broker_that_comes_before_the_last_move_is_over_is_not_forgotten(self, cluster: FakeCluster) -> None:
        cluster.start(1)
        self.make(cluster)
        cluster.start(2)
        cluster.start(3)
        assert all(state.adding == (2,) for state in cluster.topic(OFFSETS_TOPIC).partitions)
        self.in_sync(cluster)
        assert all(state.adding == (3,) for state in cluster.topic(OFFSETS_TOPIC).partitions)
        self.in_sync(cluster)
        assert all(sorted(state.isr) == [1, 2, 3] for state in cluster.topic(OFFSETS_TOPIC).partitions)

    def test_replicas_of_dead_brokers_are_not_replaced(self, cluster: FakeCluster) -> None:
        for node in (1, 2, 3):
            cluster.start(node)
        self.make(cluster)
        self.in_sync(cluster)
        cluster.die(3)
        cluster.start(4)
        assert all(sorted(state.replicas) == [1, 2, 3] for state in cluster.topic(OFFSETS_TOPIC).partitions)

    def test_more_than_the_setting_asks_for_stays(self, cluster: FakeCluster) -> None:
        for node in (1, 2, 3):
            cluster.start(node, **{"offsets.topic.replication.factor": 2})
        cluster.make(OFFSETS_TOPIC, (3, 2, 1))
        cluster.settle()
        cluster.start(4)
        assert cluster.state(OFFSETS_TOPIC) == PartitionState.initial(0, (3, 2, 1))

    def test_other_topics_are_left_alone(self, cluster: FakeCluster) -> None:
        cluster.start(1)
        cluster.make("t", (1,))
        cluster.start(2)
        assert cluster.state("t").replicas == (1,)


def test_an_eligible_replica_may_lead_next(three: FakeCluster) -> None:
    three.make("t", (2, 3), min_insync_replicas="2")
    three.make("u", (2, 3))
    three.die(2)
    assert (three.state().leader, three.state().isr, three.state().elr) == (3, (3,), (2,))
    assert (three.state("u").isr, three.state("u").elr) == ((3,), ())
    three.die(3)
    assert (three.state().leader, three.state().last_known_leader) == (NO_LEADER, 3)
    three.come(2)
    assert (three.state().leader, three.state().isr, three.state().elr) == (2, (2,), (3,))
    assert three.state("u").leader == NO_LEADER


def test_the_eligible_set_is_cleared_when_fewer_replicas_are_required(three: FakeCluster) -> None:
    three.make("t", (2, 3), min_insync_replicas="2")
    three.die(2)
    assert three.state().elr == (2,)
    result_of(three.peers[1].topic_admin.set_topic_configs("t", {"min.insync.replicas": "1"}))
    three.settle()
    assert three.state().elr == ()


def test_a_broker_that_is_fenced_leads_nothing(three: FakeCluster) -> None:
    three.make("t", (2, 3))
    three.die(3)
    three.die(2)
    broker = Broker(2, (Endpoint("PLAINTEXT", "host2", 9092),), fenced=True)
    result_of(three.store.create(f"{BROKERS}/2", encode_broker(broker), ephemeral=True))
    three.settle()
    assert three.state().leader == NO_LEADER
    assert 2 not in decode_incarnations(result_of(three.store.get(INCARNATIONS)).data)


def test_the_last_known_leader_leads_on_where_nobody_else_has_the_records(three: FakeCluster) -> None:
    topic = three.make("t", (2, 3))
    lost = replace(
        topic.partitions[0], isr=(), leader=NO_LEADER, last_known_leader=2, last_known_elr=(3,), partition_epoch=1
    )
    result_of(three.peers[1].topics.write_states([TopicUpdate(topic, (lost,))]))
    three.settle()
    assert three.state().leader == NO_LEADER  # it has no complete copy any more
    back = replace(lost, last_known_elr=(3, 2), partition_epoch=2)
    result_of(three.peers[1].topics.write_states([TopicUpdate(three.topic(), (back,))]))
    three.settle()
    assert (three.state().leader, three.state().isr, three.state().last_known_elr) == (2, (2,), ())
    assert sum(one.unclean_elections for one in three.controllers.values()) == 1, "as Kafka counts it"
