"""DeleteTopics, API key 20, versions 0-6. Deletes topics with all their records.

Generated from protocol/apis/delete_topics.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, ZERO_UUID, Message


class DeleteTopicState(Message):
    """A topic to delete."""

    __slots__ = ("name", "topic_id")

    #: The topic name; null to delete by id.
    name: str | None
    #: The topic's id; zero to delete by name.
    topic_id: bytes

    def __init__(self, name: str | None = None, topic_id: bytes = ZERO_UUID) -> None:
        self.name = name
        self.topic_id = topic_id


class DeletableTopicResult(Message):
    """The result for a topic."""

    __slots__ = ("name", "topic_id", "error_code", "error_message")

    #: The topic name; null if an unknown topic id was given.
    name: str | None
    #: The topic's id. Versions 6+.
    topic_id: bytes
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error. Versions 5+.
    error_message: str | None

    def __init__(
        self, name: str | None = "", topic_id: bytes = ZERO_UUID, error_code: int = 0, error_message: str | None = None
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.error_code = error_code
        self.error_message = error_message


class DeleteTopicsRequest(Message):
    """The request of DeleteTopics."""

    __slots__ = ("topics", "topic_names", "timeout_ms")

    API_KEY: ClassVar[int] = 20
    API_NAME: ClassVar[str] = "DeleteTopics"

    #: The topics to delete, by name or id. Versions 6+.
    topics: list[DeleteTopicState]
    #: The names of the topics to delete. Versions 0-5.
    topic_names: list[str]
    #: How many milliseconds the broker may take.
    timeout_ms: int

    def __init__(
        self, topics: list[DeleteTopicState] = UNSET, topic_names: list[str] = UNSET, timeout_ms: int = 0
    ) -> None:
        self.topics = [] if topics is UNSET else topics
        self.topic_names = [] if topic_names is UNSET else topic_names
        self.timeout_ms = timeout_ms


class DeleteTopicsResponse(Message):
    """The response of DeleteTopics."""

    __slots__ = ("throttle_time_ms", "responses")

    API_KEY: ClassVar[int] = 20
    API_NAME: ClassVar[str] = "DeleteTopics"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The result for each topic.
    responses: list[DeletableTopicResult]

    def __init__(self, throttle_time_ms: int = 0, responses: list[DeletableTopicResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = [] if responses is UNSET else responses
