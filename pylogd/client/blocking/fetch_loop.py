"""Fetch requests under way to the leaders of some partitions, on blocking sockets.

Strategy: `Fetching` says what to ask and keeps what comes; this sends and waits. Each broker has a connection of its
own for it, since a fetch that waits at the broker would hold up everything behind it.

Rules: nothing here waits but `receive`, and the making of connections and the look-up of leaders in `send`. One thread
at a time; `wakeup` may be set from any.
"""

from __future__ import annotations

import select
from dataclasses import dataclass

from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.connection import Connection, Reply
from pylogd.client.blocking.wakeup import Wakeup
from pylogd.client.core.consumer.fetcher import TOPIC_IDS_FROM, Asked, Fetched, Fetching, FetchSettings, Place
from pylogd.client.core.model import TopicPartition
from pylogd.errors import PylogdError
from pylogd.wire.messages.fetch import FetchRequest
from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True, eq=False)
class _Flying:
    """A fetch request under way."""

    connection: Connection
    reply: Reply
    asked: Asked


class Fetcher:
    """Keeps fetching the partitions in `fetching.places`."""

    def __init__(self, cluster: Cluster, settings: FetchSettings, *, request_timeout: float) -> None:
        """Nothing is fetched until there are places."""
        self.fetching = Fetching(settings)
        self.wakeup = Wakeup()
        self._cluster = cluster
        self._timeout = request_timeout + settings.max_wait_ms / 1000
        self._flying: list[_Flying] = []

    def close(self) -> None:
        """Wait no more."""
        self.wakeup.close()

    def take(self) -> Fetched | None:
        """The next batches that have come, if any have. The request for what follows them is sent first."""
        fetched = self.fetching.take()
        if fetched is not None and not self.fetching.ready:
            self.send()
        return fetched

    def send(self) -> None:
        """Put a request on its way to each broker that has a place and no request under way."""
        fetching = self.fetching
        if fetching.ready:
            return
        now = self._cluster.clock.monotonic()
        for node, places in fetching.by_node(fetching.due(now), self._leader, now).items():
            if not fetching.room:
                return
            try:
                self._ask(node, places, now)
            except PylogdError as error:
                self._cluster.note(error)
                for place in places:
                    fetching.fail(place, error, now)

    def _leader(self, partition: TopicPartition) -> int:
        try:
            return self._cluster.leader(partition).leader
        except PylogdError as error:
            self._cluster.note(error)
            raise

    def _ask(self, node: int, places: list[Place], now: float) -> None:
        connection = self._cluster.connection(node, "fetch")
        ids = {name: self._cluster.try_topic(name).topic_id for name in {place.partition.topic for place in places}}
        version = connection.version_for(FetchRequest, TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None)
        request, asked = self.fetching.ask(node, places, version, ids)
        try:
            reply = connection.send(request, version=version, timeout=self._timeout)
        except PylogdError as error:
            self._cluster.note(error)
            self.fetching.failed(asked, error, now)
        else:
            self._flying.append(_Flying(connection, reply, asked))

    def receive(self, timeout: float) -> None:
        """Take in the replies that have come; if there is nothing to take, wait up to `timeout` seconds for some, or
        for `wakeup`.
        """
        if not self.fetching.ready and timeout > 0:
            self._wait(timeout)
        for flying in self._flying:
            flying.connection.poll()
        landed = [flying for flying in self._flying if flying.reply.done]
        if not landed:
            return
        self._flying = [flying for flying in self._flying if not flying.reply.done]
        now = self._cluster.clock.monotonic()
        for flying in landed:
            if flying.reply.error is not None:
                self._cluster.note(flying.reply.error)
                self.fetching.failed(flying.asked, flying.reply.error, now)
            else:
                self.fetching.answered(flying.asked, flying.reply.response, now)
        for place in self.fetching.places.values():
            if place.error is not None:
                self._cluster.note(place.error)

    def _wait(self, timeout: float) -> None:
        now = self._cluster.clock.monotonic()
        due = self.fetching.next_time(now)
        if due is not None:
            timeout = min(timeout, due - now)
        if not self._flying:
            self._cluster.clock.wait(self.wakeup, timeout)
            self.wakeup.clear()
            return
        poll = select.poll()
        poll.register(self.wakeup, select.POLLIN)
        for flying in self._flying:
            if flying.connection.closed or flying.reply.done:
                return
            poll.register(flying.connection, select.POLLIN)
            timeout = min(timeout, flying.reply.deadline - now)
        poll.poll(max(0.0, timeout) * 1000 + 1)
        self.wakeup.clear()
