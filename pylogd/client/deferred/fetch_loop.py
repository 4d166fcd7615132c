"""Fetch requests under way to the leaders of some partitions, on Twisted.

Strategy: `Fetching` (`client/fetching.py`) says what to ask and keeps what comes; this opens connections, looks up
leaders, sends, and tells that something `changed`. Each broker has a connection of its own for it, since a fetch that
waits at the broker would hold up everything behind it.

Rules: nothing here waits. While something that came is not taken, nothing more is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.client.core.admin.calls import ask_topics
from pylogd.client.core.consumer.fetcher import TOPIC_IDS_FROM, Asked, Fetched, Fetching, FetchSettings, Place
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.model import TopicPartition
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.tasks import Tasks
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.net.client import BrokerConnection
from pylogd.wire.messages.fetch import FetchRequest
from pylogd.wire.values import ZERO_UUID

log = Logger()


class Fetcher:
    """Keeps fetching the partitions in `fetching.places`."""

    def __init__(
        self, cluster: Cluster, settings: FetchSettings, *, request_timeout: float, changed: Callable[[], None]
    ) -> None:
        """Nothing is fetched until there are places. `changed`: something came, or a place has an error."""
        self.fetching = Fetching(settings)
        self._cluster = cluster
        self._timeout = request_timeout + settings.max_wait_ms / 1000
        self._changed = changed
        self._connecting: set[int] = set()
        self._asking_topics = False
        self._tasks = Tasks()
        self._timer: IDelayedCall | None = None

    def close(self) -> None:
        """Ask for nothing more."""
        self._tasks.stop()
        self._stop_timer()

    def take(self) -> Fetched | None:
        """The next batches that have come, if any have. The request for what follows them is sent first."""
        fetched = self.fetching.take()
        if fetched is not None and not self.fetching.ready:
            self.send()
        return fetched

    def send(self) -> None:
        """Put a request on its way to each broker that has a place and no request under way."""
        fetching = self.fetching
        if fetching.ready or self._tasks.stopped:
            return
        now = self._cluster.seconds()
        known: list[Place] = []
        unknown: list[Place] = []
        for place in fetching.due(now):
            (known if place.partition.topic in self._cluster.metadata.topics else unknown).append(place)
        if unknown and not self._asking_topics:
            self._asking_topics = True
            self._tasks.start(self._ask_topics(unknown))
        for node, places in fetching.by_node(known, self._leader, now).items():
            if not fetching.room:
                break
            connection = self._cluster.open_connection(node, "fetch")
            if connection is not None:
                self._ask(connection, node, places)
            elif node not in self._connecting:
                self._connecting.add(node)
                self._tasks.start(self._connect(node, places))
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        self._stop_timer()
        due = self.fetching.next_time(now)
        if due is not None:
            self._timer = self._cluster.reactor.callLater(max(0.0, due - now), self.send)

    def _stop_timer(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def _leader(self, partition: TopicPartition) -> int:
        try:
            found = self._cluster.metadata.partition(partition)
        except KafkaError as error:
            self._cluster.metadata.note(error)
            raise
        if found is None:  # forgotten since
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return found.leader

    async def _ask_topics(self, places: list[Place]) -> None:
        try:
            outcome = await ask_topics(self._cluster, sorted({place.partition.topic for place in places}))
        finally:
            self._asking_topics = False
        now = self._cluster.seconds()
        for place in places:
            error = outcome[place.partition.topic]
            if error is not None and self.fetching.current(place, place.generation):
                self.fetching.fail(place, error, now)
        self.send()
        self._changed()

    async def _connect(self, node: int, places: list[Place]) -> None:
        try:
            await self._cluster.connection(node, "fetch")
        except PylogdError as error:
            self._cluster.metadata.note(error)
            now = self._cluster.seconds()
            for place in places:
                if self.fetching.current(place, place.generation):
                    self.fetching.fail(place, error, now)
        finally:
            self._connecting.discard(node)
        self.send()
        self._changed()

    def _ask(self, connection: BrokerConnection, node: int, places: list[Place]) -> None:
        topics = self._cluster.metadata.topics
        ids = {name: topics[name].topic_id for name in {place.partition.topic for place in places} if name in topics}
        places = [place for place in places if place.partition.topic in ids]
        if not places:
            return
        try:
            version = connection.version_for(FetchRequest, TOPIC_IDS_FROM - 1 if ZERO_UUID in ids.values() else None)
        except PylogdError as error:
            now = self._cluster.seconds()
            for place in places:
                self.fetching.fail(place, error, now)
            return
        request, asked = self.fetching.ask(node, places, version, ids)
        reply = connection.request(request, version=version, timeout=self._timeout)
        reply.addBoth(self._landed, asked).addErrback(lambda failure: log.failure("a fetch failed", failure))

    def _landed(self, result: Any, asked: Asked) -> None:
        now = self._cluster.seconds()
        if isinstance(result, Failure):
            error = result.value if isinstance(result.value, PylogdError) else BrokerUnavailable(repr(result.value))
            self._cluster.metadata.note(error)
            self.fetching.failed(asked, error, now)
        else:
            self.fetching.answered(asked, result, now)
        for place in self.fetching.places.values():
            if place.error is not None:
                self._cluster.metadata.note(place.error)
        self.send()
        self._changed()
