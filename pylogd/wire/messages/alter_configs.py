"""AlterConfigs, API key 33, versions 0-2. Replaces all settings of topics or brokers; what is not named returns to its
default.

Generated from protocol/apis/alter_configs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class AlterableConfig:
    """A setting to change."""

    #: The setting's name.
    name: str = ""
    #: The setting's value.
    value: str | None = ""


@dataclass(slots=True)
class AlterConfigsResource:
    """Something whose settings change."""

    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int = 0
    #: The topic name, or the broker id as a string.
    resource_name: str = ""
    #: The settings.
    configs: list[AlterableConfig] = field(default_factory=list)


@dataclass(slots=True)
class AlterConfigsResourceResponse:
    """What became of a resource."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did.
    error_message: str | None = ""
    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int = 0
    #: The topic name, or the broker id as a string.
    resource_name: str = ""


@dataclass(slots=True)
class AlterConfigsRequest:
    """The request of AlterConfigs."""

    API_KEY: ClassVar[int] = 33
    API_NAME: ClassVar[str] = "AlterConfigs"

    #: Whose settings.
    resources: list[AlterConfigsResource] = field(default_factory=list)
    #: Only check whether it could be done.
    validate_only: bool = False


@dataclass(slots=True)
class AlterConfigsResponse:
    """The response of AlterConfigs."""

    API_KEY: ClassVar[int] = 33
    API_NAME: ClassVar[str] = "AlterConfigs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: What became of each resource.
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)
