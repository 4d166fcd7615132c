"""A broker's request path without a network or a clock, from the bytes of a request to those of its reply.

The cost of a request is counted, not timed: bytecode instructions, and calls of Python and C functions, in this thread.
The counts of a Python version do not depend on the machine or its load. tests/unit/test_hotpath.py compares them with
bench/micro.json; bench/micro.py times the same requests.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.net.sender import Sender
from pylogd.broker.net.server import BrokerFactory, ServerLimits
from pylogd.wire import schema
from pylogd.wire.fast import compiled
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import decode_batch, encode_batch
from pylogd.wire.session import ClientSession
from tests.fakes.parts import RealParts, batch
from tests.fakes.transport import ManualReactor, PairTransport

TOPIC = "t"
PRODUCE_VERSION, FETCH_VERSION = 10, 16  # as librdkafka 2.16 requests it
OLD_PRODUCE_VERSION = 7  # of aiokafka 0.14, without varints
#: Cases with other counts if the compiled functions are missing.
COMPILED = (
    "codec: make a batch of 50", "codec: read a batch of 50", "produce, a batch of 1",
    "produce, 40 batches of 1 in one read", "produce, a batch of 50", "fetch, 64 KB", "fetch, 1 MB",
    "log: read 64 KB, where nobody has", "produce version 7, a batch of 1",
    "produce version 7, 40 batches of 1 in one read", "fetch in a session, 64 KB",
    "fetch that waits, and a produce that ends it", "fetch in a session that waits, and a produce that ends it",
    "fetch in a session that waits until its time is up",
)  # fmt: skip
_BUFFER_BYTES = 4 << 20
_MARK = 0x0102030405060708  # an offset that is found again in a frame
_SESSION_ID_AT = 4 + 4 + 1 + 4 + 2  # behind length, correlation id, tagged fields, throttle time and error code
_OFFSET_FROM_END = 29  # of the one partition of a Fetch request
_WAIT_SECONDS = 0.5  # of a Fetch request
_EPOCH_FROM_END = 4 + 1 + 16 + 1 + 33 + 4  # with the topic, its one partition and what ends a Fetch request
_LIMITS = ServerLimits(100 << 20, 100, 1 << 20, 2 << 20, -1)


class _Transport(PairTransport):
    """A class of its own: how much an instance takes depends on the attributes that other tests gave to theirs."""


class HotPath:
    """One client's connection to one broker with one topic of one partition. dispatcher: what answers it."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.parts = RealParts(directory, log_dirs=str(directory / "logs"), log_cleaner_enable=False, **settings)
        self.parts.create(TOPIC)
        self.dispatcher = Dispatcher(self.parts)
        self._factory = BrokerFactory(
            self.parts.clock,
            self.dispatcher,
            self._warm,
            _LIMITS,
        )
        self.transport = self.connect(_BUFFER_BYTES)
        self._producer = self.connect(_BUFFER_BYTES)
        self._protocol: Any = self.transport.protocol
        self._client = ClientSession(100 << 20, "hotpath")
        self._buffer = bytearray(_BUFFER_BYTES)

    def _warm(self, source: Any, position: int, length: int) -> Any:
        return self.parts.threads(source.read)

    def connect(self, buffer_bytes: int = 1 << 16) -> PairTransport:
        """One more connection to the broker."""
        protocol: Any = self._factory.buildProtocol(None)
        transport = _Transport(protocol, ManualReactor(), buffer_bytes)
        transport.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        protocol.makeConnection(transport)
        return transport

    def close(self) -> None:
        """End the connection and the broker."""
        transport: Any
        for transport in (self.transport, self._producer):
            transport.loseConnection()
            transport.protocol.pipeline.lost()
            transport.peer.close()
        self.parts.close()

    def produce_frame(self, messages: int, size: int, version: int = PRODUCE_VERSION) -> bytes:
        """A Produce request of one batch."""
        records = batch(*[b"v" * size] * messages, now_ms=self.parts.now_ms())
        topic = TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, records)])
        return self._frame(ProduceRequest(None, -1, 30_000, [topic]), version)

    def fetch_frame(self, offset: int, max_bytes: int) -> bytes:
        """A Fetch request of one partition, without a session."""
        topic_id = self.parts.partitions.by_name[TOPIC, 0].topic_id
        partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
        topic = FetchTopic(topic_id=topic_id, partitions=[partition])
        request = FetchRequest(max_wait_ms=round(_WAIT_SECONDS * 1000), min_bytes=1, topics=[topic])
        return self._frame(request, FETCH_VERSION)

    def _frame(self, request: Any, version: int) -> bytes:
        parts: list[Any] = self._client.encode_request(request, version)
        return b"".join(map(bytes, parts))

    def ask(self, frame: bytes) -> int:
        """Let the broker have a request; the size of its reply, which has all left when this returns."""
        self.transport.deliver(frame)
        return self.take(None)

    def ask_at_once(self, frames: bytes, replies: int) -> None:
        """Let the broker have several requests in one read, and receive so many bytes of replies."""
        self.transport.deliver(frames)
        self.take(replies)

    def ask_in_python(self, frames: bytes, replies: int) -> None:
        """Do as `ask_at_once`, as where the function for requests of one shape could not be compiled."""
        with patch.object(compiled, "fast", None):
            self.forget_requests()
            self.ask_at_once(frames, replies)

    def read_anew(self, offset: int, max_bytes: int) -> Any:
        """Read from the log what it does not remember."""
        view = self.parts.partitions.by_name[TOPIC, 0].log._view
        for remembered in (view._next, view._ranges, view.slices):
            remembered.clear()
        return self.parts.partitions.by_name[TOPIC, 0].log.read(offset, max_bytes)

    def take(self, size: int | None) -> int:
        """Receive so many bytes from the broker, or as many as the first four say."""
        got = 0
        while size is None or got < size:
            try:
                count = self.transport.peer.recv_into(self._buffer)
            except BlockingIOError:
                if not self.transport.reactor.turn():  # type: ignore[attr-defined]
                    raise AssertionError("the broker owes bytes and does not mean to send them") from None
                continue
            if size is None:
                size = 4 + struct.unpack_from(">i", self._buffer)[0]
            got += count
        assert got == size
        return got

    def end_wait(self, fetch: bytearray, offset_at: int, produce: bytes) -> None:
        """A fetch waits at the end of the log, and a produce on another connection ends it.

        offset_at: where the fetch has its offset.
        """
        end = self.parts.partitions.by_name[TOPIC, 0].log.log_end_offset
        struct.pack_into(">q", fetch, offset_at, end)
        self.transport.deliver(bytes(fetch))
        self.produce_elsewhere(produce)
        assert self.transport.received()

    def produce_elsewhere(self, produce: bytes) -> None:
        """Let the broker have a Produce request on another connection."""
        self._producer.deliver(produce)
        self._producer.received()

    def last_session_id(self) -> int:
        """Return the session id in the last reply, which was to a Fetch."""
        (found,) = struct.unpack_from(">i", self._buffer, _SESSION_ID_AT)
        assert found > 0
        return int(found)

    def forget_requests(self) -> None:
        """Have the connection compare the next request with none before it."""
        self._protocol.produce_shape = self._protocol.known_fetch = None

    @property
    def sender(self) -> Sender:
        """The connection's sender."""
        sender: Sender = self._protocol.pipeline._sender
        return sender


class SessionFetches:
    """Fetch requests that continue a session of one partition (KIP-227), each of which names it."""

    def __init__(self, path: HotPath, offset: int, max_bytes: int) -> None:
        """Open the session. offset, max_bytes: what is fetched each time."""
        self._path, self._epoch = path, 0
        self._request = bytearray(path.fetch_frame(offset, max_bytes))
        self._epoch_at = len(self._request) - _EPOCH_FROM_END
        self.ask()
        struct.pack_into(">i", self._request, self._epoch_at - 4, path.last_session_id())

    def ask(self) -> int:
        """Fetch once more; return the size of the reply."""
        struct.pack_into(">i", self._request, self._epoch_at, self._epoch)
        self._epoch += 1
        return self._path.ask(bytes(self._request))

    def end_wait(self, produce: bytes) -> None:
        """Fetch at the end of the log, where a produce on another connection ends the wait."""
        self._wait()
        self._path.produce_elsewhere(produce)
        assert self._path.transport.received()

    def wait_in_vain(self) -> None:
        """Fetch at the end of the log, and be told after some time that there is nothing."""
        self._wait()
        self._path.parts.time.advance(_WAIT_SECONDS)
        assert self._path.transport.received()

    def _wait(self) -> None:
        end = self._path.parts.partitions.by_name[TOPIC, 0].log.log_end_offset
        struct.pack_into(">q", self._request, len(self._request) - _OFFSET_FROM_END, end)
        struct.pack_into(">i", self._request, self._epoch_at, self._epoch)
        self._epoch += 1
        self._path.transport.deliver(bytes(self._request))

    def end_wait_in_general(self, produce: bytes) -> None:
        """Do as `end_wait`, as for a request without a short way."""
        with patch.object(compiled, "fast", None):
            self._path.forget_requests()
            self.end_wait(produce)

    def ask_in_general(self) -> int:
        """Do as `ask`, as for a request without a short way."""
        with patch.object(compiled, "fast", None):
            self._path.forget_requests()
            return self.ask()


def cases(path: HotPath) -> dict[str, Callable[[], Any]]:
    """What is counted and timed, by name: whole requests, and codec, log and sender by themselves.

    The log has a little more than 1 MB when this returns; what is appended later is not read.
    """
    one, fifty = path.produce_frame(1, 200), path.produce_frame(50, 200)
    for _ in range(110):
        path.ask(fifty)
    path.ask(path.fetch_frame(0, 1 << 16))  # six batches; the following fetches continue after it, as readers do
    forty, replies = one * 40, path.ask(one) * 40
    small, large = path.fetch_frame(300, 1 << 16), path.fetch_frame(300, 1 << 20)
    answered, waiting = path.ask(small), bytearray(path.fetch_frame(_MARK, 1 << 20))
    offset_at = waiting.index(struct.pack(">q", _MARK))
    decode_produce = partial(schema.request_codec(ProduceRequest.API_KEY, PRODUCE_VERSION).decode, _body(fifty))
    decode_fetch = partial(schema.request_codec(FetchRequest.API_KEY, FETCH_VERSION).decode, _body(small))
    replicas, partition = path.parts.replicas, path.parts.partitions.by_name[TOPIC, 0]
    records = batch(*[b"v" * 200] * 50, now_ms=path.parts.now_ms())
    values = [(None, b"v" * 200, path.parts.now_ms(), ())] * 50
    slices = partition.log.read(0, 1 << 16)
    assert slices is not None
    sender: Any = path.sender
    return {
        COMPILED[2]: lambda: path.ask(one),
        "produce, a batch of 1, in Python": lambda: path.ask_in_python(one, replies // 40),
        COMPILED[3]: lambda: path.ask_at_once(forty, replies),
        "produce, 40 batches of 1 in one read, in Python": lambda: path.ask_in_python(forty, replies),
        COMPILED[4]: lambda: path.ask(fifty),
        COMPILED[5]: lambda: path.ask(small),
        "fetch, 64 KB, in Python": lambda: path.ask_in_python(small, answered),
        COMPILED[6]: lambda: path.ask(large),
        COMPILED[11]: lambda: path.end_wait(waiting, offset_at, one),
        "codec: decode a Produce request": decode_produce,
        "codec: decode a Fetch request": decode_fetch,
        COMPILED[0]: lambda: encode_batch(values),
        COMPILED[1]: lambda: list(decode_batch(records)),
        "log: append a batch of 50": lambda: replicas.append(partition, records, False),
        "log: read 64 KB": lambda: partition.log.read(0, 1 << 16),
        COMPILED[7]: lambda: path.read_anew(0, 1 << 16),
        "sender: 100 bytes": lambda: (sender.send([b"x" * 100]), path.take(100)),
        "sender: 100 bytes and 64 KB of a file": lambda: (
            sender.send([b"x" * 100, slices]),
            path.take(100 + len(slices)),
        ),
        **(_session_cases(path, one) | _old_produce_cases(path)),
    }


def _session_cases(path: HotPath, produce: bytes) -> dict[str, Callable[[], Any]]:
    """Return the cases of a Fetch that continues a session, in which one partition has changed, or none yet."""
    session, waiting = SessionFetches(path, 300, 1 << 16), SessionFetches(path, 300, 1 << 20)
    return {
        COMPILED[10]: session.ask, f"{COMPILED[10]}, in Python": session.ask_in_general,
        COMPILED[12]: lambda: waiting.end_wait(produce),
        f"{COMPILED[12]}, in Python": lambda: waiting.end_wait_in_general(produce),
        COMPILED[13]: waiting.wait_in_vain,
    }  # fmt: skip


def _old_produce_cases(path: HotPath) -> dict[str, Callable[[], Any]]:
    """Return the cases of Produce for a client that sends an older version."""
    one = path.produce_frame(1, 200, OLD_PRODUCE_VERSION)
    reply = path.ask(one)
    return {
        COMPILED[8]: lambda: path.ask(one),
        f"{COMPILED[8]}, in Python": lambda: path.ask_in_python(one, reply),
        COMPILED[9]: lambda: path.ask_at_once(one * 40, reply * 40),
        f"{COMPILED[9]}, in Python": lambda: path.ask_in_python(one * 40, reply * 40),
    }


def _body(frame: bytes) -> memoryview:
    """A request without its length and its header (version 2, without tagged fields)."""
    (client,) = struct.unpack_from(">h", frame, 12)
    return memoryview(frame)[15 + client :]


_TOOL = 3  # of the six that may monitor a process at a time, one that nobody else claims


@dataclass(frozen=True, slots=True)
class Cost:
    """What was counted: bytecode instructions, calls of Python functions and calls of C functions."""

    instructions: int
    calls: int
    c_calls: int


def cost(work: Callable[[], Any], rounds: int = 20) -> Cost:
    """The least of so many rounds, after as many that don't count: now and then a request has more to do."""
    for _ in range(rounds):
        work()
    least = min(instructions(work) for _ in range(rounds))
    calls = [_calls(work) for _ in range(rounds)]
    return Cost(least, min(own for own, _ in calls), min(c for _, c in calls))


if sys.version_info >= (3, 12):  # there a trace function set from outside sees no instructions (PEP 669)

    def instructions(work: Callable[[], Any]) -> int:
        """Return the bytecode instructions of one run."""
        count = 0
        monitoring, own = sys.monitoring, sys._getframe().f_code

        def note(code: CodeType, _offset: int) -> None:
            nonlocal count
            count += code is not own

        monitoring.use_tool_id(_TOOL, "pylogd's costs")
        monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, note)
        monitoring.set_events(_TOOL, monitoring.events.INSTRUCTION)
        try:
            work()
        finally:
            monitoring.set_events(_TOOL, 0)
            monitoring.free_tool_id(_TOOL)
        return count

else:

    def instructions(work: Callable[[], Any]) -> int:
        """Return the bytecode instructions of one run."""
        count = 0

        def trace(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal count
            if event == "call":
                frame.f_trace_opcodes = True
                frame.f_trace_lines = False
            elif event == "opcode":
                count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
        return count


def _calls(work: Callable[[], Any]) -> tuple[int, int]:
    own = c = 0

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal own, c
        if event == "call":
            own += 1
        elif event == "c_call":
            c += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return own, c
