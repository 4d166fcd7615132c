"""Negotiate the versions of all APIs with a broker: the ApiVersions exchange that begins each connection.

Strategy: ApiVersions is requested at this client's highest version. A broker that does not support that version answers
UNSUPPORTED_VERSION in version 0, with the versions that it supports, and is asked again at one of those (KIP-511).
After that each request is sent at the highest version that both sides support.

Rules: no I/O. The owner of the connection sends what `question` and `answer` return.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogd import __version__
from pylogd.base.errors import ErrorCode, KafkaError, UnsupportedByBroker, error_for
from pylogd.wire.messages import APIS
from pylogd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_OUR_HIGHEST = APIS[ApiVersionsRequest.API_KEY].max_version


class Negotiation:
    """The client's side of the exchange.

    address: names the broker in error messages.
    software: the name and version of this client, which the broker is told.
    """

    __slots__ = ("_address", "_asked_again", "_software", "features", "features_epoch", "versions")

    def __init__(self, address: str, software: tuple[str, str] = ("pylogd", __version__)) -> None:
        self._address = address
        self._software = software
        self._asked_again = False
        #: the lowest and highest version that the broker supports, by API key; empty until it has answered
        self.versions: Mapping[int, tuple[int, int]] = {}
        #: the features that the cluster uses, by name, with their levels, and the epoch of this list (KIP-584)
        self.features: Mapping[str, int] = {}
        self.features_epoch = -1

    def question(self, version: int = _OUR_HIGHEST) -> tuple[ApiVersionsRequest, int]:
        """Return the request to send, and its version."""
        name, number = self._software
        return ApiVersionsRequest(client_software_name=name, client_software_version=number), version

    def answer(self, response: ApiVersionsResponse) -> tuple[ApiVersionsRequest, int] | None:
        """Take the broker's response. Return None if `versions` is known now, else the request to send next.

        Raises KafkaError.
        """
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and not self._asked_again:
            self._asked_again = True
            offered = [api.max_version for api in response.api_keys if api.api_key == ApiVersionsRequest.API_KEY]
            return self.question(max(0, min([*offered, _OUR_HIGHEST])) if offered else 0)
        if response.error_code:
            raise KafkaError(error_for(response.error_code))
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self.features_epoch = response.finalized_features_epoch
        return None

    def version_for(self, request: Any, highest: int | None = None) -> int:
        """Return the highest version of a request that both sides support, at most `highest`.

        Raises UnsupportedByBroker if there is none.
        """
        ours = APIS[request.API_KEY]
        low, high = self.versions.get(request.API_KEY, (0, -1))
        version = min(high, ours.max_version if highest is None else highest)
        if version < max(low, ours.min_version):
            serves = f"versions {low} to {high}" if high >= 0 else "no version"
            raise UnsupportedByBroker(
                f"{self._address} serves {serves} of {request.API_NAME}; "
                f"this client speaks {ours.min_version} to {ours.max_version}"
            )
        return version
