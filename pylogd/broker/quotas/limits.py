"""The kinds of quotas, and which quota applies to a client: the eight levels of precedence.

Rules: the first level that has a quota decides. All clients of a user share a quota of the user; all connections with a
client id share a quota of the client id; a quota of a user's client id belongs to that pair. Each kind is looked up
separately: a pair that has only a quota for producing falls back to other levels for consuming.

Source: KIP-13, KIP-55; Kafka's ClientQuotaManager.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from pylogd.broker.metadata.entity_configs import DEFAULT_NAME, Entity


class QuotaKind(Enum):
    """The kinds of quotas; the values are the names of the settings."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"

    @property
    def of_address(self) -> bool:
        """Whether the quota belongs to an IP address. The others belong to users and client ids."""
        return self is QuotaKind.CONNECTION

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return self in _WHOLE


_WHOLE = (QuotaKind.PRODUCE, QuotaKind.FETCH, QuotaKind.CONNECTION)
KINDS: Mapping[str, QuotaKind] = {kind.value: kind for kind in QuotaKind}
#: How far a value may be from a whole number, since the protocol has only floating-point numbers.
_EPSILON = 1e-6
_LONG_MAX = (1 << 63) - 1


def levels(user: str, client_id: str) -> Iterator[tuple[Entity, Entity]]:
    """Iterate over the entities that may have a quota for a client, the most specific first.

    The second of each pair is the entity whose use is counted.
    """
    both, of_user, of_client = Entity(user, client_id), Entity(user), Entity(client_id=client_id)
    yield both, both
    yield Entity(user, DEFAULT_NAME), both
    yield of_user, of_user
    yield Entity(DEFAULT_NAME, client_id), both
    yield Entity(DEFAULT_NAME, DEFAULT_NAME), both
    yield Entity(DEFAULT_NAME), of_user
    yield of_client, of_client
    yield Entity(client_id=DEFAULT_NAME), of_client


@dataclass(slots=True)
class QuotaTable:
    """The quotas of one kind, by entity.

    per_client_id: the quota of client ids without a quota at any other level; None for no limit.
    """

    limits: dict[Entity, float] = field(default_factory=dict)
    per_client_id: float | None = None

    def __bool__(self) -> bool:
        """Whether any client may have a quota."""
        return bool(self.limits) or self.per_client_id is not None

    def find(self, user: str, client_id: str) -> tuple[Entity, float] | None:
        """Return the entity whose use is counted, and its quota; None for a client without a limit."""
        for entity, counted in levels(user, client_id):
            limit = self.limits.get(entity)
            if limit is not None:
                return counted, limit
        return None if self.per_client_id is None else (Entity(client_id=client_id), self.per_client_id)

    def limit_of(self, counted: Entity) -> float | None:
        """Return the quota of an entity that `find` or `of_address` returned; None for no limit."""
        if counted.ip is not None:
            return self.of_address(counted.ip)
        for entity, of in levels(counted.user or "", counted.client_id or ""):
            if of == counted and entity in self.limits:
                return self.limits[entity]
        return self.per_client_id if counted.user is None else None

    def of_address(self, ip: str) -> float | None:
        """Return the quota of an IP address, None if it has no limit."""
        found = self.limits.get(Entity(ip=ip))
        return self.limits.get(Entity(ip=DEFAULT_NAME)) if found is None else found


def read_limit(text: str) -> float | None:
    """Return the value of a stored quota; None if the text is not a quota."""
    try:
        limit = float(text)
    except ValueError:
        return None
    return limit if limit > 0 and math.isfinite(limit) else None


def write_limit(kind: QuotaKind, limit: float) -> str:
    """Return a quota in its stored form. Raises ValueError for an invalid value, with the reason."""
    if not (limit > 0 and math.isfinite(limit)):
        raise ValueError(f"{kind.value} must be greater than 0")
    if not kind.is_whole:
        return str(float(limit))
    whole = int(limit + _EPSILON)
    if abs(whole - limit) > _EPSILON or not 0 < whole <= _LONG_MAX:
        raise ValueError(f"{kind.value} must be a whole number")
    return str(whole)
