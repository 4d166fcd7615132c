"""The resources of the configuration APIs: topics, brokers, groups, and subscriptions to metrics of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, Protocol, TypeVar

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.limits.names import MAX_GROUP_ID, MAX_SUBSCRIPTION_NAME
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.slices import Pace
from pylogd.broker.metadata.errors import InvalidConfig, UnknownTopic
from pylogd.broker.metadata.image import Topic, check_topic_name
from pylogd.broker.security.authorizer import AclOperation
from pylogd.config import ConfigError
from pylogd.config.client_metrics import ImpossibleSubscription


class Resource(Protocol):
    """The fields that the resources of the three requests have in common."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)


class ResourceType(IntEnum):
    """The types of resources that have settings, by their codes."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


#: The types whose permissions are those of the cluster.
_OF_CLUSTER: Final = (ResourceType.BROKER, ResourceType.CLIENT_METRICS)


def unsupported(resource_type: int) -> KafkaError:
    """Return the error for a type of resource without settings."""
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {resource_type} have no settings; use topics (2), brokers (4), client "
        "metrics (16) or groups (32).",
    )


@contextmanager
def as_invalid_request() -> Iterator[None]:
    """Turn an invalid setting of brokers into INVALID_REQUEST, Kafka's code for it (KAFKA-13609)."""
    try:
        yield
    except (ConfigError, InvalidConfig) as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def check_authorized(context: RequestContext, operation: AclOperation, resource: Resource) -> None:
    """Raise KafkaError unless the client may do `operation` to a topic or a group; for other types, to the cluster.

    To settings of internal topics only clients with ALTER on the cluster have access. A type without settings is
    refused for all clients; see `unsupported`.
    """
    if resource.resource_type == ResourceType.TOPIC:
        reads = operation is AclOperation.DESCRIBE_CONFIGS
        may = context.may_use_topic if reads else context.may_change_topic
        if not may(operation, resource.resource_name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    elif resource.resource_type == ResourceType.GROUP:
        if not context.may_use_group(operation, resource.resource_name):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif resource.resource_type in _OF_CLUSTER and not context.may_use_cluster(operation):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def topic_of(context: RequestContext, name: str) -> Topic:
    """Return the topic with this name. Raises InvalidTopicName, UnknownTopic."""
    check_topic_name(name)
    topic = context.broker.topics.get(name)
    if topic is None:
        raise UnknownTopic(f'there is no topic "{name}"')
    return topic


def broker_of(context: RequestContext, name: str) -> int | None:
    """Return this broker's id, or None for the empty name, which means all. Raises KafkaError for other brokers."""
    if not name:
        return None
    own = context.broker.cluster.node_id
    if name != str(own):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"This is broker {own}; ask broker {name[:20]} for its settings.",
        )
    return own


def group_of(name: str) -> str:
    """Check and return the name of a group. Raises KafkaError."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Groups have no common settings: name a group.")
    if len(name) > MAX_GROUP_ID:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"A group's name has at most {MAX_GROUP_ID} characters.")
    return name


def subscription_of(name: str) -> str:
    """Check and return the name of a subscription to metrics of clients. Raises KafkaError."""
    if not 0 < len(name) <= MAX_SUBSCRIPTION_NAME:
        text = f"The name of a subscription has 1 to {MAX_SUBSCRIPTION_NAME} characters."
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    return name


async def alter_one(
    context: RequestContext,
    resource: Resource,
    alter_topic: Callable[[str], Awaitable[object]],
    alter_broker: Callable[[int | None], Awaitable[object]],
    alter_group: Callable[[str], Awaitable[object]],
    alter_subscription: Callable[[str], Awaitable[object]],
) -> None:
    """Change the settings of a topic, group or subscription, by its name, or of a broker, by its id or None for all.

    Raises KafkaError for resources of other types, and the errors of the functions.
    """
    if resource.resource_type == ResourceType.TOPIC:
        topic = topic_of(context, resource.resource_name)
        await alter_topic(topic.name)
        await context.broker.hosting.settled(topic.name)
    elif resource.resource_type == ResourceType.BROKER:
        whose = broker_of(context, resource.resource_name)
        with as_invalid_request():
            await alter_broker(whose)
        await context.broker.cluster.own.labels_settled()  # so that the next request finds what this one has set
    elif resource.resource_type == ResourceType.GROUP:
        await alter_group(group_of(resource.resource_name))
    elif resource.resource_type == ResourceType.CLIENT_METRICS:
        name = subscription_of(resource.resource_name)
        try:
            await alter_subscription(name)
        except InvalidConfig as error:
            if isinstance(error.__cause__, ImpossibleSubscription):
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
            raise
    else:
        raise unsupported(resource.resource_type)


async def alter_each(
    context: RequestContext, resources: Sequence[R], alter: Callable[[R], Awaitable[None]]
) -> list[tuple[ErrorCode, str | None, int, str]]:
    """Change the resources in order. Return error code, text, type and name of each.

    If a resource is named more than once, each mention gets INVALID_REQUEST.
    """
    count = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    answers: list[tuple[ErrorCode, str | None, int, str]] = []
    pace = Pace(context)
    for resource in resources:
        await pace.step()
        key = resource.resource_type, resource.resource_name
        try:
            if count[key] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names the resource more than once.")
            await alter(resource)
        except PylogdError as error:
            answers.append((*explain(error), *key))
        else:
            answers.append((ErrorCode.NONE, None, *key))
    return answers
