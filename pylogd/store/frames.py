"""The frames in which one process serves its metadata store to others: `server` and `remote`.

A frame is the length of a JSON header (4 bytes, big-endian), the header, and then the data of nodes, whose sizes are in
the header's `sizes`. So data is neither encoded nor searched. Each frame is preceded by the length of
`Int32StringReceiver`. Both ends have the same release, machine and user, so there are no versions.

From the client, `hello` begins a session and `end` ends it, and `ping` shows that the client is alive. `get`,
`get_many`, `exists`, `children`, `children_data`, `ensure` and `multi` are the calls of `IMetadataStore`. Each has an
`id`, which its answer repeats. The server also sends events of watches. Each has as `watch` the `id` of the call that
set the watch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from twisted.logger import Logger
from twisted.protocols.basic import Int32StringReceiver
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure

from pylogd.store.errors import NodeError, StoreClosed, StoreError, StoreFailure
from pylogd.store.interfaces import Check, Create, Delete, Node, NodeStat, Operation, SetData

log = Logger()

#: The most bytes of a frame: the settings and states of all topics may be read at once.
MAX_FRAME_BYTES: Final = 1 << 28
_LENGTH_BYTES: Final = 4
_ERRORS: Final = {cls.__name__: cls for cls in (*NodeError.__subclasses__(), NodeError)}
_FAILURES: Final = {cls.__name__: cls for cls in (StoreClosed, StoreFailure)}


def encode(header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """Return a frame.

    header: a dict of values that JSON can express.
    blobs: the data of nodes.
    """
    text = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}, separators=(",", ":")).encode()
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "big"), text, *blobs))


def decode(frame: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the data of a frame. Raises ValueError if it is malformed."""
    end = _LENGTH_BYTES + int.from_bytes(frame[:_LENGTH_BYTES], "big")
    header = json.loads(frame[_LENGTH_BYTES:end])
    if not isinstance(header, dict):
        raise ValueError("a frame's header is an object")
    blobs = []
    for size in header.get("sizes", ()):
        blobs.append(frame[end : end + size])
        end += size
    if end != len(frame):
        raise ValueError(f"the frame has {len(frame)} bytes, and its header tells of {end}")
    return header, blobs


def encode_operations(operations: Sequence[Operation]) -> tuple[list[list[Any]], list[bytes]]:
    """Return operations as lists, and the data of operations that write a node."""
    words: list[list[Any]] = []
    blobs = []
    for one in operations:
        if isinstance(one, Create):
            words.append(["create", one.path, one.ephemeral, one.sequence])
            blobs.append(one.data)
        elif isinstance(one, SetData):
            words.append(["set", one.path, one.version])
            blobs.append(one.data)
        else:
            words.append(["delete" if isinstance(one, Delete) else "check", one.path, one.version])
    return words, blobs


def decode_operations(words: Sequence[Sequence[Any]], blobs: Sequence[bytes]) -> list[Operation]:
    """Return the operations of `encode_operations`. Raises ValueError for invalid ones."""
    data = iter(blobs)
    return [_decode_operation(*word, data=data) for word in words]


def _decode_operation(kind: str, path: str, *rest: Any, data: Any) -> Operation:
    if kind == "create":
        ephemeral, sequence = rest
        return Create(path, next(data), bool(ephemeral), bool(sequence))
    (version,) = rest
    if kind == "set":
        return SetData(path, next(data), int(version))
    if kind == "delete":
        return Delete(path, int(version))
    if kind == "check":
        return Check(path, int(version))
    raise ValueError(f"unknown operation {kind!r}")


def stat_words(stat: NodeStat) -> list[int]:
    """Return a node's metadata as a list."""
    return [stat.version, stat.created, stat.modified, stat.owner]


def make_node(data: bytes, words: Sequence[int]) -> Node:
    """Return a node from its data and the list of `stat_words`."""
    return Node(data, NodeStat(*words))


def encode_error(failure: Failure) -> dict[str, Any]:
    """Return the header fields that describe an error."""
    error = failure.value
    if isinstance(error, NodeError):
        return {"error": type(error).__name__, "path": error.path, "operation": error.operation}
    return {"error": type(error).__name__, "text": str(error)}


def decode_error(header: Mapping[str, Any]) -> StoreError | None:
    """Return the error of an answer, or None if it has none. An unknown error becomes a `StoreFailure`."""
    name = header.get("error")
    if name is None:
        return None
    error: StoreError
    if name in _ERRORS:
        error = _ERRORS[name](header["path"], header["operation"])
    else:
        error = _FAILURES.get(name, StoreFailure)(header["text"])
    return error


class FramedConnection(Int32StringReceiver, TimeoutMixin):
    """One end of a connection. Subclasses handle frames in `handle`, and a silent peer in `timeoutConnection`."""

    MAX_LENGTH = MAX_FRAME_BYTES
    #: The name of the other end in the log.
    peer: ClassVar[str]

    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def callLater(self, period: float, func: Any) -> Any:
        """Let the timeout use the clock."""
        return self.clock.callLater(period, func)

    def handle(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Handle a frame. It may raise KeyError, TypeError or ValueError for an invalid one."""
        raise NotImplementedError

    def stringReceived(self, string: bytes) -> None:
        """Handle a frame. Disconnect an end that sends invalid frames."""
        self.resetTimeout()  # type: ignore[no-untyped-call]
        try:
            self.handle(*decode(string))
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            self._refuse(f"what it sent is not a frame: {error!r}")

    def lengthLimitExceeded(self, length: int) -> None:
        """Disconnect an end whose frame is too long."""
        self._refuse(f"it announced a frame of {length} bytes, of at most {MAX_FRAME_BYTES}")

    def expect_frames(self, seconds: float | None) -> None:
        """Call `timeoutConnection` when no bytes have arrived for `seconds` seconds; None turns this off."""
        self.setTimeout(seconds)  # type: ignore[no-untyped-call]

    def send(self, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Send a frame."""
        self.sendString(encode(header, blobs))  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abortConnection()  # type: ignore[union-attr]

    def _refuse(self, reason: str) -> None:
        log.error("Disconnecting {peer}: {reason}", peer=self.peer, reason=reason)
        self.abort()
