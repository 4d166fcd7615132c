"""DeleteTopics, API key 20, versions 0-6. Deletes topics with all their records.

Generated from protocol/apis/delete_topics.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pylogd.wire.values import ZERO_UUID


@dataclass(slots=True)
class DeleteTopicState:
    """A topic to delete."""

    #: The topic name; null to delete by id.
    name: str | None = None
    #: The topic's id; zero to delete by name.
    topic_id: bytes = ZERO_UUID


@dataclass(slots=True)
class DeletableTopicResult:
    """What became of a topic."""

    #: The topic name; null if an unknown topic id was given.
    name: str | None = ""
    #: The topic's id. Versions 6+.
    topic_id: bytes = ZERO_UUID
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did. Versions 5+.
    error_message: str | None = None


@dataclass(slots=True)
class DeleteTopicsRequest:
    """The request of DeleteTopics."""

    API_KEY: ClassVar[int] = 20
    API_NAME: ClassVar[str] = "DeleteTopics"

    #: The topics to delete, by name or id. Versions 6+.
    topics: list[DeleteTopicState] = field(default_factory=list)
    #: The names of the topics to delete. Versions 0-5.
    topic_names: list[str] = field(default_factory=list)
    #: How many milliseconds the broker may take.
    timeout_ms: int = 0


@dataclass(slots=True)
class DeleteTopicsResponse:
    """The response of DeleteTopics."""

    API_KEY: ClassVar[int] = 20
    API_NAME: ClassVar[str] = "DeleteTopics"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int = 0
    #: What became of each topic.
    responses: list[DeletableTopicResult] = field(default_factory=list)
