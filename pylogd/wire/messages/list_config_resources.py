"""ListConfigResources, API key 74, versions 0-1. Lists the resources that can have settings.

Generated from protocol/apis/list_config_resources.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ConfigResource(Message):
    """A resource that can have settings."""

    __slots__ = ("resource_name", "resource_type")

    #: The name of the resource.
    resource_name: str
    #: The type of the resource. Versions 1+.
    resource_type: int

    def __init__(self, resource_name: str = "", resource_type: int = 16) -> None:
        self.resource_name = resource_name
        self.resource_type = resource_type


class ListConfigResourcesRequest(Message):
    """The request of ListConfigResources."""

    __slots__ = ("resource_types",)

    API_KEY: ClassVar[int] = 74
    API_NAME: ClassVar[str] = "ListConfigResources"

    #: Only resources of these types; all if empty. Versions 1+.
    resource_types: list[int]

    def __init__(self, resource_types: list[int] = UNSET) -> None:
        self.resource_types = [] if resource_types is UNSET else resource_types


class ListConfigResourcesResponse(Message):
    """The response of ListConfigResources."""

    __slots__ = ("throttle_time_ms", "error_code", "config_resources")

    API_KEY: ClassVar[int] = 74
    API_NAME: ClassVar[str] = "ListConfigResources"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The resources.
    config_resources: list[ConfigResource]

    def __init__(
        self, throttle_time_ms: int = 0, error_code: int = 0, config_resources: list[ConfigResource] = UNSET
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.config_resources = [] if config_resources is UNSET else config_resources
