"""DescribeClientQuotas, API key 48, versions 0-1. Asks for the quotas of users, client ids and IP addresses.

Generated from protocol/apis/describe_client_quotas.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ComponentData(Message):
    """A condition on one part of an entity."""

    __slots__ = ("entity_type", "match_type", "match")

    #: The part: `user`, `client-id` or `ip`.
    entity_type: str
    #: How to compare: 0 with the name in `match`, 1 with the default, 2 with anything.
    match_type: int
    #: The name; null unless the names are compared.
    match: str | None

    def __init__(self, entity_type: str = "", match_type: int = 0, match: str | None = "") -> None:
        self.entity_type = entity_type
        self.match_type = match_type
        self.match = match


class EntityData(Message):
    """A part of an entity."""

    __slots__ = ("entity_type", "entity_name")

    #: The part: `user`, `client-id` or `ip`.
    entity_type: str
    #: The name; null for the default.
    entity_name: str | None

    def __init__(self, entity_type: str = "", entity_name: str | None = "") -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class ValueData(Message):
    """A quota."""

    __slots__ = ("key", "value")

    #: The name of the quota, such as `producer_byte_rate`.
    key: str
    #: Its value.
    value: float

    def __init__(self, key: str = "", value: float = 0.0) -> None:
        self.key = key
        self.value = value


class EntryData(Message):
    """An entity with its quotas."""

    __slots__ = ("entity", "values")

    #: The parts of the entity.
    entity: list[EntityData]
    #: The quotas of the entity.
    values: list[ValueData]

    def __init__(self, entity: list[EntityData] = UNSET, values: list[ValueData] = UNSET) -> None:
        self.entity = [] if entity is UNSET else entity
        self.values = [] if values is UNSET else values


class DescribeClientQuotasRequest(Message):
    """The request of DescribeClientQuotas."""

    __slots__ = ("components", "strict")

    API_KEY: ClassVar[int] = 48
    API_NAME: ClassVar[str] = "DescribeClientQuotas"

    #: What the entities must have; all of them. Without any, every entity matches.
    components: list[ComponentData]
    #: Whether entities with parts that have no condition are left out.
    strict: bool

    def __init__(self, components: list[ComponentData] = UNSET, strict: bool = False) -> None:
        self.components = [] if components is UNSET else components
        self.strict = strict


class DescribeClientQuotasResponse(Message):
    """The response of DescribeClientQuotas."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "entries")

    API_KEY: ClassVar[int] = 48
    API_NAME: ClassVar[str] = "DescribeClientQuotas"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: What went wrong, for people; null if nothing did.
    error_message: str | None
    #: The entities that match; null after an error.
    entries: list[EntryData] | None

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        entries: list[EntryData] | None = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.entries = [] if entries is UNSET else entries
