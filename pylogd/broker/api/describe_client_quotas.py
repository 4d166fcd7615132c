"""DescribeClientQuotas (48), versions 0 and 1: the quotas of users, client ids and IP addresses.

Behaviour: an entity is described if it meets every condition. A condition asks for a part with a given name, with the
default, or with any name. Without conditions all entities are described. With `strict` an entity may have only the
parts that have conditions. A condition on IP addresses can't be combined with others, since no entity has an address
and a user. INVALID_REQUEST is the error for a part with two conditions, and for an unknown type of match;
UNSUPPORTED_VERSION for a part of another type.
Gaps: none.

Source: KIP-546, KIP-612.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.api.alter_client_quotas import PARTS, answered_place
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import fill, in_slices
from pylogd.broker.metadata.entity_configs import DEFAULT_NAME, Entity
from pylogd.broker.quotas.limits import KINDS, read_limit
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

#: The values of an entity, in the order that Kafka's hash tables give to three values: clients compare the whole
#: answer.
_VALUES = {"consumer_byte_rate": 0, "controller_mutation_rate": 1, "request_percentage": 2, "producer_byte_rate": 3}
_ENTITY_WORK = 150  # the work for an entity, as bytes of an answer whose encoding takes as long


class MatchType(IntEnum):
    """How a part of an entity is compared."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


#: Stands for the empty name. No entity has it, and it is not the name of the default; it matches quotas of no user.
_EMPTY = "\0"

#: For each part with a condition, the name that it must have, None for any.
Conditions = Mapping[str, str | None]


@handles(DescribeClientQuotasRequest, 0, 1)
def describe_client_quotas(
    context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Deferred[Any]:
    """Return the quotas of the entities that match."""
    try:
        if not context.may(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        conditions = _conditions(request.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    entries: list[EntryData] = []

    def describe(found: tuple[Entity, Mapping[str, str]]) -> EntryData | None:
        entity, configs = found
        values = [
            ValueData(name, limit)
            for name, text in sorted(configs.items(), key=lambda one: _VALUES.get(one[0], len(_VALUES)))
            if name in KINDS and (limit := read_limit(text)) is not None
        ]
        return EntryData(_parts(entity), values) if values and _matches(entity, conditions, request.strict) else None

    steps = fill(entries, list(context.broker.metadata.entity_configs.configs.items()), describe, _ENTITY_WORK)
    return in_slices(context, request.API_KEY, steps, DescribeClientQuotasResponse(error_message=None, entries=entries))


def _conditions(components: Sequence[ComponentData]) -> Conditions:
    """Return the conditions. Raises KafkaError."""
    conditions: dict[str, str | None] = {}
    for component in components:
        kind = component.entity_type
        if kind not in PARTS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST,
                f"There are no entities of type {kind[:20]!r}; use user, client-id or ip.",
            )
        if kind in conditions:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is more than one condition on {kind}.")
        conditions[kind] = _condition(component)
    if "ip" in conditions and len(conditions) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "No entity has an IP address and a user or client id.")
    return conditions


def _condition(component: ComponentData) -> str | None:
    """Return the name that a part of an entity must have, None for any. Raises KafkaError."""
    name = component.match
    if component.match_type == MatchType.EXACT and name is not None:
        return name or _EMPTY
    if component.match_type == MatchType.DEFAULT and name is None:
        return DEFAULT_NAME
    if component.match_type == MatchType.ANY and name is None:
        return None
    raise KafkaError(ErrorCode.INVALID_REQUEST, "Match a name (0), or without a name the default (1) or anything (2).")


def _matches(entity: Entity, conditions: Conditions, strict: bool) -> bool:
    for part, name in zip(PARTS, entity, strict=True):
        if part in conditions:
            if name is None or conditions[part] not in (None, name):
                return False
        elif name is not None and strict:
            return False
    return True


def _parts(entity: Entity) -> list[EntityData]:
    named = [EntityData(part, name or None) for part, name in zip(PARTS, entity, strict=True) if name is not None]
    return sorted(named, key=lambda part: answered_place(part.entity_type))
