"""A muted connection is not read from, sends pending responses, notices its peer's close, and is not idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from twisted.internet.task import Clock

from pylogd.broker.net.server import BrokerFactory, ServerLimits
from tests.fakes.transport import ManualReactor, PairTransport
from tests.unit.broker.net.test_pipeline import Rig

SECONDS = 5.0


class MutingRig(Rig):
    """Like `Rig`, but the handler mutes the connection when it answers `m` and `M`."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Clock()

    def handle(self, connection: Any, event: Any) -> Any:
        result = super().handle(connection, event)
        if event.request == "m":
            self.mute(SECONDS)
        return result.addCallback(self.muted) if event.request == "M" else result

    def mute(self, seconds: float) -> None:
        self.pipeline.mute(seconds, self.time)

    def muted(self, response: bytes) -> bytes:
        self.mute(SECONDS)
        return response


@pytest.fixture
def rig() -> Iterator[MutingRig]:
    made = MutingRig()
    yield made
    made.close()
    assert not made.time.getDelayedCalls()


def unmuted(rig: MutingRig) -> None:
    """Wait until the muting ends, and process what was received meanwhile."""
    rig.time.advance(SECONDS)


def test_the_answer_leaves_at_once_and_later_requests_wait(rig: MutingRig) -> None:
    rig.pipeline.receive(b"amb")
    assert rig.transport.pump() == b"am"
    assert rig.started == "am"
    assert not rig.reading
    rig.time.advance(SECONDS - 0.001)
    assert rig.started == "am"
    rig.time.advance(0.001)
    assert rig.transport.pump() == b"b"
    assert rig.reading


def test_what_waits_is_answered_meanwhile(rig: MutingRig) -> None:
    rig.pipeline.receive(b"AB")
    rig.mute(SECONDS)
    rig.waiting["A"].callback(b"A")
    assert rig.transport.pump() == b"A"
    assert not rig.reading
    unmuted(rig)
    assert rig.reading
    rig.waiting["B"].callback(b"B")
    assert rig.transport.pump() == b"B"


def test_an_answer_that_was_waited_for_mutes_too(rig: MutingRig) -> None:
    rig.pipeline.receive(b"Mp")
    rig.waiting["M"].callback(b"M")
    assert rig.transport.pump() == b"M"
    assert rig.started == "M"  # `p` is a request of another API, and was held
    unmuted(rig)
    assert rig.transport.pump() == b"p"


def test_the_longest_time_counts(rig: MutingRig) -> None:
    rig.mute(SECONDS)
    rig.time.advance(1)
    rig.mute(1)
    rig.mute(SECONDS)
    rig.time.advance(SECONDS - 0.5)
    assert not rig.reading
    rig.time.advance(0.5)
    assert rig.reading


def test_muting_a_paused_connection_keeps_it_paused(rig: MutingRig) -> None:
    rig.pipeline.receive(b"Ap")  # `p` is held until A is answered
    assert not rig.reading
    rig.mute(SECONDS)
    unmuted(rig)
    assert not rig.reading
    rig.waiting["A"].callback(b"A")
    assert rig.transport.pump() == b"Ap"
    assert rig.reading


def test_bytes_that_come_nevertheless_wait(rig: MutingRig) -> None:
    rig.mute(SECONDS)
    rig.pipeline.receive(b"a")
    assert rig.transport.pump() == b""
    unmuted(rig)
    assert rig.transport.pump() == b"a"


def test_a_batch_may_be_answered_and_muted(rig: MutingRig) -> None:
    def answer(count: int) -> Any:
        rig.mute(SECONDS)
        return original(count)

    original, rig.answer_batch = rig.answer_batch, answer
    rig.pipeline.receive(b"a===b")
    assert rig.transport.pump() == b"arrr"
    unmuted(rig)
    assert rig.transport.pump() == b"b"


def test_a_peer_that_leaves_meanwhile_is_noticed(rig: MutingRig) -> None:
    aborted: list[bool] = []
    rig.transport.abortConnection = lambda: aborted.append(True)  # type: ignore[method-assign]
    rig.mute(SECONDS)
    rig.transport.peer.close()
    rig.pipeline._hangups.doRead()
    assert aborted
    rig.pipeline.lost()
    assert not rig.time.getDelayedCalls()


def test_a_broker_that_stops_does_not_wait_for_it(rig: MutingRig) -> None:
    rig.pipeline.receive(b"mb")
    rig.pipeline.finish()
    assert rig.transport.pump() == b"m"
    assert rig.started == "m"
    assert not rig.time.getDelayedCalls()
    rig.mute(SECONDS)  # arrives too late
    assert not rig.time.getDelayedCalls()


def test_a_broken_frame_behind_a_waiting_request_ends_it(rig: MutingRig) -> None:
    rig.pipeline.receive(b"A!")
    rig.mute(SECONDS)
    assert not rig.time.getDelayedCalls()
    rig.waiting["A"].callback(b"A")
    assert rig.transport.pump() == b"A"


class Idle:
    """A connection of a real factory."""

    versions: ClassVar[dict[int, tuple[int, int]]] = {}
    overlapping = batched = repeated = frozenset[int]()

    def __init__(self) -> None:
        self.clock = Clock()
        limits = ServerLimits(1024, 1, 1024, 4096, 60_000, -1, -1)
        handler: Any = self
        warm: Any = None
        self.factory = BrokerFactory(self.clock, handler, warm, limits)
        self.factory.hangups._reactor = ManualReactor()
        self.protocol: Any = self.factory.buildProtocol(None)
        self.transport = PairTransport(self.protocol, ManualReactor())
        self.protocol.makeConnection(self.transport)
        self.factory.doStart()

    def close(self) -> None:
        self.factory.doStop()
        self.protocol.connectionLost()
        self.transport.socket.close()
        self.transport.peer.close()


def test_a_muted_connection_is_not_idle() -> None:
    case = Idle()
    case.protocol.mute(300.0)
    case.clock.pump([10.0] * 35)
    assert case.protocol.pipeline._state.name == "READING"  # active until second 300
    case.clock.pump([10.0] * 3)
    assert case.protocol.pipeline._state.name == "CLOSED"
    case.close()
    case.protocol.mute(1.0)  # a handler that answers on a closed connection
