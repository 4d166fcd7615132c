"""ApiVersions, API key 18, versions 0-4. Asks which APIs the broker serves, and at which versions. The first request on
a connection.

Generated from protocol/apis/api_versions.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class ApiVersion:
    """An API and its versions."""

    #: The number of the API.
    api_key: int = 0
    #: The lowest version served.
    min_version: int = 0
    #: The highest version served.
    max_version: int = 0


@dataclass(slots=True)
class SupportedFeatureKey:
    """A feature that the broker could use."""

    #: The feature's name.
    name: str = ""
    #: The lowest level supported.
    min_version: int = 0
    #: The highest level supported.
    max_version: int = 0


@dataclass(slots=True)
class FinalizedFeatureKey:
    """A feature that the cluster uses."""

    #: The feature's name.
    name: str = ""
    #: The highest level in use.
    max_version_level: int = 0
    #: The lowest level in use.
    min_version_level: int = 0


@dataclass(slots=True)
class ApiVersionsRequest:
    """The request of ApiVersions."""

    API_KEY: ClassVar[int] = 18
    API_NAME: ClassVar[str] = "ApiVersions"

    #: The name of the client's library. Versions 3+.
    client_software_name: str = ""
    #: The version of the client's library. Versions 3+.
    client_software_version: str = ""


@dataclass(slots=True)
class ApiVersionsResponse:
    """The response of ApiVersions."""

    API_KEY: ClassVar[int] = 18
    API_NAME: ClassVar[str] = "ApiVersions"

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The APIs that the broker serves.
    api_keys: list[ApiVersion] = field(default_factory=list)
    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int = 0
    #: The features that this broker could use. Versions 3+.
    supported_features: list[SupportedFeatureKey] = field(default_factory=list)
    #: Grows with each change of the features in use; -1 if not known. Versions 3+.
    finalized_features_epoch: int = -1
    #: The features that the whole cluster uses. Versions 3+.
    finalized_features: list[FinalizedFeatureKey] = field(default_factory=list)
    #: Whether a controller could take over from ZooKeeper. Versions 3+.
    zk_migration_ready: bool = False
