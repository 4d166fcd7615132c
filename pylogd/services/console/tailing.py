"""Send new messages to browsers, as server-sent events from a consumer without a group.

Rules: tails are limited in number, time and messages per second; messages beyond the rate are left out, and counted. No
messages are read while the browser does not accept data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.base.errors import PylogdError
from pylogd.client.core.model import TopicPartition
from pylogd.services.console.answers import Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.reading import Message, Messages, Wanted

log = Logger()

_MOST: Final = 20
_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 1.0
_AT_ONCE: Final = 25
_PAUSE_SECONDS: Final = 0.5


class Tails:
    """The open tails: browsers that follow a topic's new messages."""

    def __init__(self, reactor: Any, messages: Messages) -> None:
        self._reactor = reactor
        self._messages = messages
        self._open: set[_Tail] = set()

    def open(
        self, request: Any, cluster: WatchedCluster, wanted: Wanted, places: Sequence[TopicPartition],
        render: Callable[[Message], bytes],
    ) -> None:  # fmt: skip
        """Answer a request with messages.

        render: returns the HTML of a message.

        Raises Refused if there are too many.
        """
        if len(self._open) >= _MOST:
            raise Refused(503, "too many pages follow topics: close some")
        tail = _Tail(self._reactor, self._messages, request)
        self._open.add(tail)
        tail.start(cluster, wanted, places, render).addBoth(lambda _: self._open.discard(tail))

    def stop(self) -> None:
        """End all tails, and close their consumers."""
        for tail in list(self._open):
            tail.stop()


@implementer(IPushProducer)
class _Tail:
    """One tail: a consumer, and the push producer of the browser's connection."""

    def __init__(self, reactor: Any, messages: Messages, request: Any) -> None:
        self._reactor = reactor
        self._messages = messages
        self._request = request
        self._work: Deferred[None] | None = None
        self._resumed: Deferred[None] | None = None

    def start(self, *arguments: Any) -> Deferred[None]:
        """Send messages until the time is up or the browser leaves. The Deferred fires when the tail has ended."""
        request = self._request
        request.setHeader(b"Content-Type", b"text/event-stream")
        request.setHeader(b"Cache-Control", b"no-store")
        request.setHeader(b"X-Accel-Buffering", b"no")
        request.write(b"retry: 60000\n\n")
        request.registerProducer(self, True)
        work = self._work = Deferred.fromCoroutine(self._run(*arguments))
        request.notifyFinish().addErrback(lambda _: self.stop())
        return work.addErrback(self._failed).addBoth(lambda _: self._end())

    def stop(self) -> None:
        """End the tail, and close its consumer. Has no effect before `start`."""
        if self._work is not None:
            self._work.cancel()

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            return
        if not failure.check(PylogdError):
            log.failure("Unexpected error while a topic was followed", failure)
        self._send("problem", failure.getErrorMessage().encode())

    def _end(self) -> None:
        if not self._request._disconnected:
            self._send("end", b"")
            self._request.unregisterProducer()
            self._request.finish()

    def _send(self, name: str, body: bytes) -> None:
        if not self._request._disconnected:
            lines = b"".join(b"data: " + line + b"\n" for line in body.splitlines() or [b""])
            self._request.write(b"event: " + name.encode() + b"\n" + lines + b"\n")

    async def _run(
        self, cluster: WatchedCluster, wanted: Wanted, places: Sequence[TopicPartition],
        render: Callable[[Message], bytes],
    ) -> None:  # fmt: skip
        consumer = self._messages.consumer(cluster.cluster)
        until = self._reactor.seconds() + _SECONDS
        try:
            await consumer.assign(await consumer.end_offsets(places))
            while self._reactor.seconds() < until:
                if self._resumed is not None:
                    await self._resumed
                records = await consumer.poll(_POLL_SECONDS)
                shown = await self._messages.shown(cluster.decoder, wanted, records[-20 * _AT_ONCE :])
                if shown:
                    self._send("message", b"".join(render(one) for one in reversed(shown[-_AT_ONCE:])))
                left_out = len(shown) - _AT_ONCE
                if left_out > 0:
                    self._send("skipped", b"%d messages left out: they came too fast" % left_out)
                await deferLater(self._reactor, _PAUSE_SECONDS, lambda: None)
        finally:
            await consumer.close()

    def pauseProducing(self) -> None:
        """Stop polling until `resumeProducing`: the browser does not accept more data."""
        if self._resumed is None:
            self._resumed = Deferred()

    def resumeProducing(self) -> None:
        """Poll again: the browser accepts data."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.callback(None)

    def stopProducing(self) -> None:
        """End the tail: the browser has closed its connection."""
        self.stop()
