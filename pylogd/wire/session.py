"""The protocol of a connection without I/O: received bytes become events, messages become parts to send.

Strategy: `receive_data` takes bytes from the peer; `next_event` returns one event at a time, then None. So the caller
may pause between two events (back-pressure) and continue later. Encoding returns a list of parts: each is bytes, or the
object that was passed in for a field of records, for which the caller may send a file.

Rules: any bytes become events or one RemoteProtocolError; after that error the session can't be used and the connection
should be closed. A request of an unsupported API or version becomes an UnsupportedRequest, because only its header can
be decoded. Replies have the order of the requests (Kafka protocol guide, "Network").
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from pylogd.base.limits.elements import AT_ONCE, ElementBounds, most_in_reply
from pylogd.wire import fast, schema
from pylogd.wire.exceptions import RemoteProtocolError, TooManyElements
from pylogd.wire.framing import FrameDecoder, FrameMemory
from pylogd.wire.headers import RESPONSE_V0, RESPONSE_V1, read_request_header, skip_tagged_fields
from pylogd.wire.schema import Part

_API_VERSIONS = 18
_INT32 = struct.Struct(">i")
_CORRELATION_IDS = 1 << 31
_AHEAD = 8 * 1024 * 1024  # the most bytes that a client allocates at once for an announced reply


@dataclass(slots=True)
class RequestReceived:
    """A complete request. Its handler sets `request` to None in the end, so that the bytes can be released."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    request: Any


@dataclass(slots=True)
class LargeRequest(RequestReceived):
    """A request with so many elements that decoding it takes long. `request` is a function that decodes it.

    The function may be called in a thread. It returns the message, and raises RemoteProtocolError.
    """


@dataclass(slots=True)
class UnsupportedRequest:
    """A request of an API or version that is not supported. Only its header was decoded."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@dataclass(slots=True)
class ResponseReceived:
    """The reply to the request with `correlation_id`. `response` is its message."""

    correlation_id: int
    api_key: int
    version: int
    response: Any


_UNBOUNDED = ElementBounds()  # only the codecs' own bounds apply

_Decode = Callable[[memoryview], Any]
_Encode = Callable[[Any], list[Part]]

_pack_head_v0 = RESPONSE_V0.pack
_pack_head_v1 = RESPONSE_V1.pack

# Whether the header is flexible, the decoders of normal and of large requests, and the most elements of a request.
Decoder = tuple[bool, _Decode, _Decode, int]
Encoder = tuple[bool, _Encode]

# Codecs by `API key << 16 | version`, shared by all sessions. An encoder has: whether the header is flexible, and
# encode.
DECODERS: defaultdict[ElementBounds, dict[int, Decoder]] = defaultdict(dict)  # for sessions with these bounds
ENCODERS: dict[int, Encoder] = {}


class BatchReply(NamedTuple):
    """The result for the next requests of a connection, which were offered to be answered together.

    replies: the encoded replies to the answered requests, in order.
    end: the position in the unread bytes of the first request without a reply.
    singles: the number of following requests to offer one by one, since they can't be answered together.
    repeats: whether requests that repeat these may be answered as a `RepeatedBatch`.
    """

    replies: bytes
    end: int
    singles: int
    repeats: bool = False


#: No request was answered.
NOT_ANSWERED = BatchReply(b"", 0, 0)


class DirectOutput(Protocol):
    """A connection's output, to which compiled code may send a reply at once.

    The code may do so if the records and the bytes after them have more than `direct_above` and at most `max_chunk`
    bytes.
    """

    socket: Any
    direct_above: int
    max_chunk: int


class LaterReply(Protocol):
    """The reply to a request that waits.

    event: the request, without its message.
    """

    @property
    def event(self) -> RequestReceived: ...

    def cancel(self) -> None:
        """End the wait without a reply."""

    def then(self, take: Callable[[Any, Any], object], what: Any) -> None:
        """Have `take` called once, with the reply and `what`, unless the wait is cancelled before.

        The reply is a `DirectReply`, or anything that a handler returns.
        """


#: A reply with records: the bytes before the records, the records, the zero bytes after them, and the number of bytes
#: that were sent; -1 if sending was not tried yet.
DirectReply = tuple[bytes, Any, bytes, int]
#: The reply to a request that repeats the last one. True means that all of it has been sent.
RepeatReply = DirectReply | LaterReply | Literal[True]
#: The replies to the first requests in the bytes of one read, and the position after these requests.
RepeatedBatch = tuple[bytes, int]


class ServerSession:
    """The broker's side of one connection.

    `versions` maps each API key that is served to its lowest and highest version. Frames over `max_frame_bytes` raise,
    and so do requests with more elements than `elements` allows. `memory` may be shared by the sessions of a thread.

    receive_data: takes bytes from the peer; call `next_event` until it returns None before giving more.
    receive_buffer: returns the unfilled tail of a partial request, or None. Receive into it, release it, then call
        `filled`.
    next_frame: returns the next request as bytes, without its length, or None if more data is needed; raises
        RemoteProtocolError. The caller may answer it, and those that follow it in `unread()`, without `parse`.
    max_frame_bytes: the largest size of a request.
    """

    __slots__ = (
        "_codecs", "_decoder", "_elements", "_versions", "max_frame_bytes", "next_frame", "receive_buffer",
        "receive_data",
    )  # fmt: skip

    def __init__(
        self,
        max_frame_bytes: int,
        versions: Mapping[int, tuple[int, int]],
        memory: FrameMemory | None = None,
        elements: ElementBounds = _UNBOUNDED,
    ) -> None:
        self._decoder = FrameDecoder(max_frame_bytes, memory=memory)
        self.max_frame_bytes = max_frame_bytes
        self._versions = versions
        self._elements = elements
        self._codecs = DECODERS[elements]
        # The methods of the decoder itself: each request calls them.
        self.receive_data = self._decoder.feed
        self.receive_buffer = self._decoder.receive_buffer
        self.next_frame = self._decoder.next_frame

    def filled(self, size: int) -> None:
        """Record that `size` bytes were received into `receive_buffer()`."""
        self._decoder.filled(size)

    def limit(self, max_frame_bytes: int) -> None:
        """Accept requests of at most `max_frame_bytes` bytes from now on."""
        self.max_frame_bytes = max_frame_bytes
        self._decoder.limit(max_frame_bytes)

    def lift_element_bounds(self) -> None:
        """Accept requests with as many elements as the codecs decode, from the next one on."""
        self._elements = _UNBOUNDED
        self._codecs = DECODERS[_UNBOUNDED]

    @property
    def partial_bytes(self) -> int:
        """The memory that a partial request takes; 0 if there is none."""
        return self._decoder.partial_bytes

    @property
    def announced_bytes(self) -> int:
        """The length of a partial request; 0 if there is none."""
        return self._decoder.announced_bytes

    @property
    def pending(self) -> bool:
        """Whether there are received bytes that are not a request yet."""
        return self._decoder.pending

    @property
    def complete(self) -> bool:
        """Whether `next_frame` has a request to return, or an error to raise."""
        return self._decoder.complete

    @property
    def progress(self) -> tuple[int, int] | None:
        """The progress of a partial request: a number that differs for each, and its received bytes. None if there is
        none.
        """
        return self._decoder.progress

    def next_event(self) -> RequestReceived | UnsupportedRequest | None:
        """Return the next request, or None if more data is needed. Raises RemoteProtocolError."""
        frame = self.next_frame()
        return None if frame is None else self.parse(frame)

    def parse(self, frame: memoryview) -> RequestReceived | UnsupportedRequest:
        """Return the request in a frame; a LargeRequest if it is not decoded yet. Raises RemoteProtocolError."""
        api_key, version, correlation_id, client_id, at = read_request_header(frame)
        found = self._codecs.get(api_key << 16 | version)
        if found is None:
            lowest, highest = self._versions.get(api_key, (0, -1))
            if not lowest <= version <= highest:
                return UnsupportedRequest(api_key, version, correlation_id, client_id)
            found = self._codecs[api_key << 16 | version] = _request_decoder(api_key, version, self._elements)
        flexible, decode, decode_large, most = found
        if flexible:
            at = skip_tagged_fields(frame, at)
        body = frame[at:]
        try:
            return RequestReceived(api_key, version, correlation_id, client_id, decode(body))
        except TooManyElements as error:
            large = partial(decode_large, body)
            if error.total > most:
                large()  # this raises, with the limit in the text
            return LargeRequest(api_key, version, correlation_id, client_id, large)

    def unread(self) -> tuple[memoryview, int, int]:
        """Return the last received bytes, the next request's position in them, and the largest size of a request."""
        return self._decoder.unread()

    def skip_to(self, at: int) -> None:
        """Continue with the request that begins at position `at` of the bytes received last."""
        self._decoder.skip_to(at)

    def encode_reply(self, event: RequestReceived, response: Any) -> list[Part]:
        """Return the parts of the reply to `event`, beginning with the length. A `response` of bytes is encoded
        already.
        """
        key = event.api_key << 16 | event.version
        found = ENCODERS.get(key)
        if found is None:
            found = ENCODERS[key] = _response_encoder(event.api_key, event.version)
        flexible, encode = found
        if type(response) is bytes:
            size, correlation_id = len(response), event.correlation_id
            head = _pack_head_v1(size + 5, correlation_id, 0) if flexible else _pack_head_v0(size + 4, correlation_id)
            return [head + response]
        parts = encode(response)
        length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if flexible:
            head = _pack_head_v1(length + 5, event.correlation_id, 0)
        else:
            head = _pack_head_v0(length + 4, event.correlation_id)
        return _prepend(head, parts)


class ClientSession:
    """The client's side of one connection: numbers requests and matches replies to them."""

    __slots__ = ("_awaited", "_client_id", "_correlation_id", "_decoder")

    def __init__(self, max_frame_bytes: int, client_id: str | None = None, memory: FrameMemory | None = None) -> None:
        self._decoder = FrameDecoder(max_frame_bytes, _AHEAD, memory)
        self._client_id = client_id
        self._correlation_id = 0
        self._awaited: deque[tuple[int, int, int]] = deque()  # correlation id, API, version

    @property
    def in_flight(self) -> int:
        """The number of requests that await a reply."""
        return len(self._awaited)

    def encode_request(self, request: Any, version: int, *, expect_reply: bool = True) -> list[Part]:
        """Encode a request. Returns its parts, beginning with length and header.

        expect_reply: false for Produce with acks=0, which has no reply.
        """
        api_key = request.API_KEY
        parts = schema.request_codec(api_key, version).encode(request)  # first, because it may raise
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        if expect_reply:
            self._awaited.append((self._correlation_id, api_key, version))
        client = b"" if self._client_id is None else self._client_id.encode()
        client_length = -1 if self._client_id is None else len(client)
        head = struct.pack(">hhih", api_key, version, self._correlation_id, client_length) + client
        if schema.request_header_version(api_key, version) >= 2:
            head += b"\0"
        return _prepend(_INT32.pack(len(head) + sum(map(len, parts))) + head, parts)

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the broker. Call `next_event` until it returns None before giving more."""
        self._decoder.feed(data)

    def receive_buffer(self) -> memoryview | None:
        """Return the unfilled tail of a partial reply, or None. Receive into it, release it, then call `filled`."""
        return self._decoder.receive_buffer()

    def filled(self, size: int) -> None:
        """Record that `size` bytes were received into `receive_buffer()`."""
        self._decoder.filled(size)

    def next_event(self) -> ResponseReceived | None:
        """Return the next reply, or None if more data is needed. Raises RemoteProtocolError."""
        frame = self._decoder.next_frame()
        if frame is None:
            return None
        if len(frame) < _INT32.size:
            raise RemoteProtocolError(f"a response of {len(frame)} bytes is too short for its header")
        (correlation_id,) = _INT32.unpack_from(frame)
        if not self._awaited:
            raise RemoteProtocolError(f"a response came with correlation id {correlation_id}, but no request waits")
        expected, api_key, version = self._awaited.popleft()
        if correlation_id != expected:
            raise RemoteProtocolError(f"a response came with correlation id {correlation_id} instead of {expected}")
        at = _INT32.size
        if schema.response_header_version(api_key, version) >= 1:
            at = skip_tagged_fields(frame, at)
        response = _decode_response(api_key, version, frame[at:])
        return ResponseReceived(correlation_id, api_key, version, response)


def _decode_response(api_key: int, version: int, body: memoryview) -> Any:
    if api_key == _API_VERSIONS and version and bytes(body[:2]) == b"\0\x23":
        version = 0  # a broker that does not support our version answers error 35 in version 0 (KIP-511)
    return schema.response_codec(api_key, version).decode(body, most_in_reply(api_key))


def _request_decoder(api_key: int, version: int, elements: ElementBounds) -> Decoder:
    codec = schema.request_codec(api_key, version)
    most = elements.of(api_key)
    general = partial(codec.decode_leniently, most_elements=min(most, AT_ONCE))
    return (
        schema.request_header_version(api_key, version) >= 2,
        fast.request_decoder(api_key, version, general),
        partial(codec.decode_leniently, most_elements=most),
        most,
    )


def _response_encoder(api_key: int, version: int) -> tuple[bool, _Encode]:
    general = schema.response_codec(api_key, version).encode
    return schema.response_header_version(api_key, version) >= 1, fast.response_encoder(api_key, version, general)


def _prepend(head: bytes, parts: list[Part]) -> list[Part]:
    if parts and isinstance(parts[0], bytes):
        parts[0] = head + parts[0]
    else:
        parts.insert(0, head)
    return parts
