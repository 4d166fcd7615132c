"""The compiled function for Produce requests of one shape, if it could be loaded.

Strategy: most requests of a connection have the shape of the previous request. So the connection keeps the shape of the
last parsed request. The function compares the next requests with this shape, and parses nothing.
`pylogd.broker.log.append.direct` describes what else it does, `_fast.c` how.

Rules: `request_batch` handles the requests that the function leaves; a client can't tell which of them has answered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pylogd.base.compiled import load
from pylogd.wire.fast.produce import FIRST_TOPIC_ID
from pylogd.wire.fast.request_batch import ProduceShape

fast = load("pylogd.wire.fast._fast")

_NO_TIMESTAMP = -1
#: What `_repeated.c` takes: `KnownShape.compiled`.
Compiled = tuple[Callable[..., Any], tuple[int, bytes, bytes], bool, tuple[bytes | str, int], int]


class KnownShape:
    """A shape that the next requests of a connection are compared with.

    compiled: a tuple for `_repeated.c`: the compiled function, the bytes that it compares with, whether the topic is
        named by its id, topic and index, acks.
    """

    __slots__ = ("_compared", "_module", "compiled", "shape")

    def __init__(self, shape: ProduceShape, module: Any) -> None:
        """`module` is the compiled module."""
        self.shape = shape
        self._module = module
        self._compared = (shape.version, shape.common, shape.encode_response(0, _NO_TIMESTAMP, 0))
        has_id = shape.version >= FIRST_TOPIC_ID
        key: tuple[bytes | str, int] = (shape.topic_id if has_id else shape.topic), shape.index
        self.compiled: Compiled = module.take_requests, self._compared, has_id, key, shape.acks

    def matches(self, frame: memoryview) -> bool:
        """Return whether a request, without its length, has this shape up to its records."""
        same: bool = self._module.matches(frame, self._compared)
        return same

    def requests(self, frame: memoryview, chunk: memoryview, at: int, max_bytes: int, most: int) -> partial[Any]:
        """Return the compiled function for the request in `frame`, and up to `most - 1` requests after it in `chunk`.

        at: the position of these requests in the chunk. The function finds and checks their batches, and encodes the
        bytes to write and to send: see `pylogd.broker.log.append.direct.Take`.
        max_bytes: the largest size of a request.
        """
        return partial(self._module.take_requests, frame, chunk, at, most, max_bytes, self._compared)


def known_shape(shape: ProduceShape) -> KnownShape | None:
    """Return the shape to compare the next requests with; None if there is no compiled function."""
    return None if fast is None else KnownShape(shape, fast)
