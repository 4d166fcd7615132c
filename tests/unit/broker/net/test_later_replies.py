"""A request that repeats the last one may wait: its reply keeps its place, and goes out in each of its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail

from pylogd.wire.session import RequestReceived
from tests.unit.broker.net.test_pipeline import Records, Rig


class _Later:
    """The reply to a request that waits. take: takes it."""

    event = RequestReceived(0, 0, 0, None, None)
    take: Callable[[Any], object]

    def __init__(self, rig: LaterRig) -> None:
        self._rig = rig

    def then(self, take: Callable[[Any, Any], object], what: Any) -> None:
        self.take = lambda reply: take(reply, what)

    def cancel(self) -> None:
        self._rig.cancelled.append("w")


class LaterRig(Rig):
    """A rig in which a read that is `w` waits."""

    def __init__(self) -> None:
        self.later: list[_Later] = []
        super().__init__()

    def handle_repeated(self, connection: Any, data: bytes, output: Any) -> Any:
        if data != b"w":
            return super().handle_repeated(connection, data, output)
        self.offered.append(data)
        self.later.append(_Later(self))
        return self.later[-1]


@pytest.fixture
def rig() -> Iterator[LaterRig]:
    rig = LaterRig()
    yield rig
    rig.close()


def test_a_repeated_request_may_wait(rig: LaterRig) -> None:
    """Its reply keeps its place, and the next read is offered again behind it."""
    rig.pipeline.receive(b"a")
    rig.pipeline.receive(b"w")
    rig.pipeline.receive(b"b")  # not offered
    assert rig.transport.pump() == b"a"
    rig.later[0].take((b"<", Records(), b">", -1))
    assert rig.transport.pump() == b"<abc>b"
    rig.pipeline.receive(b"w")
    rig.later[1].take((b"<", Records(), b">", -1))
    rig.pipeline.receive(b"r")
    assert rig.transport.pump() == b"<abc><abc>"
    assert rig.offered == [b"w", b"w", b"r"]


def test_a_repeated_request_may_end_in_other_ways(rig: LaterRig) -> None:
    """With a response, or with a Deferred of one."""
    rig.pipeline.receive(b"a")
    rig.pipeline.receive(b"w")
    rig.later[0].take(b"response")
    rig.pipeline.receive(b"w")
    done: Deferred[bytes] = Deferred()
    rig.later[1].take(done)
    rig.pipeline.receive(b"b")
    assert rig.transport.pump() == b"aresponse"
    done.callback(b"later")
    assert rig.transport.pump() == b"aresponselaterb"[9:]
    rig.pipeline.receive(b"w")
    rig.later[2].take(fail(ZeroDivisionError()))
    assert not rig.reading


def test_a_reply_to_a_repeated_request_waits_for_the_peer(rig: LaterRig) -> None:
    """While the connection is paused it goes the usual way, and the connection is read from again."""
    rig.pipeline.receive(b"a")
    rig.pipeline.receive(b"w")
    rig.pipeline.receive(b"p")  # of another API: held
    assert not rig.reading
    rig.later[0].take((b"<", Records(), b">", -1))
    assert rig.transport.pump() == b"a<abc>p"
    assert rig.reading


def test_a_repeated_request_that_waits_is_given_up_with_its_connection(rig: LaterRig) -> None:
    rig.pipeline.receive(b"a")
    rig.pipeline.receive(b"w")
    rig.pipeline.lost()
    assert rig.cancelled == ["w"]
