"""The interface between the connections of a broker and the handler of their requests."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Protocol

from pylogd.link.request_memory import MemoryShare
from pylogd.wire.session import (
    BatchReply,
    DirectOutput,
    RepeatedBatch,
    RepeatReply,
    RequestReceived,
    ServerSession,
    UnsupportedRequest,
)

Event = RequestReceived | UnsupportedRequest


class Connection(Protocol):
    """A connection, as the pipeline uses it and hands it to the handler.

    last_active: when it last received bytes, in seconds.
    request_memory: a new share of the memory for large requests; None without a bound.
    """

    last_active: float
    transport: Any

    def dataReceived(self, data: bytes) -> None:
        """Take bytes from the peer."""

    @property
    def request_memory(self) -> MemoryShare | None: ...


class RequestHandler(Protocol):
    """Answers the requests of all connections.

    versions: the lowest and highest version that is served, by API key.
    overlapping: keys of APIs whose requests may start while earlier ones of the same API wait.
    batched: `API key << 16 | version` of the requests that `handle_batch` may answer.
    repeated: `API key << 16 | version` of the requests that `handle_repeated` may answer.
    """

    @property
    def versions(self) -> Mapping[int, tuple[int, int]]: ...
    @property
    def overlapping(self) -> Container[int]: ...
    @property
    def batched(self) -> Container[int]: ...
    @property
    def repeated(self) -> Container[int]: ...

    def handle(self, connection: Any, event: Event) -> Any:
        """Answer one request: return a response, a Deferred of a response, or None if the request has no reply."""

    def handle_batch(self, connection: Any, frame: memoryview, session: ServerSession, most: int) -> BatchReply:
        """Answer the request in `frame`, and up to `most - 1` later requests of the session; or leave all of them."""

    def handle_repeated(self, connection: Any, data: bytes, output: DirectOutput) -> RepeatReply | None:
        """Answer the request that `data` is, with its length, if it repeats the last one; or leave it.

        output: has nothing to send before the reply.
        """

    def handle_repeated_batch(self, connection: Any, data: bytes, session: ServerSession) -> RepeatedBatch | None:
        """Answer the first requests of `data`, which begin with their lengths, if they repeat the last batch.

        Otherwise leave them. session: has no unread bytes.
        """
