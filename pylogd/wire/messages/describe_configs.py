"""DescribeConfigs, API key 32, versions 0-4. Reads the settings of topics and brokers.

Generated from protocol/apis/describe_configs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class DescribeConfigsResource(Message):
    """A resource that has settings."""

    __slots__ = ("resource_type", "resource_name", "configuration_keys")

    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int
    #: The topic name, or the broker id as a string.
    resource_name: str
    #: The names of the settings asked for; null for all.
    configuration_keys: list[str] | None

    def __init__(
        self, resource_type: int = 0, resource_name: str = "", configuration_keys: list[str] | None = UNSET
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configuration_keys = [] if configuration_keys is UNSET else configuration_keys


class DescribeConfigsSynonym(Message):
    """A source of a value."""

    __slots__ = ("name", "value", "source")

    #: The setting's name in that source.
    name: str
    #: The value in that source.
    value: str | None
    #: The source, by the numbers of config_source.
    source: int

    def __init__(self, name: str = "", value: str | None = "", source: int = 0) -> None:
        self.name = name
        self.value = value
        self.source = source


class DescribeConfigsResourceResult(Message):
    """A setting."""

    __slots__ = (
        "name",
        "value",
        "read_only",
        "config_source",
        "is_default",
        "is_sensitive",
        "synonyms",
        "config_type",
        "documentation",
    )

    #: The setting's name.
    name: str
    #: The setting's value.
    value: str | None
    #: Whether the setting cannot be changed while the broker runs.
    read_only: bool
    #: Where the value comes from: 1 topic, 2 broker, 3 all brokers, 4 broker file, 5 default, 6 broker logger. Versions
    #: 1+.
    config_source: int
    #: Whether the value is the default. Versions 0.
    is_default: bool
    #: Whether the value is a secret, which is then left out.
    is_sensitive: bool
    #: All sources of the value, the one that takes effect first. Versions 1+.
    synonyms: list[DescribeConfigsSynonym]
    #: The value's type: 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password. Versions
    #: 3+.
    config_type: int
    #: What the setting is for. Versions 3+.
    documentation: str | None

    def __init__(
        self,
        name: str = "",
        value: str | None = "",
        read_only: bool = False,
        config_source: int = -1,
        is_default: bool = False,
        is_sensitive: bool = False,
        synonyms: list[DescribeConfigsSynonym] = UNSET,
        config_type: int = 0,
        documentation: str | None = "",
    ) -> None:
        self.name = name
        self.value = value
        self.read_only = read_only
        self.config_source = config_source
        self.is_default = is_default
        self.is_sensitive = is_sensitive
        self.synonyms = [] if synonyms is UNSET else synonyms
        self.config_type = config_type
        self.documentation = documentation


class DescribeConfigsResult(Message):
    """The settings of one resource."""

    __slots__ = ("error_code", "error_message", "resource_type", "resource_name", "configs")

    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: What the settings belong to: 2 a topic, 4 a broker, 8 a logger.
    resource_type: int
    #: The topic name, or the broker id as a string.
    resource_name: str
    #: The settings.
    configs: list[DescribeConfigsResourceResult]

    def __init__(
        self,
        error_code: int = 0,
        error_message: str | None = "",
        resource_type: int = 0,
        resource_name: str = "",
        configs: list[DescribeConfigsResourceResult] = UNSET,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = [] if configs is UNSET else configs


class DescribeConfigsRequest(Message):
    """The request of DescribeConfigs."""

    __slots__ = ("resources", "include_synonyms", "include_documentation")

    API_KEY: ClassVar[int] = 32
    API_NAME: ClassVar[str] = "DescribeConfigs"

    #: The resources that have the settings.
    resources: list[DescribeConfigsResource]
    #: Whether to list all sources of each value. Versions 1+.
    include_synonyms: bool
    #: Whether to answer what each setting is for. Versions 3+.
    include_documentation: bool

    def __init__(
        self,
        resources: list[DescribeConfigsResource] = UNSET,
        include_synonyms: bool = False,
        include_documentation: bool = False,
    ) -> None:
        self.resources = [] if resources is UNSET else resources
        self.include_synonyms = include_synonyms
        self.include_documentation = include_documentation


class DescribeConfigsResponse(Message):
    """The response of DescribeConfigs."""

    __slots__ = ("throttle_time_ms", "results")

    API_KEY: ClassVar[int] = 32
    API_NAME: ClassVar[str] = "DescribeConfigs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The settings, by what they belong to.
    results: list[DescribeConfigsResult]

    def __init__(self, throttle_time_ms: int = 0, results: list[DescribeConfigsResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is UNSET else results
