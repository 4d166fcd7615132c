"""The table of broker settings that limit the cost of requests and clients. docs/limits.md explains them.

This is a part of the table in `broker`, which explains it.
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
        "Most array elements (topics, partitions, groups, ...) in one request. If a request has more elements, the "
        "broker closes its connection before it builds them. The limit does not apply to requests between brokers. "
        "Raise it if requests of clients name more elements. (Only in pylogd.)",
        _REQUESTS,
        minimum=1000,
        maximum=1_000_000,
    ),
    Setting(
        "response.max.bytes",
        _INT,
        16 * MIB,
        "Most bytes in the answer to a request that describes settings, groups, offsets or topics; the limit for "
        "records is `fetch.max.bytes`. If an answer would be larger, the broker answers with an error that says so. "
        "(Only in pylogd.)",
        _REQUESTS,
        minimum=65536,
    ),
    Setting(
        "max.incremental.fetch.session.cache.partitions",
        _INT,
        100_000,
        "Most partitions in the incremental fetch sessions of all clients together; sessions of other brokers are "
        "not counted. A client whose partitions exceed the limit fetches without a session. (Only in pylogd.)",
        _REQUESTS,
        minimum=0,
    ),
]

PRODUCER_LIMITS: Final = [
    Setting(
        "producer.ids.max.per.partition",
        _INT,
        10_000,
        "Most idempotent producers that are remembered for each partition. If there are more, the producers that "
        "have not written for longest are forgotten: a batch that such a producer sends again is then appended "
        "twice. (Only in pylogd.)",
        _PRODUCERS,
        minimum=100,
    ),
]
