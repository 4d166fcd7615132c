"""FindCoordinator, API key 10, versions 0-6. Asks which broker coordinates a consumer group or a transaction.

Generated from protocol/apis/find_coordinator.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class Coordinator(Message):
    """The coordinator of a key."""

    __slots__ = ("key", "node_id", "host", "port", "error_code", "error_message")

    #: The group id or transactional id.
    key: str
    #: The broker's id.
    node_id: int
    #: The host name to connect to.
    host: str
    #: The port to connect to.
    port: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None

    def __init__(
        self,
        key: str = "",
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.key = key
        self.node_id = node_id
        self.host = host
        self.port = port
        self.error_code = error_code
        self.error_message = error_message


class FindCoordinatorRequest(Message):
    """The request of FindCoordinator."""

    __slots__ = ("key", "key_type", "coordinator_keys")

    API_KEY: ClassVar[int] = 10
    API_NAME: ClassVar[str] = "FindCoordinator"

    #: The group id or the transactional id. Versions 0-3.
    key: str
    #: What the keys are: 0 group ids, 1 transactional ids, 2 share groups. Versions 1+.
    key_type: int
    #: The group ids or transactional ids. Versions 4+.
    coordinator_keys: list[str]

    def __init__(self, key: str = "", key_type: int = 0, coordinator_keys: list[str] = UNSET) -> None:
        self.key = key
        self.key_type = key_type
        self.coordinator_keys = [] if coordinator_keys is UNSET else coordinator_keys


class FindCoordinatorResponse(Message):
    """The response of FindCoordinator."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "node_id", "host", "port", "coordinators")

    API_KEY: ClassVar[int] = 10
    API_NAME: ClassVar[str] = "FindCoordinator"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The error code; 0 if all went well. Versions 0-3.
    error_code: int
    #: The error message, for people; null if there is no error. Versions 1-3.
    error_message: str | None
    #: The broker's id. Versions 0-3.
    node_id: int
    #: The host name to connect to. Versions 0-3.
    host: str
    #: The port to connect to. Versions 0-3.
    port: int
    #: The coordinator of each key. Versions 4+.
    coordinators: list[Coordinator]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        coordinators: list[Coordinator] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.node_id = node_id
        self.host = host
        self.port = port
        self.coordinators = [] if coordinators is UNSET else coordinators
