"""Fetch requests that continue a session (KIP-227) and name one partition, compared with the last one of a connection.

Strategy: as in `known_fetch`, a request is decoded once, by the codec in `fetch`. The next ones have the same bytes up
to the session's epoch, but for the correlation id; the rest, of a fixed size, is read in one piece by `struct`.

Rules: requests of another shape are left to the codecs, and are not decoded here.
`tests/property/test_session_fetches.py` proves that a client can't tell the difference.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from pylogd.wire.fast import compiled
from pylogd.wire.fast.known_fetch import decode_frame
from pylogd.wire.messages.fetch import FetchRequest

_HEAD, _COMMON_AT = slice(0, 8), 12  # length, API key and version; the correlation id is between both
# session epoch, topics + 1, topic id, partitions + 1, then the fields of `FetchPartition` and what ends the request
_REST = struct.Struct(">iB16sBiiqiqi5s")
_ONE = 2  # the varint for a list with one element
_END = b"\0\0\1\1\0"  # no tagged fields of the partition and its topic, nothing forgotten, no rack, no tagged fields
#: Session id and epoch, topics + 1, topic id, partitions + 1, from the end: a request with others is not decoded.
_GATE = struct.Struct(">iiB16sB")
_GATE_AT = _REST.size + 4
_READ_COMMITTED = 1

#: Session epoch, topic id; index, leader epoch, offset, last fetched epoch, log start and most bytes of the partition.
NamedPartition: TypeAlias = "tuple[int, bytes, int, int, int, int, int, int]"


class KnownSessionFetch:
    """A request of a session that the next ones of its connection are compared with.

    view: version, replica id, isolation level and rack, on which the answers depend. max_bytes: the most bytes of
    records. least: the fewest that are answered at once.
    """

    __slots__ = (
        "_common", "_common_at", "_head", "_rest_at", "_size", "committed", "least", "max_bytes", "session_id", "view",
    )  # fmt: skip

    #: As of `KnownFetch`: `_repeated.c` leaves these requests to Python.
    compiled = None

    def __init__(self, data: bytes, version: int, request: FetchRequest, most: int) -> None:
        """`data`: that `request` was decoded from, by `decode_session_fetch`. most: bytes of records in a response."""
        self._size, self._head, self._rest_at = len(data), data[_HEAD], len(data) - _REST.size
        self._common_at = slice(_COMMON_AT, self._rest_at)
        self._common = data[self._common_at]
        self.session_id = request.session_id
        self.committed = request.isolation_level == _READ_COMMITTED
        self.view = version, -1, request.isolation_level, ""
        self.max_bytes = min(request.max_bytes, most)
        self.least = min(request.min_bytes, self.max_bytes)

    def has_size_of(self, data: bytes) -> bool:
        """Return whether `data` is as long as the request: no other one is of this shape."""
        return len(data) == self._size

    def is_like(self, data: bytes) -> bool:
        """Return whether `data` has the same bytes up to the session's epoch."""
        return data[_HEAD] == self._head and data[self._common_at] == self._common

    def named_in(self, data: bytes) -> NamedPartition | None:
        """Return what the request in `data` says; None if it differs elsewhere, or names not one partition.

        `data` has the request's size.
        """
        if data[_HEAD] != self._head or data[self._common_at] != self._common:
            return None
        (epoch, topics, topic_id, partitions, index, leader_epoch, offset, last_epoch, start, limit, end) = (
            _REST.unpack_from(data, self._rest_at)
        )
        if topics != _ONE or partitions != _ONE or end != _END:
            return None
        return epoch, topic_id, index, leader_epoch, offset, last_epoch, start, limit


def decode_session_fetch(data: bytes, most: int) -> KnownSessionFetch | None:
    """Return the request in `data`, its length in front, to compare the next ones with; None if it is of another shape.

    That is a client's, continues a session, and names one partition by its topic's id. None as well where there are no
    compiled functions. most: bytes of records in any response.
    """
    if compiled.fast is None or len(data) < _GATE_AT + _COMMON_AT or data[-len(_END) :] != _END:
        return None
    session_id, epoch, topics, _, partitions = _GATE.unpack_from(data, len(data) - _GATE_AT)
    if session_id <= 0 or epoch <= 0 or topics != _ONE or partitions != _ONE:
        return None
    decoded = decode_frame(data)
    if decoded is None:
        return None
    version, request = decoded
    if request.session_id != session_id or request.replica_id >= 0:  # a follower names itself here before version 15
        return None
    return KnownSessionFetch(data, version, request, most)
