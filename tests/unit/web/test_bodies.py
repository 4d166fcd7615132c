"""Requests to the schema registry and the console whose bytes come slowly, and too many connections."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from pylogd.services.console.service import REFUSALS as CONSOLE
from pylogd.services.registry.service import REFUSALS as REGISTRY
from pylogd.web import bodies
from pylogd.web.bodies import BoundedSite, RefusalForm

REFUSALS = RefusalForm(b"text/plain", lambda status, message: f"{status} {message}".encode())


class Echo(Resource):
    isLeaf = True

    def render_POST(self, request: Any) -> bytes:
        body: bytes = request.content.read()
        return body

    def render_GET(self, request: Any) -> int:
        return NOT_DONE_YET


class Connection:
    """A connection to a site on a clock of its own."""

    def __init__(self) -> None:
        self.clock: Any = Clock()
        site: Any = BoundedSite(Echo(), self.clock, REFUSALS)
        site.log = lambda _request: None
        self.transport = StringTransport()
        self.channel: Any = site.buildProtocol(None)
        self.channel.makeConnection(self.transport)

    def send(self, data: bytes, pause: float = 0) -> None:
        """Send bytes one by one with pauses, until the site closes the connection."""
        for byte in data:
            if self.transport.disconnecting:
                return
            self.channel.dataReceived(bytes([byte]))
            self.clock.advance(pause)


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize("data", [HEAD + bytes(100), b"POST / HTTP/1.1\r\n" + b"X: y\r\n" * 30, b"P" * 100])
def test_a_request_that_comes_too_slowly_ends_its_connection(data: bytes) -> None:
    connection = Connection()
    connection.send(data, 1)
    assert connection.transport.disconnecting and 60 <= connection.clock.seconds() <= 62


def test_each_request_has_its_own_time() -> None:
    connection = Connection()
    for _ in range(3):
        connection.clock.advance(50)
        connection.send(HEAD + b"x" * 100, 0.3)
        assert connection.transport.value().endswith(b"x" * 100)
        connection.transport.clear()
    assert not connection.transport.disconnecting
    connection.clock.advance(61)
    assert connection.transport.disconnecting


def connect(site: Any) -> Any:
    """Return the channel of a new connection to a site; None if it was closed at once."""
    channel = site.buildProtocol(None)
    if channel is not None:
        channel.makeConnection(StringTransport())
    return channel


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_MOST_REFUSED", 2)
    clock: Any = Clock()
    site: Any = BoundedSite(Echo(), clock, REFUSALS)
    site.log = lambda _request: None
    site.places.most = 3
    good = [connect(site) for _ in range(3)]
    for one in good:
        one.dataReceived(b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n")
    refused = [connect(site) for _ in range(2)]
    for one in refused:
        assert one.transport.value().startswith(b"HTTP/1.1 503 ") and one.transport.disconnecting
        assert one.transport.value().endswith(b"try again later\n")
    assert connect(site).transport.disconnected, "too many are being refused already"
    clock.advance(5)
    assert all(one.transport.disconnected for one in refused), "who does not close is not waited for"
    for one in refused:
        one.connectionLost(Failure(ConnectionDone()))
    assert (len(site.places), site.refused) == (3, 0)
    good[0].connectionLost(Failure(ConnectionDone()))
    after = connect(site)
    after.dataReceived(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
    assert after.transport.value().endswith(b"hi")
    assert not any(one.transport.disconnecting for one in good[1:]), "others are not disturbed"


def test_bodies_of_one_address_leave_room_for_those_of_others() -> None:
    memory = bodies.BodyMemory(64)
    taken = sum(memory.take("flood", 1) for _ in range(100))
    assert taken == 32 and memory.take("other", 16) and not memory.take("other", 1)
    memory.give_back("flood", 32)
    memory.give_back("other", 16)
    assert memory.total == 0 and memory.take("other", 32)


def test_a_body_that_is_too_large_is_refused_in_the_form_of_the_service() -> None:
    connection = Connection()
    length = b"%d" % (bodies.MOST_BODY_BYTES + 1)
    connection.channel.dataReceived(HEAD.replace(b"100", length))
    head, _, body = connection.transport.value().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 Payload Too Large\r\nconnection: close\r\ncontent-type: text/plain\r\n")
    assert body == b"413 the body is larger than 1048576 bytes"


@pytest.mark.parametrize(("form", "status", "code"), [
    (form, status, code) for form in (REGISTRY, CONSOLE) for status, code in ((413, 413), (503, 50301))
])  # fmt: skip
def test_registry_and_console_refuse_with_the_documents_of_a_registry(
    form: RefusalForm, status: int, code: int
) -> None:
    assert form.media_type == b"application/vnd.schemaregistry.v1+json"
    assert form.document(status, "no") == b'{"error_code": %d, "message": "no"}' % code
