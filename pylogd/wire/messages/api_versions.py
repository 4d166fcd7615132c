"""ApiVersions, API key 18, versions 0-4. Asks which APIs the broker serves, and at which versions. The first request on
a connection.

Generated from protocol/apis/api_versions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ApiVersion(Message):
    """An API and its versions."""

    __slots__ = ("api_key", "min_version", "max_version")

    #: The number of the API.
    api_key: int
    #: The lowest version served.
    min_version: int
    #: The highest version served.
    max_version: int

    def __init__(self, api_key: int = 0, min_version: int = 0, max_version: int = 0) -> None:
        self.api_key = api_key
        self.min_version = min_version
        self.max_version = max_version


class SupportedFeatureKey(Message):
    """A feature that the broker could use."""

    __slots__ = ("name", "min_version", "max_version")

    #: The feature's name.
    name: str
    #: The lowest level supported.
    min_version: int
    #: The highest level supported.
    max_version: int

    def __init__(self, name: str = "", min_version: int = 0, max_version: int = 0) -> None:
        self.name = name
        self.min_version = min_version
        self.max_version = max_version


class FinalizedFeatureKey(Message):
    """A feature that the cluster uses."""

    __slots__ = ("name", "max_version_level", "min_version_level")

    #: The feature's name.
    name: str
    #: The highest level in use.
    max_version_level: int
    #: The lowest level in use.
    min_version_level: int

    def __init__(self, name: str = "", max_version_level: int = 0, min_version_level: int = 0) -> None:
        self.name = name
        self.max_version_level = max_version_level
        self.min_version_level = min_version_level


class ApiVersionsRequest(Message):
    """The request of ApiVersions."""

    __slots__ = ("client_software_name", "client_software_version")

    API_KEY: ClassVar[int] = 18
    API_NAME: ClassVar[str] = "ApiVersions"

    #: The name of the client's library. Versions 3+.
    client_software_name: str
    #: The version of the client's library. Versions 3+.
    client_software_version: str

    def __init__(self, client_software_name: str = "", client_software_version: str = "") -> None:
        self.client_software_name = client_software_name
        self.client_software_version = client_software_version


class ApiVersionsResponse(Message):
    """The response of ApiVersions."""

    __slots__ = (
        "error_code",
        "api_keys",
        "throttle_time_ms",
        "supported_features",
        "finalized_features_epoch",
        "finalized_features",
        "zk_migration_ready",
    )

    API_KEY: ClassVar[int] = 18
    API_NAME: ClassVar[str] = "ApiVersions"

    #: The error code; 0 if all went well.
    error_code: int
    #: The APIs that the broker serves.
    api_keys: list[ApiVersion]
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The features that this broker could use. Versions 3+.
    supported_features: list[SupportedFeatureKey]
    #: Grows with each change of the features in use; -1 if not known. Versions 3+.
    finalized_features_epoch: int
    #: The features that the whole cluster uses. Versions 3+.
    finalized_features: list[FinalizedFeatureKey]
    #: Whether a controller could take over from ZooKeeper. Versions 3+.
    zk_migration_ready: bool

    def __init__(
        self,
        error_code: int = 0,
        api_keys: list[ApiVersion] = UNSET,
        throttle_time_ms: int = 0,
        supported_features: list[SupportedFeatureKey] = UNSET,
        finalized_features_epoch: int = -1,
        finalized_features: list[FinalizedFeatureKey] = UNSET,
        zk_migration_ready: bool = False,
    ) -> None:
        self.error_code = error_code
        self.api_keys = [] if api_keys is UNSET else api_keys
        self.throttle_time_ms = throttle_time_ms
        self.supported_features = [] if supported_features is UNSET else supported_features
        self.finalized_features_epoch = finalized_features_epoch
        self.finalized_features = [] if finalized_features is UNSET else finalized_features
        self.zk_migration_ready = zk_migration_ready
