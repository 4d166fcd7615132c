"""Fetch requests that repeat the last one of their connection, with compiled functions, where there are some.

Strategy: a client that reads one partition sends the same bytes again, but for correlation id and fetch offset. So a
request is decoded once, by the codec in `fetch`, and kept: a compiled function compares the next one with it, and
returns its offset; another makes what is in front of the records of the response. How, is in `_fast.c`.

Rules: what does not repeat the last request is left to the codecs. `tests/property/test_repeated_fetches.py` proves
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
#: Behind the records of the response: no tagged fields of the partition, its topic and the response.
END = b"\0\0\0"
_LENGTH = 4
_OFFSET_AT = 8  # in what a request says of a partition
#: Where the session epoch is in a request for one partition, from the end: number of topics, topic id and number of
#: partitions follow, one byte each for the numbers. And its value without a session.
_EPOCH_AT = slice(
    -(4 + 1 + UUID_SIZE + 1 + PARTITION_SIZE + END_SIZE), -(1 + UUID_SIZE + 1 + PARTITION_SIZE + END_SIZE)
)
_NO_SESSION = b"\xff\xff\xff\xff"


class DecodedFetch(NamedTuple):
    """A request of the usual shape, and its version."""

    version: int
    request: FetchRequest


def decode_fetch(data: bytes) -> DecodedFetch | None:
    """Return the request in `data`, its length in front, if it is one of the usual shape and nothing else; else None.

    None as well where there are no compiled functions, and for requests of sessions, which are not even decoded: each
    of a connection's requests comes here then, and is decoded elsewhere. Those of more than one partition may be.
    """
    if compiled.fast is None or data[_EPOCH_AT] != _NO_SESSION:
        return None
    return decode_frame(data)


def decode_frame(data: bytes) -> DecodedFetch | None:
    """Return the request in `data`, its length in front, if it is of the usual shape and nothing else; else None."""
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
    """A request for one partition that the next ones of its connection are compared with.

    key: the partition's topic id and index. leader_epoch: as the client knows it. committed: whether it reads committed
    records only. limit: the most bytes of records. least: the fewest that are answered at once. wait_seconds: how long
    the client waits for them. version: of the request.

    compiled: the rest, in the order in which `_repeated.c` takes it.
    offset_in: returns the fetch offset of the request in `data` if it repeats this one; else -1.
    response_head: returns the response to the request in `data` up to the records, whose size is the last argument;
        behind them comes `END`. Before it are high watermark, last stable offset and log start offset.
    """

    __slots__ = (
        "committed", "compiled", "key", "leader_epoch", "least", "limit", "offset_in", "response_head", "version",
        "wait_seconds",
    )  # fmt: skip

    offset_in: Callable[[bytes], int]
    response_head: Callable[[bytes, int, int, int, int], bytes]

    def __init__(self, data: bytes, version: int, request: FetchRequest, most: int, *, committed: bool) -> None:
        """`data`: that `request` was decoded from, by `decode_fetch`. most: bytes of records in any response."""
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
        self.compiled = (
            self.offset_in, self.response_head, self.key, self.leader_epoch, committed, self.limit, self.least,
        )  # fmt: skip
