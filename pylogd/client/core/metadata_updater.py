"""Keep a client's metadata up to date: which topics to request, when, and how to apply the answers.

Strategy: a caller that needs a topic calls `want`. Known topics are refreshed every `max_age` seconds. At most one
request is in flight, for all topics that are due. Its outcome is reported to `on_topic` for each topic.

Rules: no I/O and no clock. A topic may be created by the broker only for a first `want` with `create=True`: a
refresh never brings a deleted topic back. Retriable errors (no broker answers, no leader yet) are retried after a
growing pause; until then `due` has nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call
from pylogd.client.core.errors import UnknownTopic
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import Topic
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse

#: Seconds for which some brokers may not know a new topic.
SPREADING_SECONDS = 1.0


class MetadataUpdater:
    """Refreshes topics. Times are in seconds.

    `on_topic(name, topic, error, now)` is called for each requested topic; either `topic` or `error` is None.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        max_age: float,
        timeout: float,
        backoff: Callable[[], Backoff] = Backoff,
        on_topic: Callable[[str, Topic | None, PylogdError | None, float], None],
        needed: Callable[[], Container[str]] | None = None,
    ) -> None:
        """needed: returns the topics whose metadata is to be kept fresh; None means all topics."""
        self._needed = needed
        self._metadata = metadata
        self._max_age = max_age
        self._timeout = timeout
        self._on_topic = on_topic
        self._wanted: dict[str, bool] = {}  # whether the broker may create it
        self._learned_at: dict[str, float] = {}
        self._unknown_since: dict[str, float] = {}
        self._pause = backoff()
        self._not_before = 0.0
        self._asking = False

    def want(self, topic: str, *, create: bool = False) -> None:
        """Ask for a topic as soon as possible."""
        self._wanted[topic] = self._wanted.get(topic, False) or (create and topic not in self._learned_at)

    def reset(self) -> None:
        """Drop the request in flight: no answer will arrive."""
        self._asking = False

    def due(self, missing: Iterable[str], now: float) -> list[Call]:
        """Return the request to send now, if any. `missing` are needed topics that are unknown."""
        if self._asking or now < self._not_before:
            return []
        for topic in missing:
            if topic not in self._wanted:
                self.want(topic, create=True)
        if old := [topic for topic, learned in self._learned_at.items() if learned + self._max_age <= now]:
            needed = None if self._needed is None else self._needed()
            for topic in old:
                if needed is None or topic in needed:
                    self._wanted.setdefault(topic, False)
                else:
                    del self._learned_at[topic]
        if not self._wanted:
            return []
        create = self._metadata.auto_create_topics and any(self._wanted.values())
        topics = [topic for topic, may_create in self._wanted.items() if may_create or not create]
        return [self._ask(topics, create)]

    def next_time(self, missing: bool) -> float | None:
        """Return when a request is due, unless an event comes first.

        missing: whether a needed topic is unknown.
        """
        if self._asking:
            return None
        times = [learned + self._max_age for learned in self._learned_at.values()]
        if self._wanted or missing:
            times.append(self._not_before)
        return None if not times else max(min(times), self._not_before)

    def _ask(self, topics: list[str], create: bool) -> Call:
        self._asking = True
        return Call(
            MetadataRequest,
            lambda version: self._metadata.request(topics, version, create=create),
            lambda response, now: self._answered(topics, response, now),
            lambda error, now: self._failed(topics, error, now),
            self._timeout,
        )

    def _answered(self, topics: list[str], response: MetadataResponse, now: float) -> None:
        self._asking = False
        try:
            errors = self._metadata.learn_each(response)
        except PylogdError as error:
            self._failed(topics, error, now)
            return
        waits = False
        for name in topics:
            topic, failure = self._metadata.topics.get(name), errors.get(name)
            if topic is None and failure is None:
                failure = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no answer for topic {name!r}")
            if failure is None:
                self._wanted.pop(name, None)
                self._learned_at[name] = now
                self._unknown_since.pop(name, None)
            else:
                waits, topic = True, None
                failure = self._judge(name, failure, now)
            self._on_topic(name, topic, failure, now)
        if waits:
            self._not_before = now + self._pause.next()
        else:
            self._pause.reset()

    def _judge(self, name: str, error: KafkaError, now: float) -> KafkaError:
        """Return the error to report for a topic. It is retriable while some brokers may not know a new topic yet."""
        known = self._learned_at.pop(name, None) is not None
        if isinstance(error, UnknownTopic) and not known:
            since = self._unknown_since.setdefault(name, now)
            if now - since < SPREADING_SECONDS:
                return KafkaError(error.code, error.message)
        if not error.retriable:
            self._wanted.pop(name, None)
            self._unknown_since.pop(name, None)
        return error

    def _failed(self, topics: list[str], error: PylogdError, now: float) -> None:
        self._asking = False
        self._not_before = now + self._pause.next()
        for name in topics:
            self._on_topic(name, None, error, now)
