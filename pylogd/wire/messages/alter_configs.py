"""AlterConfigs, API key 33, versions 0-2. Replaces all settings of topics or brokers; what is not named returns to its
default.

Generated from protocol/apis/alter_configs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class AlterableConfig(Message):
    """A setting to change."""

    __slots__ = ("name", "value")

    #: The setting's name.
    name: str
    #: The setting's value.
    value: str | None

    def __init__(self, name: str = "", value: str | None = "") -> None:
        self.name = name
        self.value = value


class AlterConfigsResource(Message):
    """A resource whose settings change."""

    __slots__ = ("resource_type", "resource_name", "configs")

    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int
    #: The topic name, or the broker id as a string.
    resource_name: str
    #: The settings.
    configs: list[AlterableConfig]

    def __init__(self, resource_type: int = 0, resource_name: str = "", configs: list[AlterableConfig] = UNSET) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = [] if configs is UNSET else configs


class AlterConfigsResourceResponse(Message):
    """The result for a resource."""

    __slots__ = ("error_code", "error_message", "resource_type", "resource_name")

    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int
    #: The topic name, or the broker id as a string.
    resource_name: str

    def __init__(
        self, error_code: int = 0, error_message: str | None = "", resource_type: int = 0, resource_name: str = ""
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name


class AlterConfigsRequest(Message):
    """The request of AlterConfigs."""

    __slots__ = ("resources", "validate_only")

    API_KEY: ClassVar[int] = 33
    API_NAME: ClassVar[str] = "AlterConfigs"

    #: The resources that have the settings.
    resources: list[AlterConfigsResource]
    #: Whether to check the request only, without changing anything.
    validate_only: bool

    def __init__(self, resources: list[AlterConfigsResource] = UNSET, validate_only: bool = False) -> None:
        self.resources = [] if resources is UNSET else resources
        self.validate_only = validate_only


class AlterConfigsResponse(Message):
    """The response of AlterConfigs."""

    __slots__ = ("throttle_time_ms", "responses")

    API_KEY: ClassVar[int] = 33
    API_NAME: ClassVar[str] = "AlterConfigs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The result for each resource.
    responses: list[AlterConfigsResourceResponse]

    def __init__(self, throttle_time_ms: int = 0, responses: list[AlterConfigsResourceResponse] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = [] if responses is UNSET else responses
