"""What settings belong to, as the three configuration APIs name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Protocol, TypeVar

from pylogd.api.context import RequestContext
from pylogd.api.errors import explain
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.metadata.errors import UnknownTopic
from pylogd.metadata.image import Topic, check_topic_name


class Resource(Protocol):
    """What is common to the resources of the requests."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)


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


async def alter_each(
    resources: Sequence[R], alter: Callable[[R], Awaitable[None]]
) -> list[tuple[ErrorCode, str | None, int, str]]:
    """Change one resource after the other: error code, text, type and name of each, as the answers begin.

    One that stands more than once is INVALID_REQUEST each time.
    """
    count = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    answers: list[tuple[ErrorCode, str | None, int, str]] = []
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        try:
            if count[key] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The resource stands more than once in the request.")
            await alter(resource)
        except PylogdError as error:
            answers.append((*explain(error), *key))
        else:
            answers.append((ErrorCode.NONE, None, *key))
    return answers
