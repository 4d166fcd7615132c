"""Tell which consumers had to wait for busy disks. DescribeConfigs does this, so that any client and tool can ask.

`lagging.consumers.throttled` is no setting, so it is listed only if a request for a broker names it. The value is a
JSON array with an object for each client that had to wait in the last minute, the one that waited longest first, at
most `_MOST`. A broker knows clients, not their groups: see `pylogd.broker.isolation.throttled_clients`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pylogd.broker.isolation.laggards import LaggardThrottle
from pylogd.broker.isolation.throttled_clients import ThrottledClient
from pylogd.config import ConfigEntry, ConfigSource
from pylogd.config.values import ConfigType

NAME: Final = "lagging.consumers.throttled"
_MOST: Final = 100
_DOC: Final = (
    "Not a setting: the consumers that had to wait for a busy disk in the last minute, as JSON; only listed if it is "
    "asked for by its name."
)


def throttled_consumers(laggards: LaggardThrottle) -> ConfigEntry:
    """Return the entry."""
    value = json.dumps([_as_json(laggards, one) for one in laggards.waits()[:_MOST]], separators=(",", ":"))
    return ConfigEntry(NAME, value, ConfigSource.UNKNOWN, True, False, ConfigType.STRING, _DOC, ())


def _as_json(laggards: LaggardThrottle, one: ThrottledClient) -> dict[str, Any]:
    return {
        "client": one.client.client_id,
        "principal": one.client.principal,
        "host": one.client.host,
        "seconds": round(one.recent_seconds, 3),
        "total_seconds": round(one.total_seconds, 3),
        "waits": one.waits,
        "partition": one.partition,
        "directory": one.directory,
        "disk": one.disk,
        "utilization": laggards.utilisation(one.directory),
    }
