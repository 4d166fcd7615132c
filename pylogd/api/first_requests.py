"""Build the codecs of the requests that clients send first, before a broker listens.

A codec is built when it is needed first (`wire.schema`), which takes 2 ms and holds up the reactor; the very first one
imports construct, 40 ms. Those of all APIs and versions would take a second.
"""

from __future__ import annotations

from typing import Final

from pylogd.api.registry import served_versions
from pylogd.wire.messages import ApiKey
from pylogd.wire.schema import request_codec, response_codec

#: For how many of the latest versions of an API codecs are built.
_VERSIONS: Final = {
    ApiKey.API_VERSIONS: 5, ApiKey.METADATA: 2, ApiKey.FIND_COORDINATOR: 1, ApiKey.PRODUCE: 1, ApiKey.FETCH: 1,
    ApiKey.LIST_OFFSETS: 1, ApiKey.INIT_PRODUCER_ID: 1, ApiKey.JOIN_GROUP: 1, ApiKey.SYNC_GROUP: 1,
    ApiKey.HEARTBEAT: 1, ApiKey.OFFSET_FETCH: 1, ApiKey.OFFSET_COMMIT: 1,
}  # fmt: skip


def build_codecs() -> None:
    """Build the codecs. Call it in a thread."""
    served = served_versions()
    for api_key, count in _VERSIONS.items():
        first, last = served[api_key]
        for version in range(max(first, last - count + 1), last + 1):
            request_codec(api_key, version)
            response_codec(api_key, version)
