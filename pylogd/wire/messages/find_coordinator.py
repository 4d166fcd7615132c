"""FindCoordinator, API key 10, versions 0-6. Asks which broker coordinates a consumer group or a transaction.

Generated from protocol/apis/find_coordinator.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class Coordinator:
    """The coordinator of a key."""

    #: The group id or transactional id.
    key: str = ""
    #: The broker's id.
    node_id: int = 0
    #: The host name to connect to.
    host: str = ""
    #: The port to connect to.
    port: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did.
    error_message: str | None = ""


@dataclass(slots=True)
class FindCoordinatorRequest:
    """The request of FindCoordinator."""

    API_KEY: ClassVar[int] = 10
    API_NAME: ClassVar[str] = "FindCoordinator"

    #: The group id or the transactional id. Versions 0-3.
    key: str = ""
    #: What the keys are: 0 group ids, 1 transactional ids, 2 share groups. Versions 1+.
    key_type: int = 0
    #: The group ids or transactional ids. Versions 4+.
    coordinator_keys: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FindCoordinatorResponse:
    """The response of FindCoordinator."""

    API_KEY: ClassVar[int] = 10
    API_NAME: ClassVar[str] = "FindCoordinator"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well. Versions 0-3.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did. Versions 1-3.
    error_message: str | None = ""
    #: The broker's id. Versions 0-3.
    node_id: int = 0
    #: The host name to connect to. Versions 0-3.
    host: str = ""
    #: The port to connect to. Versions 0-3.
    port: int = 0
    #: The coordinator of each key. Versions 4+.
    coordinators: list[Coordinator] = field(default_factory=list)
