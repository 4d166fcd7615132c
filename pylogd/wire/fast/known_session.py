"""Fetch requests that continue a session (KIP-227) and name one partition or none, compared with an earlier one.

Strategy: as in `known_fetch`, a request is decoded once, by the codec in `fetch`. The next requests have the same bytes
up to the session's epoch, except for length and correlation id. The rest has one of two sizes; `struct` reads it at
once.

Rules: requests of another shape are left to the codecs, and are not decoded here.
`tests/property/test_session_fetches.py` proves that a client can't tell the difference.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from pylogd.wire.fast import compiled
from pylogd.wire.fast.known_fetch import decode_frame
from pylogd.wire.messages.fetch import FetchRequest

_HEAD, _KIND, _COMMON_AT = slice(0, 8), slice(4, 8), 12  # length, API key and version, then the correlation id
# session epoch, topics + 1, topic id, partitions + 1, then the fields of `FetchPartition` and the end of the request
_REST = struct.Struct(">iB16sBiiqiqi5s")
_INT32 = struct.Struct(">i")
_ONE = 2  # the varint for a list with one element
_END = b"\0\0\1\1\0"  # no tagged fields of partition and topic, no forgotten topics, no rack, no tags
_NONE = b"\1\1\1\0"  # no topics, no forgotten topics, no rack, no tagged fields
_WITHOUT = _REST.size - _INT32.size - len(_NONE)  # the bytes that a request without a partition lacks
#: Session id and epoch, topics + 1, topic id, partitions + 1, from the end. Requests with other values are not decoded.
_GATE = struct.Struct(">iiB16sB")
_GATE_AT = _REST.size + 4
_READ_COMMITTED = 1
_LENGTH = 4  # the bytes of the length before a request

#: A request of a fetch session that names one partition, as `_REST` reads it. The fields in their order are: session
#: epoch, number of topics + 1, topic id, number of partitions + 1, partition index, leader epoch, fetch offset, last
#: fetched epoch, log start offset, maximum bytes, and the bytes at the end of the request.
_Rest: TypeAlias = "tuple[int, int, bytes, int, int, int, int, int, int, int, bytes]"
#: A request of a fetch session: the fields of `_Rest` if it names a partition, only the session epoch if it names none.
Named: TypeAlias = "_Rest | tuple[int]"


class KnownSessionFetch:
    """A request of a session, with which the next requests of its connection are compared.

    view: version, replica id, isolation level and rack, on which the answers depend.
    max_bytes: the most bytes of records.
    least: the fewest bytes that are answered at once.
    wait_seconds: how long the client waits for this many bytes.
    """

    __slots__ = (
        "_common", "_common_at", "_heads", "_rest_at", "_size", "committed", "least", "max_bytes", "session_id", "view",
        "wait_seconds",
    )  # fmt: skip

    #: See `KnownFetch`. None, since `_repeated.c` leaves these requests to Python.
    compiled = None

    def __init__(self, data: bytes, version: int, request: FetchRequest, most: int) -> None:
        """`request` was decoded from `data` by `decode_session_fetch`. `most` is the most bytes of records in a
        response.
        """
        self._size, self._rest_at, kind = len(data), len(data) - _REST.size, data[_KIND]
        #: The first bytes of requests of the two sizes.
        self._heads = {size: _INT32.pack(size - _LENGTH) + kind for size in (self._size, self._size - _WITHOUT)}
        self._common_at = slice(_COMMON_AT, self._rest_at)
        self._common = data[self._common_at]
        self.session_id = request.session_id
        self.committed = request.isolation_level == _READ_COMMITTED
        self.view = version, -1, request.isolation_level, ""
        self.max_bytes = min(request.max_bytes, most)
        self.least = min(request.min_bytes, self.max_bytes)
        self.wait_seconds = request.max_wait_ms / 1000

    def has_size_of(self, data: bytes) -> bool:
        """Return whether `data` has the size of a request of this shape, or of one that names no partition."""
        return len(data) in self._heads

    def is_like(self, data: bytes) -> bool:
        """Return whether `data`, which has one of the two sizes, has the same bytes up to the session's epoch."""
        return data[_HEAD] == self._heads[len(data)] and data[self._common_at] == self._common

    def named_in(self, data: bytes) -> Named | None:
        """Return the fields of the session and of at most one partition from the request in `data`.

        Return None if the request names several partitions, or differs from the known request in anything else.
        """
        size = len(data)
        if data[_HEAD] != self._heads.get(size) or data[self._common_at] != self._common:
            return None
        if size != self._size:
            return _INT32.unpack_from(data, self._rest_at) if data.endswith(_NONE) else None
        named: _Rest = _REST.unpack_from(data, self._rest_at)
        return named if named[1] == _ONE and named[3] == _ONE and named[10] == _END else None


def decode_session_fetch(data: bytes, most: int) -> KnownSessionFetch | None:
    """Return the request in `data`, which begins with its length, to compare the next ones with; None for another
    shape.

    The shape is a client's request that continues a session and names one partition by its topic's id. Without compiled
    functions, None is returned always.

    most: the most bytes of records in any response.
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
