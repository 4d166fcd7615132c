"""AlterClientQuotas, API key 49, versions 0-1. Sets and removes quotas of users, client ids and IP addresses.

Generated from protocol/apis/alter_client_quotas.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


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


class OpData(Message):
    """A change to one quota."""

    __slots__ = ("key", "value", "remove")

    #: The name of the quota, such as `producer_byte_rate`.
    key: str
    #: The new value; without meaning where the quota is removed.
    value: float
    #: Whether to remove the quota.
    remove: bool

    def __init__(self, key: str = "", value: float = 0.0, remove: bool = False) -> None:
        self.key = key
        self.value = value
        self.remove = remove


class EntryData(Message):
    """The changes to the quotas of an entity."""

    __slots__ = ("entity", "ops")

    #: The parts of the entity: a user, a client id, both, or an IP address.
    entity: list[EntityData]
    #: The changes.
    ops: list[OpData]

    def __init__(self, entity: list[EntityData] = UNSET, ops: list[OpData] = UNSET) -> None:
        self.entity = [] if entity is UNSET else entity
        self.ops = [] if ops is UNSET else ops


class EntityResult(Message):
    """A part of an entity in a result."""

    __slots__ = ("entity_type", "entity_name")

    #: The part: `user`, `client-id` or `ip`.
    entity_type: str
    #: The name; null for the default.
    entity_name: str | None

    def __init__(self, entity_type: str = "", entity_name: str | None = "") -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class EntryResult(Message):
    """The result for an entity."""

    __slots__ = ("error_code", "error_message", "entity")

    #: The error code; 0 if all went well.
    error_code: int
    #: What went wrong, for people; null if nothing did.
    error_message: str | None
    #: The parts of the entity.
    entity: list[EntityResult]

    def __init__(self, error_code: int = 0, error_message: str | None = "", entity: list[EntityResult] = UNSET) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.entity = [] if entity is UNSET else entity


class AlterClientQuotasRequest(Message):
    """The request of AlterClientQuotas."""

    __slots__ = ("entries", "validate_only")

    API_KEY: ClassVar[int] = 49
    API_NAME: ClassVar[str] = "AlterClientQuotas"

    #: The changes, for each entity.
    entries: list[EntryData]
    #: Whether to check the changes and make none.
    validate_only: bool

    def __init__(self, entries: list[EntryData] = UNSET, validate_only: bool = False) -> None:
        self.entries = [] if entries is UNSET else entries
        self.validate_only = validate_only


class AlterClientQuotasResponse(Message):
    """The response of AlterClientQuotas."""

    __slots__ = ("throttle_time_ms", "entries")

    API_KEY: ClassVar[int] = 49
    API_NAME: ClassVar[str] = "AlterClientQuotas"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The result for each entity.
    entries: list[EntryResult]

    def __init__(self, throttle_time_ms: int = 0, entries: list[EntryResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.entries = [] if entries is UNSET else entries
