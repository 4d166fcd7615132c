"""Sessions of a store that another process serves: their ends, and what a client sees of them.

What the calls do is in `tests/contract/test_metadata_store.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.test.iosim import FakeTransport, IOPump, connect

from pylogd.store.errors import ConnectionLost, StoreClosed, StoreFailure
from pylogd.store.frames import FramedConnection, decode, encode
from pylogd.store.interfaces import EventType, SessionState, WatchEvent
from pylogd.store.remote import RemoteStore
from pylogd.store.server import StoreServer
from tests.fakes.metadata import InlineStore, result_of
from tests.fakes.wired import Wired

TIMEOUT_SECONDS = 6.0


class Machine:
    """A served store and its clients, whose time is a clock's."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.served = InlineStore(folder / "metadata.sqlite")
        result_of(self.served.start())
        self.wires: list[IOPump] = []
        self.server = StoreServer(self.served, self.clock)
        self.endpoint = Wired(self.server, self.wires)

    def client(self) -> RemoteStore:
        return RemoteStore(self.endpoint, self.clock, session_timeout_ms=6000, connection_timeout_ms=1000)

    def started(self) -> RemoteStore:
        client = self.client()
        self.wait(client.start())
        return client

    def wait(self, deferred: Deferred[Any]) -> Any:
        return result_of(deferred, self.flush)

    def flush(self) -> None:
        for wire in self.wires:
            wire.flush()

    def pass_time(self, seconds: float, flush: bool = True) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            if flush:
                self.flush()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    result_of(made.served.close())


def test_sessions_end_one_by_one(machine: Machine) -> None:
    one, other = machine.started(), machine.started()
    assert one.session_id != other.session_id
    machine.wait(one.create("/one", ephemeral=True))
    machine.wait(other.create("/other", ephemeral=True))
    assert machine.wait(other.exists("/one")).owner == one.session_id
    events: list[WatchEvent] = []
    machine.wait(other.exists("/one", events.append))
    machine.wait(one.close())
    machine.flush()
    assert events == [WatchEvent(EventType.DELETED, "/one")]
    assert machine.wait(other.exists("/other")) is not None


def test_a_client_that_is_lost_ends_its_session_at_once(machine: Machine) -> None:
    lost, other = machine.started(), machine.started()
    machine.wait(lost.create("/lost", ephemeral=True))
    machine.wires[0].client.transport.abortConnection()
    machine.flush()
    assert machine.wait(other.exists("/lost")) is None


def test_a_client_that_is_silent_ends_its_session_at_its_timeout(machine: Machine) -> None:
    silent = machine.started()
    machine.wait(silent.create("/silent", ephemeral=True))
    machine.pass_time(3 * TIMEOUT_SECONDS)
    assert machine.wait(silent.exists("/silent")) is not None, "pings did not keep it"
    machine.pass_time(TIMEOUT_SECONDS + 0.2, flush=False)
    machine.flush()
    assert machine.wait(machine.started().exists("/silent")) is None


def test_a_lost_connection_is_another_session(machine: Machine) -> None:
    client = machine.started()
    states: list[SessionState] = []
    client.on_session(states.append)
    session = client.session_id
    unanswered = client.get("/")
    machine.endpoint.up = False
    machine.server.disconnect()
    machine.flush()
    assert states == [SessionState.SUSPENDED]
    calls: list[Deferred[Any]] = [unanswered, client.exists("/")]
    for call in calls:
        with pytest.raises(ConnectionLost):
            result_of(call)
    machine.endpoint.up = True
    machine.pass_time(0.5)
    assert states == [SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED]
    assert client.session_id != session
    assert machine.wait(client.exists("/")) is not None
    machine.wait(client.close())
    assert states[-1] is SessionState.CLOSED


def test_a_server_that_does_not_answer_is_given_up(machine: Machine) -> None:
    client = machine.started()
    states: list[SessionState] = []
    client.on_session(states.append)
    unanswered = client.exists("/")
    machine.pass_time(TIMEOUT_SECONDS + 0.2, flush=False)
    machine.flush()
    with pytest.raises(ConnectionLost):
        result_of(unanswered)
    assert states[0] is SessionState.SUSPENDED


def test_watches_are_dropped_with_their_session(machine: Machine) -> None:
    client, other = machine.started(), machine.started()
    events: list[WatchEvent] = []
    machine.wait(client.exists("/a", events.append))
    machine.wait(client.close())
    machine.wait(other.create("/a"))
    assert events == []


def test_a_start_has_an_end(machine: Machine) -> None:
    machine.endpoint.up = False
    started = machine.client().start()
    machine.pass_time(1.5)
    with pytest.raises(StoreFailure, match="does not answer"):
        result_of(started)


def test_a_client_that_is_closed_while_it_looks_for_the_server(machine: Machine) -> None:
    client = machine.started()
    machine.endpoint.up = False
    machine.server.disconnect()
    machine.flush()
    machine.wait(client.close())
    machine.endpoint.up = True
    machine.pass_time(1.0)
    with pytest.raises(StoreClosed):
        result_of(client.exists("/"))
    assert machine.server.sessions == set()


def test_a_session_that_could_not_be_ended_is_closed_all_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = machine.started()
    full = StoreFailure("database or disk is full")
    monkeypatch.setattr(machine.served, "end_session", lambda _session: fail(full))
    machine.wait(client.close())
    machine.flush()
    assert machine.server.sessions == set()


class Stranger(FramedConnection):
    """Sends what it likes."""

    peer = "the server"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.answers: list[dict[str, Any]] = []
        self.lost = False

    def handle(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        self.answers.append(header)

    def connectionLost(self, reason: object = None) -> None:
        self.lost = True


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0\x02[]",
        b"\0\0\0\x02{}",
        b"\xff\xff\xff\xff{}",
        encode({"id": 1, "call": "get", "path": "/", "watch": False}),
        encode({"id": "x", "call": "ping"}),
        encode({"id": 1, "call": "hello", "timeout_ms": None}),
        encode({"id": 1, "call": "ping"}) + b"more",
    ],
)
def test_a_client_that_sends_nonsense_is_disconnected(machine: Machine, frame: bytes) -> None:
    stranger, session = Stranger(machine.clock), machine.server.buildProtocol(None)
    wire = connect(session, FakeTransport(session, True), stranger, FakeTransport(stranger, False))
    stranger.sendString(frame)
    wire.flush()
    assert stranger.lost
    assert stranger.answers == []


@pytest.mark.parametrize(
    "fields", [{"call": "what", "path": "/", "watch": False}, {"call": "multi", "operations": [["create", "/a", 0, 0]]}]
)
def test_a_session_that_sends_nonsense_ends(machine: Machine, fields: dict[str, Any]) -> None:
    stranger, session = Stranger(machine.clock), machine.server.buildProtocol(None)
    wire = connect(session, FakeTransport(session, True), stranger, FakeTransport(stranger, False))
    stranger.send({"id": 1, "call": "hello", "timeout_ms": 6000})
    wire.flush()
    assert stranger.answers[0]["session"] > 0
    stranger.send({"id": 2, **fields})
    wire.flush()
    assert stranger.lost
    assert machine.server.sessions == set()


def test_frames_carry_data_as_it_is() -> None:
    header, blobs = decode(encode({"id": 3}, [b"", bytes(range(256))]))
    assert header["id"] == 3
    assert blobs == [b"", bytes(range(256))]


def test_a_broker_that_does_no_work_loses_its_session_until_it_works_again(machine: Machine) -> None:
    one, other = machine.started(), machine.started()
    states: list[SessionState] = []
    one.on_session(states.append)
    machine.wait(one.create("/alive", ephemeral=True))
    works = False
    one.vital = lambda: works
    machine.pass_time(TIMEOUT_SECONDS)
    assert machine.wait(other.exists("/alive")) is None
    machine.pass_time(2 * TIMEOUT_SECONDS)
    assert states == [SessionState.SUSPENDED]
    works = True
    machine.pass_time(1.0)
    assert states == [SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED]


def test_a_session_outlasts_a_moment_without_work(machine: Machine) -> None:
    one = machine.started()
    states: list[SessionState] = []
    one.on_session(states.append)
    for works in (False, True) * 4:
        one.vital = lambda works=works: works  # type: ignore[misc]
        machine.pass_time(TIMEOUT_SECONDS / 3)
    assert states == []
