"""Responses are sent in the order of requests, a slow peer is not read from, and failures close the connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from pylogd.base.errors import CloseConnection
from pylogd.broker.net.hangups import HangupWatch
from pylogd.broker.net.pipeline import Pipeline
from pylogd.broker.net.sender import Sender
from pylogd.broker.net.turns import Turns
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.session import (
    NOT_ANSWERED,
    BatchReply,
    LargeRequest,
    RepeatedBatch,
    RequestReceived,
    UnsupportedRequest,
)
from tests.fakes.transport import ManualReactor, PairTransport


class ByteSession:
    """A session in which each byte is a request of that name, `!` is a broken frame, and a response is one or more
    bytes.

    p, q, P and Q are requests of API 1, all others of API 0, whose requests may overlap. `~` is of an unknown API, and
    `%` a large request.
    """

    def __init__(self) -> None:
        self.bytes: deque[int] = deque()
        self.taken = 0
        self.pending = False

    def receive_data(self, data: bytes) -> None:
        self.bytes += data

    def receive_buffer(self) -> memoryview | None:
        return None

    @property
    def complete(self) -> bool:
        return bool(self.bytes)

    def next_frame(self) -> bytes | None:
        if not self.bytes:
            return None
        byte = self.bytes.popleft()
        if byte == ord("!"):
            raise RemoteProtocolError("broken frame")
        self.taken += 1
        return bytes([byte])

    def parse(self, frame: bytes) -> RequestReceived | UnsupportedRequest:
        if frame == b"~":
            return UnsupportedRequest(1, 99, frame[0], None)
        name = frame.decode()
        kind = LargeRequest if name == "%" else RequestReceived
        return kind(int(name in "pqPQ"), 0, frame[0], None, name)

    def skip_to(self, at: int) -> None:
        for _ in range(at):
            self.bytes.popleft()

    def similar(self) -> int:
        """Return how many `=` come next."""
        count = 0
        while count < len(self.bytes) and self.bytes[count] == ord("="):
            count += 1
        return count

    def encode_reply(self, event: RequestReceived, response: bytes) -> list[bytes]:
        return [response]


class Records:
    """A slice of a file that is copied."""

    position, length, zeros, in_blocks = 0, 3, 0, False

    def copy(self) -> bytes:
        return b"abc"


class Rig:
    """A pipeline and its handler, which answers lower-case letters at once and upper-case ones when the test says so.

    `=` may be answered together with those after it; `answer_batch` decides how many.
    """

    versions: Mapping[int, tuple[int, int]] = {}
    overlapping = batched = frozenset({0})
    repeated = frozenset({0})
    request_memory = None

    def __init__(self, max_in_flight: int = 100, max_unsent: int = 1 << 20, turns: Turns | None = None) -> None:
        self.waiting: dict[str, Deferred[bytes]] = {}
        self.cancelled: list[str] = []
        self.started = ""
        self.batches: list[int] = []
        self.offered: list[bytes] = []
        self.answer_batch: Callable[[int], BatchReply] = lambda count: BatchReply(b"r" * count, count - 1, 0)
        self.answer_again: Callable[[int], RepeatedBatch] = lambda count: (b"R" * count, count)
        self.last_active = 0.0
        self.reactor = ManualReactor()
        self.transport = PairTransport(Protocol(), self.reactor)
        self.session = ByteSession()
        self.sender = Sender(self.transport, lambda *args: Deferred(), self, max_chunk=1 << 19, max_unsent=max_unsent)
        self.pipeline: Pipeline = Pipeline(
            self,
            self.session,  # type: ignore[arg-type]
            self,
            self.sender,
            max_in_flight,
            HangupWatch(self.reactor),
            turns or Turns(self.reactor),
        )

    def dataReceived(self, data: bytes) -> None:
        self.pipeline.receive(data)

    def drained(self) -> None:
        if hasattr(self, "pipeline"):
            self.pipeline.drained()

    def handle_batch(self, connection: Any, frame: Any, session: Any, most: int) -> BatchReply:
        assert connection is self
        if frame != b"=":
            return NOT_ANSWERED
        count = min(1 + session.similar(), most)
        self.batches.append(count)
        reply: BatchReply = self.answer_batch(count)
        return reply

    def handle_repeated(self, connection: Any, data: bytes, _output: Any) -> Any:
        assert connection is self
        self.offered.append(data)
        if data == b"f":
            raise ZeroDivisionError("a bug")
        return (b"<", Records(), b">", -1) if data == b"r" else None

    def handle_repeated_batch(self, connection: Any, data: bytes, _session: Any) -> Any:
        assert connection is self
        self.offered.append(data)
        count = len(data) - len(data.lstrip(b"="))
        return self.answer_again(count) if count else None

    def handle(self, connection: Any, event: Any) -> Any:
        assert connection is self
        if isinstance(event, UnsupportedRequest):
            raise CloseConnection("not served")
        name = event.request
        self.started += name
        if name == "0":
            return None
        if name == "#":
            raise CloseConnection("asked to")
        if name == "?":
            raise ZeroDivisionError("a bug")
        if name.isupper() or name == "%":
            self.waiting[name] = Deferred(lambda _: self.cancelled.append(name))
            return self.waiting[name]
        return name.encode()

    @property
    def reading(self) -> bool:
        return self.transport in self.reactor.readers

    def close(self) -> None:
        self.transport.socket.close()
        self.transport.peer.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_replies_at_once_leave_in_one_write(rig: Rig) -> None:
    rig.pipeline.receive(b"abc")
    rig.reactor.turn()
    assert rig.transport.received() == b"abc"


def test_a_read_is_offered_after_a_reply_at_once(rig: Rig) -> None:
    rig.pipeline.receive(b"r")  # nothing is known of the connection yet
    rig.pipeline.receive(b"r")
    rig.pipeline.receive(b"r")
    assert rig.transport.pump() == b"r<abc><abc>"
    assert (rig.started, rig.offered) == ("r", [b"r", b"r"])
    rig.pipeline.receive(b"rb")  # two requests
    assert rig.transport.pump() == b"rb"
    rig.pipeline.receive(b"r")
    assert rig.offered[2:] == [b"rb", b"r"]


def test_nothing_is_offered_while_something_waits(rig: Rig) -> None:
    rig.pipeline.receive(b"a")
    rig.pipeline.receive(b"A")  # waits for its reply
    rig.pipeline.receive(b"r")
    assert rig.offered == [b"A"]
    rig.waiting["A"].callback(b"A")
    rig.pipeline.receive(b"b")
    rig.pipeline.mute(1.0, rig.reactor)
    rig.pipeline.receive(b"r")
    rig.reactor.advance(1.0)
    assert rig.transport.pump() == b"aArbr"
    assert rig.offered == [b"A", b"b"]


def test_nothing_is_offered_in_the_middle_of_a_request(rig: Rig) -> None:
    rig.session.pending = True
    rig.pipeline.receive(b"a")
    rig.session.pending = False
    rig.pipeline.receive(b"r")
    assert rig.offered == []
    rig.pipeline.receive(b"r")
    assert rig.offered == [b"r"]


def test_a_failure_to_answer_a_read_closes_the_connection(rig: Rig, logged: list[dict[str, Any]]) -> None:
    rig.pipeline.receive(b"a")
    rig.pipeline.receive(b"f")
    assert rig.transport.pump() == b"a"
    assert not rig.reading
    assert any("ZeroDivisionError" in str(event.get("log_failure")) for event in logged)


def test_a_batch_behind_a_reply_at_once_is_answered_together(rig: Rig) -> None:
    rig.pipeline.receive(b"a====b=")
    assert rig.transport.pump() == b"arrrrbr"
    assert rig.batches == [4, 1]
    rig.pipeline.receive(b"==")
    assert rig.transport.pump() == b"rr"
    assert rig.started == "ab"


def test_the_first_request_of_a_connection_is_not_offered(rig: Rig) -> None:
    rig.pipeline.receive(b"====")
    assert rig.transport.pump() == b"=rrr"
    assert rig.batches == [3]


def test_a_batch_of_another_api_is_not_offered(rig: Rig) -> None:
    rig.pipeline.receive(b"p==")
    assert rig.transport.pump() == b"p=r"


def test_a_batch_is_no_larger_than_the_most(rig: Rig) -> None:
    rig.pipeline.receive(b"a" + b"=" * 1000)
    assert rig.transport.pump() == b"a" + b"r" * 1000
    assert rig.batches == [256, 256, 256, 232]


def test_the_rest_of_a_batch_is_offered_one_by_one(rig: Rig) -> None:
    answers = iter([BatchReply(b"rr", 1, 3)])
    rig.answer_batch = lambda count: next(answers, BatchReply(b"s", 0, 0))
    rig.pipeline.receive(b"a=====")
    assert rig.transport.pump() == b"arrsss"
    assert rig.batches == [5, 1, 1, 1]
    rig.pipeline.receive(b"==")
    assert rig.batches[4:] == [2, 1]


def test_requests_that_are_not_answered_together_take_the_general_path(rig: Rig) -> None:
    rig.answer_batch = lambda count: BatchReply(b"", 0, count - 1)
    rig.pipeline.receive(b"a====b")
    assert rig.transport.pump() == b"a====b"
    assert rig.batches == [4, 1, 1, 1]  # the other requests are not looked at again for each of them


def test_a_batch_behind_a_request_that_waits_is_not_offered(rig: Rig) -> None:
    rig.pipeline.receive(b"aX====")
    assert rig.transport.pump() == b"a"
    rig.waiting["X"].callback(b"x")
    assert rig.transport.pump() == b"x===="
    assert not rig.batches


def test_a_handler_that_fails_on_a_batch_closes_and_logs(rig: Rig, logged: list[dict[str, Any]]) -> None:
    rig.answer_batch = lambda count: BatchReply(b"", count // 0, 0)
    rig.pipeline.receive(b"a====b")
    assert rig.transport.pump() == b"a"
    assert rig.transport.disconnecting or rig.transport.disconnected
    assert any("log_failure" in event for event in logged)


def test_a_reply_waits_for_those_before_it(rig: Rig) -> None:
    rig.pipeline.receive(b"aXbYc")
    assert rig.transport.pump() == b"a"
    rig.waiting["Y"].callback(b"y")
    assert rig.transport.pump() == b""
    rig.waiting["X"].callback(b"x")
    assert rig.transport.pump() == b"xbyc"
    assert len(rig.pipeline._slots) == 0


def test_a_request_without_reply_takes_no_slot(rig: Rig) -> None:
    rig.pipeline.receive(b"0a0")
    assert rig.transport.pump() == b"a"
    assert len(rig.pipeline._slots) == 0


def test_a_deferred_without_reply_frees_its_slot(rig: Rig) -> None:
    rig.pipeline.receive(b"Xa")
    rig.waiting["X"].callback(cast(Any, None))
    assert rig.transport.pump() == b"a"


_REQUESTS = st.text("apXYZPQ", max_size=12).filter(lambda t: all(t.count(c) < 2 for c in "XYZPQ"))


@given(_REQUESTS, st.permutations("XYZPQ"), st.sampled_from([1, 2, 100]))
def test_order_holds_whichever_ends_first(requests: str, endings: list[str], most: int) -> None:
    """Responses come in order, each request starts once, and only requests that overlap start while others wait."""
    rig = Rig(max_in_flight=most)
    pending: list[str] = []
    answer = rig.handle

    def handle(connection: Any, event: Any) -> Any:
        assert all(name in "XYZ" for name in [*pending, event.request] if pending) or event.request == "a"
        assert not any(name in "PQ" for name in pending)
        if event.request in "XYZPQ":
            pending.append(event.request)
        return answer(connection, event)

    rig.handle = handle  # type: ignore[method-assign]
    try:
        rig.pipeline.receive(requests.encode())
        out = rig.transport.pump()
        left = list(endings)
        while any(name in rig.waiting for name in left):
            name = next(name for name in left if name in rig.waiting)
            left.remove(name)
            pending.remove(name)
            rig.waiting[name].callback(name.encode())
            out += rig.transport.pump()
        assert out == requests.encode()
        assert rig.started == requests
    finally:
        rig.close()


def test_a_request_starts_when_all_before_it_are_answered(rig: Rig) -> None:
    rig.pipeline.receive(b"PpaX")
    assert rig.started == "P"
    assert not rig.reading
    rig.waiting["P"].callback(b"P")
    assert rig.started == "PpaX"
    assert rig.transport.pump() == b"Ppa"
    assert rig.reading


def test_requests_that_overlap_wait_for_those_of_other_apis(rig: Rig) -> None:
    rig.pipeline.receive(b"XYpZ")
    assert rig.started == "XY"
    rig.waiting["Y"].callback(b"Y")
    assert rig.started == "XY"
    rig.waiting["X"].callback(b"X")
    assert rig.started == "XYpZ"
    assert rig.transport.pump() == b"XYp"


def test_a_large_request_overlaps_with_none(rig: Rig) -> None:
    """It is decoded and answered over several turns, so one behind it would take effect before it."""
    rig.pipeline.receive(b"X%YZ")
    assert rig.started == "X"
    rig.waiting["X"].callback(b"X")
    assert rig.started == "X%"
    rig.waiting["%"].callback(b"%")
    assert rig.started == "X%YZ"
    assert rig.transport.pump() == b"X%"


def test_a_held_request_is_dropped_with_its_connection(rig: Rig) -> None:
    rig.pipeline.receive(b"PQ")
    rig.pipeline.lost()
    assert rig.started == "P"
    assert rig.cancelled == ["P"]


def test_a_held_request_does_not_start_once_the_broker_stops(rig: Rig) -> None:
    rig.pipeline.receive(b"PQ")
    rig.pipeline.finish()
    rig.waiting["P"].callback(b"P")
    assert rig.started == "P"
    assert rig.transport.pump() == b"P"
    assert rig.transport.disconnecting or rig.transport.disconnected


def test_too_many_in_flight_stops_the_reading_until_slots_clear() -> None:
    rig = Rig(max_in_flight=2)
    rig.pipeline.receive(b"XYZ")
    assert rig.session.taken == 2
    assert not rig.reading
    rig.waiting["X"].callback(b"x")
    assert rig.session.taken == 3
    assert rig.reading or len(rig.pipeline._slots) == 2
    rig.waiting["Y"].callback(b"y")
    rig.waiting["Z"].callback(b"z")
    assert rig.reading
    assert rig.transport.pump() == b"xyz"
    rig.close()


def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    rig = Rig(max_unsent=100)
    rig.pipeline.receive(b"a" * 100_000)
    assert rig.session.taken < 20_000
    assert not rig.reading
    assert rig.transport.pump() == b"a" * 100_000
    assert rig.reading
    rig.close()


def test_a_lost_connection_cancels_what_waits(rig: Rig) -> None:
    rig.pipeline.receive(b"XaY")
    rig.pipeline.lost()
    assert rig.cancelled == ["X", "Y"]
    assert len(rig.pipeline._slots) == 0


_BREAKS = [("!", "broken frame"), ("#", "asked to"), ("?", "internal error"), ("~", "not served")]


@pytest.mark.parametrize(("name", "reason"), _BREAKS)
def test_a_bad_frame_closes_after_the_replies_to_earlier_requests(
    rig: Rig, logged: list[dict[str, Any]], name: str, reason: str
) -> None:
    rig.pipeline.receive(b"a" + name.encode() + b"b")
    assert rig.transport.pump() == b"a"
    assert rig.transport.disconnecting or rig.transport.disconnected
    assert any(reason in str(event.get("reason")) for event in logged)
    assert "b" not in rig.started


@pytest.mark.parametrize(("name", "reason"), _BREAKS)
def test_a_bad_frame_after_waiting_requests_closes_after_their_replies(
    rig: Rig, logged: list[dict[str, Any]], name: str, reason: str
) -> None:
    rig.pipeline.receive(b"XY" + name.encode() + b"b")
    assert not rig.transport.disconnecting
    rig.waiting["Y"].callback(b"y")
    assert rig.transport.pump() == b""
    rig.waiting["X"].callback(b"x")
    assert rig.transport.pump() == b"xy"
    assert rig.transport.disconnecting or rig.transport.disconnected
    assert any(reason in str(event.get("reason")) for event in logged)
    assert "b" not in rig.started


def test_a_handler_that_fails_later_closes_and_logs(rig: Rig, logged: list[dict[str, Any]]) -> None:
    rig.pipeline.receive(b"X")
    rig.waiting["X"].errback(ZeroDivisionError("a bug"))
    rig.transport.pump()
    assert rig.transport.disconnecting or rig.transport.disconnected
    assert any("log_failure" in event for event in logged)


def test_a_handler_that_fails_later_closes_after_the_replies_before_it(rig: Rig) -> None:
    rig.pipeline.receive(b"XYZ")
    rig.waiting["Y"].errback(ZeroDivisionError("a bug"))
    rig.pipeline.receive(b"a")
    assert not rig.transport.disconnecting
    rig.waiting["X"].callback(b"x")
    assert rig.transport.pump() == b"x"
    assert rig.transport.disconnecting or rig.transport.disconnected
    assert rig.cancelled == ["Z"]
    assert rig.started == "XYZ"


def test_finish_answers_what_is_owed_and_closes(rig: Rig) -> None:
    rig.pipeline.receive(b"aX")
    rig.pipeline.finish()
    rig.pipeline.receive(b"b")
    assert rig.transport.pump() == b"a"
    rig.waiting["X"].callback(b"x")
    assert rig.transport.pump() == b"x"
    assert rig.transport.disconnecting or rig.transport.disconnected


def test_finish_closes_an_idle_connection_at_once(rig: Rig) -> None:
    rig.pipeline.finish()
    rig.transport.pump()
    assert rig.transport.disconnecting or rig.transport.disconnected
