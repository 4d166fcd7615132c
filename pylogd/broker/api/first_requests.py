"""Build the codecs of the requests that clients send first, before clients connect.

A codec is built and compiled when it is first needed (`wire.schema`). This takes 1 ms and holds up the reactor; the
very first codec also imports construct, which takes 10 ms. Building the codecs of all APIs and versions would take half
a second. So before it accepts connections, a broker builds in a thread the codecs of the requests that open a
connection. It builds those of the usual next requests while clients connect, with a pause after each codec, so that the
first requests find the interpreter free.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from pylogd.broker.api.registry import served_versions
from pylogd.wire.messages import ApiKey
from pylogd.wire.schema import request_codec, response_codec

#: For how many of the latest versions codecs are built, by API: for requests that open a connection, ...
_OPENING: Final = {ApiKey.API_VERSIONS: 5, ApiKey.METADATA: 2}
#: ... and for the requests that follow.
_FOLLOWING: Final = {
    ApiKey.FIND_COORDINATOR: 1, ApiKey.PRODUCE: 1, ApiKey.FETCH: 1, ApiKey.LIST_OFFSETS: 1,
    ApiKey.INIT_PRODUCER_ID: 1, ApiKey.JOIN_GROUP: 1, ApiKey.SYNC_GROUP: 1, ApiKey.HEARTBEAT: 1,
    ApiKey.OFFSET_FETCH: 1, ApiKey.OFFSET_COMMIT: 1,
}  # fmt: skip
#: The pause after each codec of the following requests. A codec takes 2 ms; all are ready after 0.2 s.
_PAUSE_SECONDS: Final = 0.02


def build_opening_codecs() -> None:
    """Build the codecs of requests that open a connection. Call this in a thread, before there are connections."""
    _build(_OPENING)


def build_following_codecs() -> None:
    """Build the codecs of the requests that usually follow. Call this in a thread."""
    _build(_FOLLOWING, _PAUSE_SECONDS)


def _build(versions: Mapping[ApiKey, int], pause: float = 0.0) -> None:
    served = served_versions()
    for api_key, count in versions.items():
        first, last = served[api_key]
        for version in range(max(first, last - count + 1), last + 1):
            request_codec(api_key, version).compile_reader()
            response_codec(api_key, version).compile_writer()
            if pause:
                time.sleep(pause)
