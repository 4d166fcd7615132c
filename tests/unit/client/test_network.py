"""All connections of a client, without sockets: what is opened, sent and ended, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.call import Call, Endpoint
from pylogd.client.core.errors import (
    BrokerUnavailable,
    Closed,
    InvalidReply,
    RequestTimedOut,
    TlsFailed,
    UnsupportedByBroker,
    is_retriable,
)
from pylogd.client.core.link import IDLE_CHECK_SECONDS, Link
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Broker, Topic
from pylogd.client.core.network import HEDGE_SECONDS
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.fakes.links import Peer, World


def test_replies_come_in_order_while_several_are_in_flight() -> None:
    world = World()
    for _ in range(3):
        world.send()
    assert len(world.peer().requests) == 3 and world.opened == ["a"]
    for name in "xyz":
        world.peer().answer(0.0, name)
    assert world.outcomes == ["x", "y", "z"]


def test_an_old_broker_is_asked_for_its_versions_again() -> None:
    world = World()
    world.listening["a"] = {ApiKey.API_VERSIONS: (0, 2), ApiKey.METADATA: (0, 4)}
    world.send()
    assert world.peer().requests[0].version == 4


@pytest.mark.parametrize("offered", [None, (90, 99)])
def test_no_version_in_common(offered: tuple[int, int] | None) -> None:
    world = World()
    served = {int(ApiKey.API_VERSIONS): (0, 3)}
    world.listening["a"] = served if offered is None else {**served, int(ApiKey.METADATA): offered}
    world.send()
    [error] = world.outcomes
    assert isinstance(error, UnsupportedByBroker) and not is_retriable(error)


def test_a_request_that_can_not_be_made_fails_alone() -> None:
    world = World()

    def refuse(_: int) -> Any:
        raise KafkaError(ErrorCode.INVALID_REQUEST)

    call = Call(MetadataRequest, refuse, lambda *_: None, lambda error, _: world.outcomes.append(error), 30.0)
    world.network.send(call, 0.0)
    world.perform()
    assert isinstance(world.outcomes[0], KafkaError) and not call.sent
    world.send()
    world.peer().answer(0.0)
    assert world.outcomes[1] == "c"


def test_a_refused_connection_is_tried_again_after_a_pause() -> None:
    world = World(reconnect_backoff=1.0, reconnect_backoff_max=1.0)
    world.listening.clear()
    world.send()
    world.send()
    assert world.opened == ["a"], "the second fails without another attempt"
    assert all(isinstance(outcome, BrokerUnavailable) for outcome in world.outcomes)
    world.listening["a"] = None
    world.now = 2.0
    world.send()
    world.peer().answer(2.0)
    assert world.outcomes[2] == "c"


def break_by_closing(world: World) -> None:
    world.peer().link.lost(None, world.now)


def break_by_garbage(world: World) -> None:
    world.peer().link.received(b"\0\0\0\x0c" + b"\xff" * 12, world.now)


def break_by_silence(world: World) -> None:
    world.run(31.0)


@pytest.mark.parametrize(
    ("cut", "error"),
    [(break_by_closing, BrokerUnavailable), (break_by_garbage, InvalidReply), (break_by_silence, RequestTimedOut)],
)
def test_the_end_of_a_connection_fails_all_requests_in_flight(
    cut: Callable[[World], None], error: type[PylogdError]
) -> None:
    world = World()
    calls = [world.send(), world.send()]
    cut(world)
    world.perform()
    assert [type(outcome) for outcome in world.outcomes] == [error, error]
    assert all(call.sent for call in calls), "it may have had an effect"
    world.now += 1
    world.send()
    world.peer().answer(world.now)
    assert world.outcomes[2] == "c", "the next request opens another connection"


def test_a_silent_host_delays_those_for_any_broker_by_a_moment_only() -> None:
    world = World(("silent", 1), ("a", 1))
    world.silent.add("silent")
    world.send()
    assert not world.outcomes
    world.run(HEDGE_SECONDS)
    assert world.opened == ["silent", "a"]
    world.peer().answer(world.now)
    assert world.outcomes == ["c"]
    world.run(11.0)
    assert len(world.network.links) == 1, "the other attempt has ended"


def test_an_unreachable_broker_fails_its_own_requests_in_time() -> None:
    world = World(connect_timeout=3.0)
    world.silent.add("gone")
    world.metadata.brokers = {1: Broker(1, "gone", 1), 2: Broker(2, "a", 1)}
    world.send(1)
    world.send(2)
    world.peer("a").answer(0.0)
    assert world.outcomes == ["c"]
    world.run(3.5)
    assert isinstance(world.outcomes[1], BrokerUnavailable)
    world.send(7)
    assert "broker 7" in str(world.outcomes[2])


def test_connecting_may_take_longer_after_each_failure() -> None:
    world = World(connect_timeout=3.0, connect_timeout_max=10.0, reconnect_backoff=0.0, reconnect_backoff_max=0.0)
    world.silent.add("a")
    taken = []
    for _ in range(4):
        begun = world.now
        world.send(timeout=100.0)
        while not world.outcomes:
            world.now = world.network.next_time() or 0.0
            world.network.tick(world.now)
            world.perform()
        taken.append(world.now - begun)
        assert isinstance(world.outcomes.pop(), BrokerUnavailable)
    assert taken == [3.0, 6.0, 10.0, 10.0]
    world.silent.clear()
    world.send()
    assert world.network.unreachable.connect_timeout(("a", 1)) == 3.0


def test_purposes_have_connections_of_their_own_and_exclusive_calls_a_fresh_one() -> None:
    world = World()
    there = Endpoint(5, "a", 1)
    world.send(there, purpose="fetch")
    world.send(there)
    assert len(world.network.links) == 2
    world.send(there, purpose="fetch", exclusive=True)
    assert isinstance(world.outcomes[0], BrokerUnavailable), "nobody waits for that one any more"
    assert len(world.peer().requests) == 1


def test_a_request_without_a_reply_is_done_when_its_bytes_have_left() -> None:
    world = World()
    world.send()
    link = world.peer().link
    world.send(expect_reply=False)
    assert world.outcomes == [None]
    link.pause_writing()
    world.send(expect_reply=False)
    assert len(world.outcomes) == 1, "the transport holds too much"
    link.resume_writing(0.0)
    assert world.outcomes == [None, None]


def test_a_request_without_a_reply_is_not_lost_on_an_idle_connection_that_the_broker_closed() -> None:
    world = World()
    world.send(expect_reply=False)
    first = world.peer()
    assert (world.outcomes, len(first.requests)) == ([None], 1)
    first.gone = True  # and the client does not know it yet
    world.now = IDLE_CHECK_SECONDS
    world.send(expect_reply=False)
    world.send(expect_reply=False)
    assert world.outcomes == [None]
    first.link.lost(None, world.now)
    world.perform()
    second = world.peer()
    assert second is not first
    assert (world.outcomes, len(second.requests), world.opened) == ([None] * 3, 2, ["a", "a"])


def test_an_idle_connection_that_lives_is_used_after_it_has_answered() -> None:
    world = World()
    world.send(expect_reply=False)
    world.now = 100.0
    world.send(expect_reply=False)
    assert (len(world.peer().requests), world.opened, world.outcomes) == (2, ["a"], [None] * 2)
    world.now = 100.0 + IDLE_CHECK_SECONDS / 2
    world.peer().gone = True
    world.send(expect_reply=False)
    assert len(world.outcomes) == 3  # it was used a moment ago, so its state is not checked


def test_idle_connections_are_closed_at_the_scheduled_time() -> None:
    world = World(connections_max_idle=100.0)
    world.send()
    world.peer().answer(0.0)
    assert world.network.next_time() == 100.0
    world.run(101.0)
    assert not world.network.links and world.peer().closed


def test_after_close_everything_fails() -> None:
    world = World()
    world.send()
    world.network.close(Closed("over"), 0.0)
    world.perform()
    world.send()
    assert all(isinstance(outcome, Closed) for outcome in world.outcomes) and len(world.outcomes) == 2


# Rebootstrapping (KIP-899, KIP-1102)


def moved(world: World) -> None:
    """Replace all brokers that the client knows; the bootstrap address leads to the new ones."""
    world.metadata.brokers = {1: Broker(1, "old1", 1), 2: Broker(2, "old2", 1)}


def test_when_no_known_broker_answers_the_bootstrap_servers_do() -> None:
    world = World()
    moved(world)
    world.send()
    assert world.opened[2:] == ["a"] and set(world.opened[:2]) == {"old1", "old2"}
    world.peer().answer(0.0)
    assert world.outcomes == ["c"]


def test_without_recovery_only_known_brokers_are_asked() -> None:
    world = World()
    world.metadata.rebootstraps = False
    moved(world)
    world.send()
    assert set(world.opened) == {"old1", "old2"}
    assert isinstance(world.outcomes[0], BrokerUnavailable)


def test_a_broker_may_require_that_the_client_begins_again() -> None:
    world = World()
    world.listening["old1"] = None
    world.metadata.brokers = {1: Broker(1, "old1", 1)}
    world.metadata.topics = {"t": Topic("t", bytes(16), False, ())}
    world.send()
    with pytest.raises(KafkaError) as told:
        world.metadata.learn_each(MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED))
    assert is_retriable(told.value)
    world.network.tick(0.0)
    world.perform()
    assert world.peer("old1").closed and not world.metadata.brokers and not world.metadata.topics
    world.send()
    assert world.opened == ["old1", "a"]


def test_without_recovery_such_an_answer_is_an_error() -> None:
    metadata = Metadata([("a", 1)], rebootstraps=False)
    with pytest.raises(KafkaError) as told:
        metadata.learn_each(MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED))
    assert not is_retriable(told.value) and not metadata.rebootstrap_required


def test_brokers_that_give_no_metadata_for_too_long_are_forgotten() -> None:
    world = World(rebootstrap_trigger=20.0, request_timeout=30.0)
    world.listening["old1"] = None
    world.metadata.brokers = {1: Broker(1, "old1", 1)}
    world.send(timeout=60.0)  # it is connected, and never responds
    world.run(19.0)
    assert world.opened == ["old1"]
    world.run(21.0)
    assert world.peer("old1").closed and not world.metadata.brokers
    world.send()
    assert world.opened == ["old1", "a"]
    world.peer().answer(world.now)
    world.metadata.brokers = {1: Broker(1, "a", 1)}
    world.run(60.0)
    assert world.metadata.brokers, "an answer has begun the time anew"


def test_without_recovery_they_are_kept() -> None:
    world = World(rebootstrap_trigger=None)
    world.metadata.rebootstraps = False
    world.listening["old1"] = None
    world.metadata.brokers = {1: Broker(1, "old1", 1)}
    world.send(timeout=60.0)
    world.run(50.0)
    assert world.metadata.brokers and not world.peer("old1").closed


def open_unanswered(world: World) -> Link:
    """Send a request over a connection that opens, and on which no broker answers. Return its link."""
    world.silent.add("a")
    world.send()
    [link] = world.network._links.values()
    world.peers[link] = peer = Peer(link)
    peer.gone = True
    link.opened(0.0)
    world.perform()
    return link


def test_a_broker_that_closes_before_it_answers_may_use_tls() -> None:
    world = World()
    link = open_unanswered(world)
    link.lost(None, 0.0)
    assert "if the listener uses TLS, set the protocol SSL or SASL_SSL" in str(world.outcomes[0])


def test_a_broker_that_answers_with_tls() -> None:
    world = World()
    link = open_unanswered(world)
    link.received(bytes.fromhex("15030300020246"), 0.0)
    [error] = world.outcomes
    assert isinstance(error, TlsFailed) and not is_retriable(error)
