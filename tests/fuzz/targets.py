"""The code under coverage-guided fuzzing: one function for each target, which takes any bytes at all.

Each function states an invariant and raises AssertionError where it does not hold; any other exception is a finding
too. The fuzzer (`python -m tests.fuzz`) calls them with inputs that it makes, and a unit test with the stored corpus.

Where compiled code has a twin in Python, both run and must agree: the fuzzer sees branches in the Python only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from pylogd.wire import fast, records, validation
from pylogd.wire.exceptions import InvalidRecordBatch, RemoteProtocolError
from pylogd.wire.framing import FrameMemory
from pylogd.wire.messages import APIS
from pylogd.wire.schema import Codec, request_codec, response_codec
from pylogd.wire.session import LargeRequest, RequestReceived, ServerSession, UnsupportedRequest
from pylogd.wire.stream import Cursor

MAX_FRAME = 1 << 14
MAX_DECOMPRESSED = 1 << 20
RESPONSE_BIT = 0x80

_FAST = (0, 1)  # Produce, Fetch
_VERSIONS = {key: (info.min_version, info.max_version) for key, info in APIS.items()}
_Event = RequestReceived | UnsupportedRequest


# Frames -------------------------------------------------------------------------------------------------------------


def frames(data: bytes) -> None:
    """Check that a stream of requests has the same meaning whole and in pieces.

    The first byte is the size of the pieces; the rest is what a client sends. Received in one chunk, in chunks of that
    size, and into the decoder's own buffer, it gives the same requests, and a protocol error at the same place or none.
    """
    if not data:
        return
    size, stream = data[0] + 1, data[1:]
    whole = _requests(stream, len(stream) or 1, in_place=False)
    assert _requests(stream, size, in_place=False) == whole
    assert _requests(stream, size, in_place=True) == whole


def _requests(stream: bytes, size: int, *, in_place: bool) -> tuple[list[_Event], bool]:
    """Return the requests in `stream` when it arrives in pieces of `size`, and whether it ended in a protocol error."""
    session = ServerSession(MAX_FRAME, _VERSIONS, FrameMemory() if in_place else None)
    found: list[_Event] = []
    at = 0
    try:
        while at < len(stream):
            buffer = session.receive_buffer() if in_place else None
            if buffer is None:
                session.receive_data(stream[at : at + size])
                at += size
            else:
                taken = min(size, len(buffer), len(stream) - at)
                buffer[:taken] = stream[at : at + taken]
                del buffer
                session.filled(taken)
                at += taken
            while (event := session.next_event()) is not None:
                if isinstance(event, LargeRequest):  # whose memory is used again
                    event = RequestReceived(
                        event.api_key, event.version, event.correlation_id, event.client_id, event.request()
                    )
                found.append(event)
    except RemoteProtocolError:
        return found, True
    return found, False


# Record batches -----------------------------------------------------------------------------------------------------


def batches(data: bytes) -> None:
    """Check that any bytes are record batches or an InvalidRecordBatch.

    The bytes are read as they are, and once more with a length, magic and CRC that are right, as only a faulty or
    hostile client sends. The compiled loops and those in Python find the same, and a batch that the broker accepts can
    be decoded in full.
    """
    for allow_partial in (False, True):
        try:
            for header, view in records.iter_batches(data, allow_partial=allow_partial):
                assert header.size == len(view)
        except InvalidRecordBatch:
            pass
    if len(data) >= records.HEADER_SIZE:
        _check_batch(_with_right_header(data))


def _with_right_header(data: bytes) -> bytes:
    batch = bytearray(data)
    struct.pack_into(">i", batch, 8, len(batch) - records.LENGTH_OVERHEAD)
    batch[16] = records.MAGIC
    struct.pack_into(">I", batch, records.CRC_START - 4, records.crc32c(memoryview(batch)[records.CRC_START :]))
    return bytes(batch)


def _check_batch(batch: bytes) -> None:
    header = records.parse_header(batch)
    decoded = _decoded(batch, None)
    if records.speedups is not None:
        assert _decoded(batch, records.speedups) == decoded
        assert records.speedups.batch_is_valid(batch, 0) == validation.batch_is_valid_slowly(batch, 0)
    try:
        payload = bytes(records.payload_of(batch, header, MAX_DECOMPRESSED))
    except InvalidRecordBatch:
        assert decoded is None
        return
    arguments = (payload, header.record_count, header.base_timestamp, 0, 1 << 41)
    found = validation.inspect_slowly(*arguments)
    assert validation.inspect_records(*arguments) == found
    if found.problem is None and header.record_count == header.last_offset_delta + 1 and _offsets_fit(header):
        assert decoded is not None
        assert len(decoded) == header.record_count


def _offsets_fit(header: records.BatchHeader) -> bool:
    return 0 <= header.base_offset < 1 << 62


def _decoded(batch: bytes, loops: Any) -> list[records.Record] | None:
    """Decode `batch` with the given loops, compiled or None. Return None for an InvalidRecordBatch."""
    before, records.speedups = records.speedups, loops
    try:
        return records.decode_batch(batch, max_decompressed=MAX_DECOMPRESSED)
    except InvalidRecordBatch:
        return None
    finally:
        records.speedups = before


# Messages by their schemas ------------------------------------------------------------------------------------------


def messages(data: bytes) -> None:
    """Check that any bytes are one message of an API or a RemoteProtocolError.

    The first byte is the API key, the second the version, with its highest bit set for a response; the rest is the
    body. The compiled codec, the construct behind it and the fast paths agree, and what was decoded can be encoded and
    decoded again.
    """
    codec = codec_of(data)
    if codec is None:
        return
    body = data[2:]
    message = _message(codec.decode, body)
    assert message == _message(_interpreter(codec), body)
    if message is not None:
        assert codec.decode(_encoded(codec, message)) == message
    key, version = data[0], data[1] & ~RESPONSE_BIT
    if not data[1] & RESPONSE_BIT and key in _FAST:
        general = codec.decode_leniently
        quick = fast.request_decoder(key, version, general)
        assert _message(quick, memoryview(body)) == _message(general, memoryview(body))


def codec_of(data: bytes) -> Codec | None:
    """Return the codec that an input names, or None if there is no such API or version."""
    if len(data) < 2 or data[0] not in APIS:
        return None
    info, version = APIS[data[0]], data[1] & ~RESPONSE_BIT
    if not info.min_version <= version <= info.max_version:
        return None
    return (response_codec if data[1] & RESPONSE_BIT else request_codec)(data[0], version)


def _message(decode: Callable[[Any], Any], body: bytes | memoryview) -> Any:
    try:
        return decode(body)
    except RemoteProtocolError:
        return None


@cache
def _interpreter(codec: Codec) -> Callable[[bytes], Any]:
    """Return a decoder that runs the codec's construct uncompiled, where the fuzzer sees its branches."""

    def parse(cursor: Cursor, _: None) -> Any:
        return codec.construct._parse(cursor, None, "")

    twin = Codec.__new__(Codec)
    twin.version, twin.construct = codec.version, codec.construct
    twin._parse = parse
    return twin.decode


def _encoded(codec: Codec, message: Any) -> bytes:
    return b"".join(bytes(part) for part in codec.encode(message))  # type: ignore[call-overload]


TARGETS: dict[str, Callable[[bytes], None]] = {"frames": frames, "batches": batches, "messages": messages}
