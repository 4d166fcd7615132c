"""Tell browsers of new samples by server-sent events (WHATWG's HTML standard).

Rules: the number of streams is limited. A comment every `_ALIVE_SECONDS` keeps proxies from closing a quiet stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.task import LoopingCall

from pylogd.services.console.answers import Refused
from pylogd.services.console.sampler import ClusterSampler

_MOST: Final = 200
_ALIVE_SECONDS: Final = 20.0


class EventStreams:
    """The open streams of server-sent events, one for each page that follows a cluster's samples."""

    def __init__(self, clock: Any) -> None:
        self._open: dict[Any, Callable[[], None]] = {}
        self._alive = LoopingCall(self._keep_alive)
        self._alive.clock = clock

    def start(self) -> None:
        """Send a comment to all streams from time to time, so that no proxy closes them."""
        self._alive.start(_ALIVE_SECONDS, now=False).addErrback(lambda _: None)

    def stop(self) -> None:
        """End all streams. Their browsers connect again after 5 s."""
        if self._alive.running:
            self._alive.stop()
        for request, forget in list(self._open.items()):
            forget()
            request.finish()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request: Any, sampler: ClusterSampler) -> None:
        """Answer a request with a stream. Raises Refused if there are too many."""
        if len(self._open) >= _MOST:
            raise Refused(503, "too many pages are open: close some, or reload this one later")
        request.setHeader(b"Content-Type", b"text/event-stream")
        request.setHeader(b"Cache-Control", b"no-store")
        request.setHeader(b"X-Accel-Buffering", b"no")
        request.write(b"retry: 5000\n\n")

        def tell() -> None:
            request.write(b"event: sample\ndata: %d\n\n" % sampler.last.number)

        def forget() -> None:
            sampler.listeners.discard(tell)
            self._open.pop(request, None)

        sampler.listeners.add(tell)
        self._open[request] = forget
        request.notifyFinish().addBoth(lambda _: forget())

    def _keep_alive(self) -> None:
        for request in list(self._open):
            request.write(b": alive\n\n")
