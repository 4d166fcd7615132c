"""AlterClientQuotas (49), versions 0 and 1: set and remove quotas of users, client ids and IP addresses.

Behaviour: each entity is changed or refused separately, and is answered once this broker applies the change; all other
brokers apply it within moments. An entity is a user, a client id, both, or an IP address. A null name means the
default, for all that have no quota of their own. Byte rates and connection rates are whole numbers; all values are
greater than 0. INVALID_REQUEST is the error for an unknown quota, an invalid value, an entity with other parts, and an
entity that is named twice. Removing a quota that is not set is no error. `validate_only` makes all checks and changes
nothing. An answer names the parts of an entity in Kafka's order, not in the request's: see `answered_place`.
Gaps: host names are refused, since looking them up would hold up other requests; Kafka accepts them as well as IP
addresses.

Source: KIP-546, KIP-612.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.metadata.entity_configs import DEFAULT_NAME, Entity
from pylogd.broker.quotas.limits import KINDS, write_limit
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityResult,
    EntryData,
    EntryResult,
    OpData,
)

#: The parts of an entity, in the order of `Entity`.
PARTS = ("user", "client-id", "ip")
#: The same parts in the order of answers.
_ANSWERED = ("client-id", "user", "ip")


@handles(AlterClientQuotasRequest, 0, 1)
def alter_client_quotas(
    context: RequestContext, request: AlterClientQuotasRequest
) -> Deferred[AlterClientQuotasResponse]:
    """Change the quotas of every entity."""
    return Deferred.fromCoroutine(_alter_all(context, request))


async def _alter_all(context: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    may = context.may(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    named = Counter(_name(entry) for entry in request.entries)
    results = []
    pace = Pace(context)
    for entry in request.entries:
        await pace.step()
        code, message = ErrorCode.NONE, None
        try:
            if not may:
                raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            if named[_name(entry)] > 1:
                raise _invalid("The request names the entity more than once.")
            entity = entity_of([(part.entity_type, part.entity_name) for part in entry.entity])
            changes = _changes(entity, entry.ops)
            if not request.validate_only:
                await context.broker.metadata.entity_configs.alter(entity, changes)
        except PylogdError as error:
            code, message = explain(error)
        ordered = sorted(entry.entity, key=lambda part: answered_place(part.entity_type))
        parts = [EntityResult(part.entity_type, part.entity_name) for part in ordered]
        results.append(EntryResult(code, message, parts))
    return AlterClientQuotasResponse(entries=results)


def answered_place(kind: str) -> int:
    """Return the position of a part of this type among the parts of an entity in answers.

    The client id is before the user, as in Kafka's answers, since clients compare whole answers. Unknown types are
    last.
    """
    return (*_ANSWERED, kind).index(kind)


def entity_of(parts: Sequence[tuple[str, str | None]]) -> Entity:
    """Return the entity with these parts. Each part is a type and a name, None for the default. Raises KafkaError."""
    found: dict[str, Any] = {}
    for kind, name in parts:
        if kind not in PARTS:
            raise _invalid(f"There are no entities of type {kind[:20]!r}; use user, client-id or ip.")
        if name == "":
            raise _invalid(f"The {kind} is empty; null is the default.")
        found[kind] = DEFAULT_NAME if name is None else name
    if not found or ("ip" in found and len(found) > 1):
        raise _invalid("An entity is a user, a client id, both, or an IP address.")
    entity = Entity(*(found.get(part) for part in PARTS))
    if entity.ip:
        try:
            return Entity(ip=str(ipaddress.ip_address(entity.ip)))
        except ValueError:
            raise _invalid(f"{entity.ip[:50]!r} is not an IP address.") from None
    return entity


def _changes(entity: Entity, operations: Sequence[OpData]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for operation in operations:
        kind = KINDS.get(operation.key)
        if kind is None and operation.remove:
            continue  # no entity has this type; Kafka does the same
        if kind is None or kind.of_address != (entity.ip is not None):
            known = ", ".join(name for name, one in KINDS.items() if one.of_address == (entity.ip is not None))
            raise _invalid(f"{operation.key[:50]!r} is not a quota of such an entity; use {known}.")
        if operation.key in changes:
            raise _invalid(f"{operation.key} is changed more than once.")
        try:
            changes[operation.key] = None if operation.remove else write_limit(kind, operation.value)
        except ValueError as error:
            raise _invalid(f"{error}.") from None
    return changes


def _name(entry: EntryData) -> tuple[tuple[str, str | None], ...]:
    parts = ((part.entity_type, part.entity_name) for part in entry.entity)
    return tuple(sorted(parts, key=lambda part: part[0]))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
