"""DescribeConfigs, API key 32, versions 0-4. Reads the settings of topics and brokers.

Generated from protocol/apis/describe_configs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class DescribeConfigsResource:
    """Something that has settings."""

    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int = 0
    #: The topic name, or the broker id as a string.
    resource_name: str = ""
    #: The names of the settings asked for; null for all.
    configuration_keys: list[str] | None = field(default_factory=list)


@dataclass(slots=True)
class DescribeConfigsSynonym:
    """A place that a value could come from."""

    #: The setting's name there.
    name: str = ""
    #: The value there.
    value: str | None = ""
    #: Which place it is; numbers as for config_source.
    source: int = 0


@dataclass(slots=True)
class DescribeConfigsResourceResult:
    """A setting."""

    #: The setting's name.
    name: str = ""
    #: The setting's value.
    value: str | None = ""
    #: Whether the setting can not be changed while the broker runs.
    read_only: bool = False
    #: Where the value comes from: 1 topic, 2 broker, 3 all brokers, 4 broker file, 5 default, 6 broker logger. Versions
    #: 1+.
    config_source: int = -1
    #: Whether the value is the default. Versions 0.
    is_default: bool = False
    #: Whether the value is a secret, which is then left out.
    is_sensitive: bool = False
    #: All places that the value could come from, the one that counts first. Versions 1+.
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)
    #: The value's type: 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password. Versions
    #: 3+.
    config_type: int = 0
    #: What the setting is for. Versions 3+.
    documentation: str | None = ""


@dataclass(slots=True)
class DescribeConfigsResult:
    """The settings of one resource."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: What went wrong, for people; null if nothing did.
    error_message: str | None = ""
    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int = 0
    #: The topic name, or the broker id as a string.
    resource_name: str = ""
    #: The settings.
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)


@dataclass(slots=True)
class DescribeConfigsRequest:
    """The request of DescribeConfigs."""

    API_KEY: ClassVar[int] = 32
    API_NAME: ClassVar[str] = "DescribeConfigs"

    #: Whose settings.
    resources: list[DescribeConfigsResource] = field(default_factory=list)
    #: Whether to list all places that a value could come from. Versions 1+.
    include_synonyms: bool = False
    #: Whether to answer what each setting is for. Versions 3+.
    include_documentation: bool = False


@dataclass(slots=True)
class DescribeConfigsResponse:
    """The response of DescribeConfigs."""

    API_KEY: ClassVar[int] = 32
    API_NAME: ClassVar[str] = "DescribeConfigs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The settings, by what they belong to.
    results: list[DescribeConfigsResult] = field(default_factory=list)
