"""Starts the requests of one connection in their order, and sends the replies in the same order.

Strategy: a request starts once all earlier ones on the connection are answered, so it sees their changes. Only requests
of an API that is registered as overlapping (`api.registry`) start while earlier ones of the same API still wait, unless
they are so large that they are decoded and answered over several turns of the reactor (`LargeRequest`). A request that
may not start yet is held, and the connection is not read from meanwhile. Each waiting request takes a slot in a queue,
and a reply is sent when all earlier ones are sent. While the queue is empty, an immediate reply takes no slot and no
Deferred, and the replies of one reactor turn are sent in one write.

Request batches: while no request waits, the next one is first offered, as bytes, to the handler's `handle_batch`, which
may answer it together with later ones. This begins when a request of the handler's `batched` APIs and versions has been
answered at once, and ends with the first that `handle_batch` leaves. The bytes of one read (`direct_reads`) are offered
to `handle_repeated`, which answers a request that repeats the last one, or lets it wait (`LaterReply`). After a request
batch that is expected to repeat, they are offered to `handle_repeated_batch`.

Back-pressure: no further request is taken while `max_in_flight` slots are taken, a request is held or the sender is
congested. Then the transport stops reading. So a peer that does not read its replies, or sends faster than it is
served, uses a bounded amount of memory. Reading resumes when slots clear or the sender has drained; until then
`hangups` watches for the end of the connection. A client over its quota is muted likewise, for a given time.
Fairness: a connection starts a few of its requests at once. `turns` decides how many more start, and when.

State: the machine in `pipeline_machine` says whether a connection is read from, and how it ends; only `_follow` changes
it. `_running` (a loop is on the stack, and makes the next step), `_congested` (the last result of the sender),
`_batching` and `repeats` (about the last request) are independent of it.

Rules: a broken frame, an unknown API or a handler's CloseConnection closes the connection, with a reason in the log,
after the replies to all earlier requests were sent. Any other failure of a handler closes it too, with a traceback.
Must not know: any single API.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import CloseConnection
from pylogd.base.limits.log_lines import LimitedLog
from pylogd.broker.net.direct_reads import DirectReads, can_read_directly
from pylogd.broker.net.hangups import HangupWatch
from pylogd.broker.net.pipeline_machine import PIPELINE, PipelineEvent, PipelineState
from pylogd.broker.net.request_handler import Connection, Event, RequestHandler
from pylogd.broker.net.sender import Sender
from pylogd.broker.net.turns import Turns
from pylogd.link.receiving import RECEIVE_BYTES, Receiver, receiver_of
from pylogd.wire.exceptions import LocalProtocolError, RemoteProtocolError
from pylogd.wire.framing import TlsReceived
from pylogd.wire.schema import Part
from pylogd.wire.session import LargeRequest, RequestReceived, ServerSession, UnsupportedRequest

log = Logger()
_limited = LimitedLog(log)

#: Replies are gathered up to this many bytes before they are handed to the sender; a larger reply goes at once.
_GATHERED_REPLIES, _LARGE_REPLY_BYTES = 64, 4096
_MAX_BATCH = 256  # the most requests that are answered together
_READING, _PAUSED, _WAITING, _MUTED, _FINISHING, _DRAINING, _CLOSED = PipelineState
_OPEN = (_READING, _PAUSED, _WAITING, _MUTED)
_ENDING = (_FINISHING, _DRAINING)
_ENDED = (_DRAINING, _CLOSED)
#: The answer to a client that begins with TLS. It is text, so the client's TLS library sees at once that there is no
#: TLS.
_NO_TLS = b"This listener does not use TLS.\n"


def _closing_reason(failure: Failure, event: Event | None) -> str:
    """Return why the connection is closed after a handler's failure. Log the traceback of an unexpected one."""
    if failure.check(CloseConnection):
        return failure.getErrorMessage()
    if event is None:
        log.failure("Unexpected error while answering a request batch", failure)
    else:
        log.failure(
            "Unexpected error while handling API {api} version {version}",
            failure, api=event.api_key, version=event.version,
        )  # fmt: skip
    return "internal error, see the traceback above"


class Awaited(Protocol):
    """A Deferred, or another reply that is made later."""

    def cancel(self) -> object:
        """Cancel the reply."""


class Slot:
    """A request whose reply is not made yet, or waits for one before it.

    close_reason: if the connection has to be closed instead of a reply, the reason.
    """

    __slots__ = ("close_reason", "deferred", "event", "ready", "response")

    def __init__(self, event: Event | None, deferred: Awaited | None = None) -> None:
        """`event` is None for a frame that is no request, and for requests in a batch. `deferred` is the reply."""
        self.event: Any = event
        self.deferred = deferred
        self.ready = False
        self.response: Any = None
        self.close_reason: str | None = None


def _may_overlap(event: Event, first: Slot, overlapping: Container[int]) -> bool:
    """Return whether a request may start while others of one API wait.

    first: the first of the waiting requests.
    overlapping: the keys of APIs that allow this.
    """
    before = first.event
    if event.api_key != before.api_key or event.api_key not in overlapping:
        return False
    return type(event) is not LargeRequest and type(before) is not LargeRequest


class Pipeline:
    """Takes the requests of one connection, and sends the replies to them.

    repeats: whether the next read is offered to `handle_repeated`, or after a batch to `handle_repeated_batch`.
    """

    __slots__ = (
        "_batching", "_congested", "_connection", "_direct", "_gathered", "_handler", "_hangups", "_held",
        "_max_in_flight", "_muted", "_receiver", "_repeats_batch", "_running", "_sender", "_session", "_singles",
        "_slots", "_state", "_turns", "repeats",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        session: ServerSession,
        handler: RequestHandler,
        sender: Sender,
        max_in_flight: int,
        hangups: HangupWatch,
        turns: Turns,
    ) -> None:
        self._connection = connection
        self._session = session
        self._handler = handler
        self._sender = sender
        self._receiver: Receiver | None = None  # set while a large frame is received
        connection.transport.bufferSize = RECEIVE_BYTES
        self._max_in_flight = max_in_flight
        self._hangups = hangups
        self._turns = turns
        self._held: Event | None = None  # it starts when all slots are cleared
        self._slots: list[Slot] = []  # it has at most max_in_flight; an empty deque takes 760 bytes, an empty list 56
        self._gathered: list[Part] | None = None
        self._state = PIPELINE.initial
        self._muted: IDelayedCall | None = None  # the call that ends the mute
        self._running = False  # `_run` is on the stack
        self._congested = False  # the last result of the sender
        self._batching = self.repeats = self._repeats_batch = False  # where the next request is offered
        self._direct: DirectReads | None = None  # set once a request may be repeated
        self._singles = 0  # how many of the next requests are offered to it one by one

    @property
    def idle(self) -> bool:
        """Whether all requests are answered and all replies sent."""
        return not self._slots and self._sender.idle

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer and start the requests in them."""
        if not self.repeats or not self.answer_repeated(data):
            self._receive(data, 0)

    def _receive(self, data: bytes, started: int) -> None:
        """Take bytes. `started` is how many requests, or request batches, of the same read have been answered."""
        self._singles = 0
        self._session.receive_data(data)
        self._run(started)
        if self._state is not _READING:
            self._settle()
            return
        if self._receiver is not None or self._session.receive_buffer() is not None:
            if self._more():
                self._run()
            self._settle()

    def _more(self) -> bool:
        """Read more of a partial frame from the socket. Return whether bytes arrived."""
        receiver = self._receiver = self._receiver or receiver_of(self._connection, self._session)
        came = receiver.more()
        if not receiver.small:
            receiver.close()
            self._receiver = None
        return came

    def _settle(self) -> None:
        """Give back the memory of a large request that has been answered."""
        if self._receiver is not None and self._held is None:
            self._receiver.settle()

    def drained(self) -> None:
        """Continue, since the sender has nothing left to send."""
        state = self._state
        if state is _PAUSED and not self._running:
            self._run()
        elif state is not _READING and state is not _PAUSED:
            self._close_if_done()

    def send(self, data: bytes) -> None:
        """Send bytes that are not a reply, after the replies made so far."""
        self._gather([data])
        self._flush()

    def finish(self) -> None:
        """Take no further request, and close the connection when all outstanding replies are sent."""
        state = self._state
        if state in _OPEN:
            self._follow(PipelineEvent.FINISH)
            if state is _READING:
                self._stop_reading()
            self._close_if_done()

    def mute(self, seconds: float, clock: IReactorTime) -> None:
        """Take no further request for this many seconds, but send replies. A longer time replaces a shorter one."""
        state = self._state
        if state not in _OPEN:
            return
        if self._muted is not None:
            if self._muted.getTime() < clock.seconds() + seconds:
                self._muted.reset(seconds)
            return
        self._follow(PipelineEvent.MUTE)
        self._muted = clock.callLater(seconds, self._unmute)
        if state is _READING:
            self._stop_reading()

    def _unmute(self) -> None:
        self._muted = None
        self._follow(PipelineEvent.UNMUTE)
        self._run()

    def _close_if_done(self) -> None:
        if self._state in _ENDING and not self._slots and self._gathered is None and self._sender.idle:
            self._follow(PipelineEvent.SENT)
            self._sender.close()

    def lost(self) -> None:
        """Cancel waiting requests, since the connection is gone."""
        if self._state is not _READING:
            self._hangups.unwatch(self._connection.transport)
        self._follow(PipelineEvent.LOST)
        if self._receiver is not None:
            self._receiver.close()
        if self._direct is not None:
            self._direct.end()
        self._cancel_all()

    def _follow(self, event: PipelineEvent) -> None:
        self._state = PIPELINE.next(self._state, event)
        if self._muted is not None and self._state is not _MUTED:
            self._muted.cancel()
            self._muted = None

    def _cancel_all(self) -> None:
        slots, self._slots = self._slots, []
        self._held = None
        for slot in slots:
            if slot.deferred is not None and not slot.ready:
                slot.deferred.cancel()

    def close(self, reason: str) -> None:
        """Log why, cancel waiting requests, and close the connection when the replies already made are sent."""
        state = self._state
        if state in _ENDED:
            return
        peer = self._connection.transport.getPeer()
        _limited.warn(
            "Closing the connection from {peer}: {reason}",
            event="connections closed by the broker", peer=peer, reason=reason,
        )  # fmt: skip
        self._follow(PipelineEvent.CLOSE)
        self._cancel_all()
        self._flush()
        self._close_if_done()
        if state is _READING and self._state is _DRAINING:
            self._stop_reading()

    def _run(self, started: int = 0) -> None:
        """Start received requests, until none is left, one has to be held, or too many are unanswered."""
        state = self._state
        if state is not _READING and state is not _PAUSED:
            return
        self._running, self._congested = True, self._sender.congested
        left, until = self._turns.at_once - started, 0.0
        try:
            session, slots, most = self._session, self._slots, self._max_in_flight
            next_frame = session.next_frame
            while self._state is state:
                if not left:
                    left, until = self._ask_for_more(until)
                    continue  # repeat, unless the state has changed
                left -= 1
                if self._congested or (slots and len(slots) >= most):
                    self._flush()
                    if self._congested or len(slots) >= most:
                        self._pause()
                        break
                event = self._held
                if event is not None:
                    self._held = None
                else:
                    frame = next_frame()
                    if frame is None:
                        if self.repeats or state is _PAUSED:
                            self._read_on(state)
                        break
                    if self._batching and not slots and self._answer_batch(frame):
                        frame = None  # its memory can be used again
                        continue
                    event = session.parse(frame)
                    frame = None
                if slots and not _may_overlap(event, slots[0], self._handler.overlapping):
                    self._held = event
                    self._pause()
                    break
                self._offer_next(event.api_key << 16 | event.version, self._start(event))
        except RemoteProtocolError as error:
            self._end_with(error)
        finally:
            self._running = False
        self._flush()

    def _read_on(self, state: PipelineState) -> None:
        """Wait for bytes, since all received requests have been started. `state` is READING or PAUSED."""
        if self.repeats and self._session.pending:  # the rest of a request comes next
            self.repeats = False
        if state is _PAUSED:
            self._resume()

    def _offer_next(self, kind: int, answered: bool) -> None:
        """Offer the next request to the function that may answer it after one with this `API key << 16 | version`."""
        if answered:
            self._batching = kind in self._handler.batched
        self._expect_repeats(kind in self._handler.repeated, False)

    def _expect_repeats(self, repeats: bool, batch: bool) -> None:
        self.repeats, self._repeats_batch = repeats, batch
        if repeats and self._direct is None and can_read_directly(self._connection.transport):
            self._direct = DirectReads(self._connection, self, self._turns.seconds)

    def _ask_for_more(self, until: float) -> tuple[int, float]:
        """Call `Turns.more`, unless there is no request left. The connection waits if it may not start any."""
        if self._held is None and not self._session.complete:
            return 1, until
        granted = self._turns.more(self, until)
        if not granted[0]:
            if self._state is _READING:
                self._stop_reading()
            self._follow(PipelineEvent.WAIT)
        return granted

    def turn(self) -> None:
        """Continue with the received requests, since it is this connection's turn."""
        if self._state is _WAITING:
            self._follow(PipelineEvent.TURN)
            self._run()

    def _end_with(self, error: RemoteProtocolError) -> None:
        """Take no further request: the received bytes are not a request."""
        if isinstance(error, TlsReceived) and not self._slots:
            self._gather([_NO_TLS])
        self._end(str(error), None)

    def _end(self, reason: str, event: Event | None) -> None:
        """Take no further request, and close the connection once all requests before `event` are answered."""
        if self._state in _ENDED:
            return  # another request has ended it meanwhile
        self._slots.append(slot := Slot(event))
        self._end_at(slot, reason)

    def _end_at(self, slot: Slot, reason: str) -> None:
        slot.close_reason = reason
        state = self._state
        self._follow(PipelineEvent.FINISH)
        self._ready(None, slot)
        if state is _READING and self._state is not _CLOSED:
            self._stop_reading()

    def _pause(self) -> None:
        if self._state is _READING:
            self._stop_reading()
        self._follow(PipelineEvent.PAUSE)

    def _resume(self) -> None:
        self._follow(PipelineEvent.RESUME)
        transport = self._connection.transport
        if self._hangups.unwatch(transport):  # if not, the bound on the memory of requests still keeps it paused
            transport.resumeProducing()
        self._settle()

    def _stop_reading(self) -> None:
        self._connection.transport.pauseProducing()
        self._hangups.watch(self._connection.transport)

    def _start(self, event: Event) -> bool:
        """Hand a request to its handler. Return whether it was answered at once."""
        self.repeats = False
        try:
            result = self._handler.handle(self._connection, event)
        except CloseConnection as error:
            self._end(str(error), event)
            return False
        except Exception:
            self._end(_closing_reason(Failure(), event), event)
            return False
        if result is None:
            return False
        if isinstance(event, UnsupportedRequest):  # the reply to such a request has version 0 (KIP-511)
            event = RequestReceived(event.api_key, 0, event.correlation_id, event.client_id, None)
        event.request = None  # its record bytes can be freed
        if isinstance(result, Deferred):
            self._slots.append(slot := Slot(event))
            self._wait_for(result, slot)
        elif self._slots:
            self._slots.append(slot := Slot(event))
            slot.response, slot.ready = result, True
        else:
            self._reply(event, result)
            return True
        return False

    def _wait_for(self, result: Deferred[Any], slot: Slot) -> None:
        slot.deferred = result
        result.addCallback(self._ready, slot)
        result.addErrback(self._failed, slot)

    def _answer_batch(self, frame: memoryview) -> bool:
        """Offer the request in `frame`, and the later ones, to be answered together. Return whether any was."""
        singles = self._singles
        try:
            replies, end, left, repeats = self._handler.handle_batch(
                self._connection, frame, self._session, 1 if singles else _MAX_BATCH
            )
        except Exception:
            self._end(_closing_reason(Failure(), None), None)
            return True
        self._singles = singles - 1 if singles else left
        if not replies:
            self._batching = False
            return False
        if end:
            self._session.skip_to(end)
        self._gather([replies])
        self._expect_repeats(repeats, repeats)
        return True

    def answer_repeated(self, data: bytes) -> bool:
        """Offer the bytes of one read, which may repeat the last request. Return whether they were answered."""
        sender = self._sender  # its attributes are read, since a call of `idle` for each request would cost more
        if self._state is not _READING or self._slots or self._receiver or sender.unsent or sender.queued is not None:
            return False
        try:
            if self._repeats_batch:
                return self._answer_repeated_batch(data)
            reply = self._handler.handle_repeated(self._connection, data, sender)
        except Exception:
            self._end(_closing_reason(Failure(), None), None)
            return True
        if reply is None:
            self.repeats = False
        elif reply is not True:
            if isinstance(reply, tuple):
                self._sender.send_records(*reply)
            else:
                self._slots.append(slot := Slot(reply.event, reply))
                reply.then(self._take, slot)
        return reply is not None

    def _take(self, reply: Any, slot: Slot) -> None:
        """Take the reply to a repeated request that has waited."""
        if type(reply) is tuple and self._state is _READING and self._slots == [slot] and not self._running:
            self._slots.clear()
            self._sender.send_records(*reply)
        elif isinstance(reply, Deferred):
            self._wait_for(reply, slot)
        else:
            self._ready(reply, slot)

    def _answer_repeated_batch(self, data: bytes) -> bool:
        """Do the work of `answer_repeated` after a request batch. The rest of `data` is received in the usual way."""
        answered = self._handler.handle_repeated_batch(self._connection, data, self._session)
        if answered is None:
            self.repeats = False
            return False
        replies, end = answered
        self._sender.write(replies)
        if self._state is not _READING:
            self._close_if_done()
        if end < len(data):
            self._receive(data[end:], 1)
        return True

    def _ready(self, response: Any, slot: Slot) -> None:
        slot.response = response
        slot.ready = True
        if self._state in _ENDED or self._slots[0] is not slot:
            return
        while self._slots and self._slots[0].ready:
            done = self._slots.pop(0)
            if done.close_reason is not None:
                self.close(done.close_reason)
            elif done.response is not None:
                self._reply(done.event, done.response)
        if self._running:
            return
        if self._state is _PAUSED:
            self._run()
        else:
            self._flush()

    def _reply(self, event: RequestReceived, response: Any) -> None:
        try:
            parts = list(response[:3]) if type(response) is tuple else self._session.encode_reply(event, response)
        except LocalProtocolError:
            self.close(_closing_reason(Failure(), event))
        else:
            self._gather(parts)

    def _gather(self, parts: list[Part]) -> None:
        gathered = self._gathered
        if gathered is None:
            self._gathered = gathered = parts
        else:
            gathered += parts
        if len(gathered) > _GATHERED_REPLIES or len(parts[0]) > _LARGE_REPLY_BYTES:
            self._flush()

    def _flush(self) -> None:
        parts = self._gathered
        if parts is not None:
            self._gathered = None
            self._sender.send(parts)
            self._congested = self._sender.congested
            if self._state is not _READING:
                self._close_if_done()

    def _failed(self, failure: Failure, slot: Slot) -> None:
        if self._state in _ENDED:
            return  # it was cancelled, or the connection is gone
        reason = _closing_reason(failure, slot.event)
        if slot in self._slots:
            self._end_at(slot, reason)
        else:
            self.close(reason)
