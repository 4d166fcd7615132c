"""The table of broker settings that bound what requests and clients can cost. docs/limits.md explains them.

A part of the table in `broker`, which says how to read it.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.storage import MIB
from pylogd.config.values import ConfigType, Setting

_INT = ConfigType.INT
_REQUESTS: Final = "Requests"
_PRODUCERS: Final = "Replication and producers"

REQUEST_LIMITS: Final = [
    Setting(
        "request.max.elements",
        _INT,
        20_000,
        "Most array elements (topics, partitions, groups, ...) in one request. A request with more closes its "
        "connection before they are built. Requests between brokers are not bound by it. Raise it for clusters in "
        "which one request of a client names more than that. (Ours.)",
        _REQUESTS,
        minimum=1000,
        maximum=1_000_000,
    ),
    Setting(
        "response.max.bytes",
        _INT,
        16 * MIB,
        "Most bytes in the answer to a request that describes settings, groups, offsets or topics; records have "
        "`fetch.max.bytes`. What does not fit is answered with an error that says so. (Ours.)",
        _REQUESTS,
        minimum=65536,
    ),
    Setting(
        "max.incremental.fetch.session.cache.partitions",
        _INT,
        100_000,
        "Partitions in all incremental fetch sessions of clients together; those of other brokers are not counted. A "
        "client for whose partitions there is no room fetches without a session. (Ours.)",
        _REQUESTS,
        minimum=0,
    ),
]

PRODUCER_LIMITS: Final = [
    Setting(
        "producer.ids.max.per.partition",
        _INT,
        10_000,
        "Idempotent producers that are remembered for each partition. When there are more, those that have not "
        "written for longest are forgotten: a batch that one of them sends again is then appended twice. (Ours.)",
        _PRODUCERS,
        minimum=100,
    ),
]
