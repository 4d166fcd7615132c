"""AlterConfigs, API key 33, versions 0-2. Replaces all settings of topics or brokers; what is not named returns to its
default.

Generated from protocol/apis/alter_configs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pylogd.wire.values import UNSET, Message


@dataclass(slots=True, init=False, repr=False, eq=False)
class AlterableConfig(Message):
    """A setting to change."""

    #: The setting's name.
    name: str
    #: The setting's value.
    value: str | None

    def __init__(self, name: str = "", value: str | None = "") -> None:
        self.name = name
        self.value = value


@dataclass(slots=True, init=False, repr=False, eq=False)
class AlterConfigsResource(Message):
    """Something whose settings change."""

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


@dataclass(slots=True, init=False, repr=False, eq=False)
class AlterConfigsResourceResponse(Message):
    """What became of a resource."""

    #: The error code; 0 if all went well.
    error_code: int
    #: What went wrong, for people; null if nothing did.
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


@dataclass(slots=True, init=False, repr=False, eq=False)
class AlterConfigsRequest(Message):
    """The request of AlterConfigs."""

    API_KEY: ClassVar[int] = 33
    API_NAME: ClassVar[str] = "AlterConfigs"

    #: Whose settings.
    resources: list[AlterConfigsResource]
    #: Only check whether it could be done.
    validate_only: bool

    def __init__(self, resources: list[AlterConfigsResource] = UNSET, validate_only: bool = False) -> None:
        self.resources = [] if resources is UNSET else resources
        self.validate_only = validate_only


@dataclass(slots=True, init=False, repr=False, eq=False)
class AlterConfigsResponse(Message):
    """The response of AlterConfigs."""

    API_KEY: ClassVar[int] = 33
    API_NAME: ClassVar[str] = "AlterConfigs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: What became of each resource.
    responses: list[AlterConfigsResourceResponse]

    def __init__(self, throttle_time_ms: int = 0, responses: list[AlterConfigsResourceResponse] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = [] if responses is UNSET else responses
