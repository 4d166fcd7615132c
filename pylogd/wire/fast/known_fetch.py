"""Fetch requests that repeat the last one of their connection, with functions that may be compiled.

Strategy: a client that reads one partition sends the same bytes again, except for correlation id and fetch offset. So a
request is decoded once, by the codec in `fetch`, and kept. A compiled function compares the next request with it and
returns the offset; another one makes the bytes before the records of the response. `_fast.c` describes how.

Rules: requests that do not repeat the last one are left to the codecs. `tests/property/test_repeated_fetches.py` proves
that a client can't tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.fast import compiled
from pylogd.wire.fast.fetch import END_SIZE, FIRST_FAST, PARTITION_SIZE, request_decoder, response_body
from pylogd.wire.headers import read_request_header, skip_tagged_fields
from pylogd.wire.messages.fetch import FetchRequest
from pylogd.wire.stream import UUID_SIZE

LAST = 18
#: The bytes after the records of the response: no tagged fields of the partition, its topic and the response.
END = b"\0\0\0"
_LENGTH = 4
_OFFSET_AT = 8  # the position of the offset in the fields of a partition
#: The position, from the end, of the session epoch in a request for one partition: after it come number of topics,
#: topic id and number of partitions, with one byte for each number. Then the epoch's value without a session.
_EPOCH_AT = slice(
    -(4 + 1 + UUID_SIZE + 1 + PARTITION_SIZE + END_SIZE), -(1 + UUID_SIZE + 1 + PARTITION_SIZE + END_SIZE)
)
_NO_SESSION = b"\xff\xff\xff\xff"


#: What `_repeated.c` takes: `KnownFetch.compiled`.
Compiled = tuple[
    Callable[[bytes], int], Callable[[bytes, int, int, int, int], bytes], tuple[bytes, int], int, bool, int, int
]


class DecodedFetch(NamedTuple):
    """A request of the usual shape, and its version."""

    version: int
    request: FetchRequest


def decode_fetch(data: bytes) -> DecodedFetch | None:
    """Return the request in `data`, which begins with its length, if it has the usual shape and no rest; else None.

    Return None too if there are no compiled functions, and for requests of sessions, which are not even decoded: each
    request of such a connection is passed to this function, and decoded elsewhere. Requests of several partitions may
    be decoded.
    """
    if compiled.fast is None or data[_EPOCH_AT] != _NO_SESSION:
        return None
    return decode_frame(data)


def decode_frame(data: bytes) -> DecodedFetch | None:
    """Return the request in `data`, which begins with its length, if it has the usual shape and no rest; else None."""
    if int.from_bytes(data[:_LENGTH], "big") != len(data) - _LENGTH:
        return None
    frame = memoryview(data)[_LENGTH:]
    try:
        api_key, version, _, _, at = read_request_header(frame)
        if api_key != FetchRequest.API_KEY or not FIRST_FAST <= version <= LAST:
            return None
        request = request_decoder(version, _leave)(frame[skip_tagged_fields(frame, at) :])
    except RemoteProtocolError:
        return None
    return None if request is None else DecodedFetch(version, request)


def _leave(_body: memoryview) -> None:
    """Decode nothing: the shape is not the usual one."""


class KnownFetch:
    """A request for one partition, with which the next requests of its connection are compared.

    key: the partition's topic id and index.
    leader_epoch: the leader epoch that the client knows.
    committed: whether the client reads only committed records.
    limit: the most bytes of records.
    least: the fewest bytes that are answered at once.
    wait_seconds: how long the client waits for this many bytes.
    version: the version of the request.

    compiled: the other values, in the order in which `_repeated.c` takes them.
    offset_in: returns the fetch offset of the request in `data` if it repeats this one; else -1.
    response_head: returns the response to the request in `data` up to the records. Its last arguments are high
        watermark, last stable offset, log start offset, and the size of the records; `END` follows the records.
    """

    __slots__ = (
        "committed", "compiled", "key", "leader_epoch", "least", "limit", "offset_in", "response_head", "version",
        "wait_seconds",
    )  # fmt: skip

    offset_in: Callable[[bytes], int]
    response_head: Callable[[bytes, int, int, int, int], bytes]

    def __init__(self, data: bytes, version: int, request: FetchRequest, most: int, *, committed: bool) -> None:
        """`request` was decoded from `data` by `decode_fetch`. `most` is the most bytes of records in any response."""
        ((topic,), module) = request.topics, compiled.fast
        (wanted,) = topic.partitions
        assert module is not None
        offset_at = len(data) - END_SIZE - PARTITION_SIZE + _OFFSET_AT
        self.offset_in = partial(module.fetch_offset, data, offset_at)
        self.response_head = partial(module.fetch_head, response_body(topic.topic_id, wanted.partition, committed))
        self.key = topic.topic_id, wanted.partition
        self.leader_epoch = wanted.current_leader_epoch
        self.version, self.wait_seconds = version, request.max_wait_ms / 1000
        self.committed = committed
        self.limit = min(request.max_bytes, wanted.partition_max_bytes, most)
        self.least = min(request.min_bytes, request.max_bytes, most)
        self.compiled: Compiled = (
            self.offset_in, self.response_head, self.key, self.leader_epoch, committed, self.limit, self.least,
        )  # fmt: skip
