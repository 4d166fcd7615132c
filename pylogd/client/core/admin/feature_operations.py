"""The administrator's operations on features, for all faces (see `operations`): KIP-584."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pylogd.base.errors import UnsupportedByBroker
from pylogd.client.core.admin.calls import Calls, ask, once
from pylogd.client.core.admin.visibility import Probe, tells, until_shown
from pylogd.client.core.metadata import check
from pylogd.wire.messages import api_versions, update_features

_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3
_FIRST_WITH_TYPE = 1  # a version of UpdateFeatures
_FIRST_WITH_FEATURES = 3  # a version of ApiVersions


class Feature(NamedTuple):
    """A feature.

    level: the level in use, 0 for none.
    lowest, highest: the levels that the broker supports.
    """

    name: str
    level: int
    lowest: int
    highest: int


class FeatureOperations:
    """Operations that describe and change features."""

    _calls: Calls

    async def describe_features(self) -> list[Feature]:
        """Return the features that a broker supports or the cluster uses, by name. Raises KafkaError."""
        request = api_versions.ApiVersionsRequest("pylogd", "1")
        response: api_versions.ApiVersionsResponse = await ask(self._calls, request)
        check(response.error_code)
        levels = {one.name: one.max_version_level for one in response.finalized_features}
        ranges = {one.name: (one.min_version, one.max_version) for one in response.supported_features}
        return [Feature(name, levels.get(name, 0), *ranges.get(name, (0, 0))) for name in sorted({*levels, *ranges})]

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: bool = False, validate_only: bool = False
    ) -> None:
        """Change the levels of features: all of them, or none if one fails. Raises KafkaError.

        levels: the new level of each feature; 0 turns it off.
        downgrade: whether lower levels are allowed.
        validate_only: whether to check the change without making it.
        """
        updates = [update_features.FeatureUpdateKey(name, level) for name, level in levels.items()]
        request = update_features.UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)

        def fit(version: int) -> None:
            if version < _FIRST_WITH_TYPE and validate_only:
                raise UnsupportedByBroker("the broker does not support validate_only for features")
            for update in updates:
                if version < _FIRST_WITH_TYPE:
                    update.allow_downgrade = downgrade
                else:
                    update.upgrade_type = _UNSAFE_DOWNGRADE if downgrade else _UPGRADE

        response: update_features.UpdateFeaturesResponse = await once(self._calls, request, None, fit)
        check(response.error_code, response.error_message)
        for result in response.results:
            check(result.error_code, result.error_message)
        if not validate_only:
            await until_shown(self._calls, _levels(levels))


def _levels(wanted: Mapping[str, int]) -> Probe:
    """Return the probe that shows the levels of features."""

    def read(response: api_versions.ApiVersionsResponse) -> dict[str, int] | None:
        if not tells(response.error_code):
            return None
        return {one.name: one.max_version_level for one in response.finalized_features}

    def expected(found: dict[str, int]) -> bool:
        return all(found.get(name, 0) == level for name, level in wanted.items())

    def build(version: int) -> api_versions.ApiVersionsRequest:
        if version < _FIRST_WITH_FEATURES:
            raise UnsupportedByBroker("the broker does not tell its features")
        return api_versions.ApiVersionsRequest("pylogd", "1")

    return Probe(api_versions.ApiVersionsRequest, build, read, expected)
