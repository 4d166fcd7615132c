"""Which topics a client requests metadata for, and when the broker may create them."""

from __future__ import annotations

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.client.core.call import Call
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.metadata_updater import MetadataUpdater
from pylogd.client.core.model import Topic
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic


class Client:
    """A client that may create topics; `needed` are the topics that it uses."""

    def __init__(self) -> None:
        self.needed = {"a", "b"}
        self.told: list[tuple[str, bool]] = []
        metadata = Metadata([("h", 1)], auto_create_topics=True)
        self.updater = MetadataUpdater(
            metadata, max_age=300.0, timeout=30.0, on_topic=self._on_topic, needed=lambda: self.needed
        )

    def _on_topic(self, name: str, topic: Topic | None, _error: PylogdError | None, _now: float) -> None:
        self.told.append((name, topic is not None))

    def ask(self, now: float) -> tuple[Call, MetadataRequest]:
        """Return the request that is sent now."""
        [call] = self.updater.due((), now)
        request: MetadataRequest = call.build(12)
        return call, request


def found(*names: str, error: ErrorCode = ErrorCode.NONE) -> MetadataResponse:
    return MetadataResponse(topics=[MetadataResponseTopic(error, name) for name in names])


def test_only_a_first_question_may_create_a_topic() -> None:
    client = Client()
    client.updater.want("a", create=True)
    call, request = client.ask(0.0)
    assert request.allow_auto_topic_creation
    call.answered(found("a"), 0.0)
    assert not client.updater.due((), 299.0)
    call, request = client.ask(300.0)
    assert [topic.name for topic in request.topics or ()] == ["a"]
    assert not request.allow_auto_topic_creation, "a topic that was deleted meanwhile stays deleted"
    call.answered(found("a", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 300.0)
    assert client.told == [("a", True), ("a", False)]


def test_a_topic_that_nobody_uses_is_not_asked_for_again() -> None:
    client = Client()
    client.updater.want("a")
    client.updater.want("b")
    call, _ = client.ask(0.0)
    call.answered(found("a", "b"), 0.0)
    client.needed = {"b"}
    _, request = client.ask(300.0)
    assert [topic.name for topic in request.topics or ()] == ["b"]


def test_one_request_at_a_time_and_a_pause_after_an_error() -> None:
    client = Client()
    client.updater.want("a")
    call, _ = client.ask(0.0)
    client.updater.want("b")
    assert not client.updater.due((), 0.0)
    call.answered(found("a", error=ErrorCode.LEADER_NOT_AVAILABLE), 0.0)
    assert not client.updater.due((), 0.0)
    due = client.updater.next_time(missing=False)
    assert due is not None and due > 0
    _, request = client.ask(due)
    assert {topic.name for topic in request.topics or ()} == {"a", "b"}
