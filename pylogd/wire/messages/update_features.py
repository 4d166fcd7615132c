"""UpdateFeatures, API key 57, versions 0-2. Changes the versions of features that the brokers of a cluster use.

Generated from protocol/apis/update_features.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class FeatureUpdateKey(Message):
    """A feature, and the version that it is to have."""

    __slots__ = ("feature", "max_version_level", "allow_downgrade", "upgrade_type")

    #: The name of the feature.
    feature: str
    #: The version to use; below 1 ends the use of the feature.
    max_version_level: int
    #: Whether the version may become lower. Versions 0.
    allow_downgrade: bool
    #: 1: only a higher version; 2: also a lower one if nothing is lost; 3: also if something is. Versions 1+.
    upgrade_type: int

    def __init__(
        self, feature: str = "", max_version_level: int = 0, allow_downgrade: bool = False, upgrade_type: int = 1
    ) -> None:
        self.feature = feature
        self.max_version_level = max_version_level
        self.allow_downgrade = allow_downgrade
        self.upgrade_type = upgrade_type


class UpdatableFeatureResult(Message):
    """The result for a feature."""

    __slots__ = ("feature", "error_code", "error_message")

    #: The name of the feature.
    feature: str
    #: The error code; 0 if all went well.
    error_code: int
    #: What is wrong, for people; null if nothing is.
    error_message: str | None

    def __init__(self, feature: str = "", error_code: int = 0, error_message: str | None = "") -> None:
        self.feature = feature
        self.error_code = error_code
        self.error_message = error_message


class UpdateFeaturesRequest(Message):
    """The request of UpdateFeatures."""

    __slots__ = ("timeout_ms", "feature_updates", "validate_only")

    API_KEY: ClassVar[int] = 57
    API_NAME: ClassVar[str] = "UpdateFeatures"

    #: Milliseconds that the broker may take.
    timeout_ms: int
    #: The features to change.
    feature_updates: list[FeatureUpdateKey]
    #: Whether to check the request without changing anything. Versions 1+.
    validate_only: bool

    def __init__(
        self, timeout_ms: int = 60000, feature_updates: list[FeatureUpdateKey] = UNSET, validate_only: bool = False
    ) -> None:
        self.timeout_ms = timeout_ms
        self.feature_updates = [] if feature_updates is UNSET else feature_updates
        self.validate_only = validate_only


class UpdateFeaturesResponse(Message):
    """The response of UpdateFeatures."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")

    API_KEY: ClassVar[int] = 57
    API_NAME: ClassVar[str] = "UpdateFeatures"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code for the request as a whole; 0 if there is none.
    error_code: int
    #: What is wrong, for people; null if nothing is.
    error_message: str | None
    #: The result for each feature. Versions 0-1.
    results: list[UpdatableFeatureResult]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        results: list[UpdatableFeatureResult] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.results = [] if results is UNSET else results
