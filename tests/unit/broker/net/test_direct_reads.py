"""A pipeline whose requests may repeat reads the socket itself, and nothing is lost between its reads and Twisted's."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet import unix
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from pylogd.broker.net.direct_reads import _LITTLE, can_read_directly
from pylogd.broker.net.work_meter import WorkMeter
from tests.unit.broker.net.test_pipeline import Rig


@pytest.fixture
def rig() -> Any:
    made = Rig()
    made.transport.protocol = made  # type: ignore[assignment]
    yield made
    made.close()


def test_a_repeated_request_is_read_directly(rig: Rig) -> None:
    rig.transport.arrive(b"r")
    assert "doRead" in vars(rig.transport)
    rig.reactor.advance(5)
    rig.transport.arrive(b"r")
    assert (rig.started, rig.offered, rig.last_active) == ("r", [b"r"], 5.0)
    assert rig.transport.pump() == b"r<abc>"


def test_what_does_not_repeat_goes_the_usual_way(rig: Rig) -> None:
    rig.transport.arrive(b"r")
    rig.transport.arrive(b"ab" * _LITTLE)  # more than one read takes
    assert rig.transport.pump() == b"r" + b"ab" * _LITTLE
    assert rig.offered[0] == b"ab" * (_LITTLE // 2)
    assert len(rig.offered) < 4


def test_another_api_is_read_by_the_transport(rig: Rig) -> None:
    rig.transport.arrive(b"r")
    rig.transport.arrive(b"p")  # of an API that is not answered so
    rig.transport.arrive(b"r")
    assert rig.offered == [b"p"]
    rig.transport.arrive(b"r")
    assert rig.offered == [b"p", b"r"]


def test_nothing_is_offered_while_a_request_waits(rig: Rig) -> None:
    rig.transport.arrive(b"aA")  # the second waits
    rig.transport.arrive(b"r")
    assert rig.offered == []
    rig.waiting["A"].callback(b"A")
    rig.transport.arrive(b"r")
    assert rig.offered == [b"r"]
    assert rig.transport.pump() == b"aAr<abc>"


def test_how_a_connection_ends(rig: Rig) -> None:
    rig.transport.arrive(b"r")
    read = rig.transport.doRead
    assert read() is None  # nothing has come
    rig.transport.pump()
    rig.transport.peer.close()
    assert read() is CONNECTION_DONE
    rig.transport.socket.close()
    assert read() is CONNECTION_LOST
    rig.pipeline.lost()
    assert "doRead" not in vars(rig.transport)


def test_only_plain_sockets_are_read_directly(rig: Rig) -> None:
    assert can_read_directly(rig.transport)
    rig.transport.TLS = True
    assert not can_read_directly(rig.transport)
    assert not can_read_directly(object())

    class _Unix(unix.Server):
        def __init__(self) -> None:
            """Open nothing."""

    assert not can_read_directly(_Unix())


def test_direct_reads_are_measured_and_go_on_afterwards(rig: Rig) -> None:
    recorded: list[float] = []
    meter = WorkMeter(rig.reactor.seconds, float, lambda _, seconds: recorded.append(seconds))
    rig.transport.arrive(b"r")
    read = vars(rig.transport)["doRead"]
    meter.add(rig)
    rig.transport.arrive(b"r")
    assert (rig.offered, len(recorded)) == ([b"r"], 1)
    meter.remove(rig)
    assert vars(rig.transport)["doRead"] == read
    rig.transport.arrive(b"r")
    assert (rig.offered, len(recorded)) == ([b"r", b"r"], 1)
    rig.pipeline.lost()
    assert "doRead" not in vars(rig.transport)


def test_what_is_measured_is_read_by_the_transport(rig: Rig) -> None:
    recorded: list[float] = []
    meter = WorkMeter(rig.reactor.seconds, float, lambda _, seconds: recorded.append(seconds))
    meter.add(rig)
    rig.transport.arrive(b"r")
    rig.transport.arrive(b"r")
    assert len(recorded) == 2
    meter.remove(rig)
    rig.pipeline.lost()
    assert "doRead" not in vars(rig.transport)
