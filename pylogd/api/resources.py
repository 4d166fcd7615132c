"""What settings belong to, as the three configuration APIs name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

from pylogd.api.context import RequestContext
from pylogd.errors import ErrorCode, KafkaError
from pylogd.metadata.errors import UnknownTopic
from pylogd.metadata.image import Topic, check_topic_name


class ResourceType(IntEnum):
    """Kinds of resources with settings here, with their codes."""

    TOPIC = 2
    BROKER = 4


def unsupported(resource_type: int) -> KafkaError:
    """The error for a kind of resource that has no settings here."""
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {resource_type} have no settings here; topics (2), brokers (4) do.",
    )


def topic_of(context: RequestContext, name: str) -> Topic:
    """The topic of that name. Raises InvalidTopicName, UnknownTopic."""
    check_topic_name(name)
    topic = context.broker.topics.get(name)
    if topic is None:
        raise UnknownTopic(f'there is no topic "{name}"')
    return topic


def broker_of(context: RequestContext, name: str) -> int | None:
    """This broker's id, or None where the name is empty, which stands for all brokers. Raises KafkaError."""
    if not name:
        return None
    own = context.broker.node_id
    if name != str(own):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"This is broker {own}; settings of broker {name[:20]} are its own."
        )
    return own


def repeated(resources: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those that stand more than once."""
    return {resource for resource, count in Counter(resources).items() if count > 1}
