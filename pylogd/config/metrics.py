"""The table of broker settings of metrics and health. docs/monitoring.md explains them.

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

from typing import Final

from pylogd.config.listeners import Listener, parse_listeners
from pylogd.config.values import ConfigType, Mode, Setting

_INT, _LONG, _STRING = ConfigType.INT, ConfigType.LONG, ConfigType.STRING
_METRICS: Final = "Metrics and health"
LISTENER: Final = "metrics.listener"

METRICS_SETTINGS: Final = [
    Setting(
        LISTENER,
        _STRING,
        None,
        "Where the broker answers HTTP requests for `/metrics`, `/healthz` and `/readyz`: `host:port`, or a Twisted "
        "endpoint string such as `tcp:9404:interface=127.0.0.1`. Port 0 picks a free one. Everybody who can connect "
        "may read them, without a password and without encryption: choose an address that only the monitoring system "
        "can reach. Needs the package `prometheus-client` (`pip install 'pylogd-broker[metrics]'`). Unset: no such "
        "listener. (Only in pylogd.)",
        _METRICS,
        nullable=True,
    ),
    Setting(
        "metrics.topics.max",
        _INT,
        200,
        "Most topics with their own metrics: the topics that were first written or read since the start. All other "
        "topics are counted together. (Only in pylogd.)",
        _METRICS,
        minimum=0,
        maximum=100_000,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.partitions.max",
        _INT,
        1000,
        "Most partitions with their own metrics, among the topics that have some: those that were seen first. The "
        "other partitions of a topic are summed up under the partition `(other)`. (Only in pylogd.)",
        _METRICS,
        minimum=0,
        maximum=100_000,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.groups.max",
        _INT,
        200,
        "Most consumer groups with their own metrics: the groups that lag most. All other groups are counted "
        "together. (Only in pylogd.)",
        _METRICS,
        minimum=0,
        maximum=100_000,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.clients.max",
        _INT,
        50,
        "Most client ids with their own metrics among the metrics that clients push (KIP-714): the first client ids "
        "since the start, as long as no principal or address has more of them than others. All other client ids are "
        "counted together. It also limits how many users, client ids and "
        "addresses with a quota of one kind are shown. (Only in pylogd.)",
        _METRICS,
        minimum=0,
        maximum=1000,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "telemetry.max.bytes",
        _INT,
        1_048_576,
        "Most bytes of metrics that a client may push at once, compressed and decompressed.",
        _METRICS,
        minimum=1,
        maximum=16_777_216,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.group.lag.interval.ms",
        _LONG,
        10_000,
        "How often this broker measures the lag of the consumer groups that it coordinates. (Only in pylogd.)",
        _METRICS,
        minimum=1000,
    ),
]


def metrics_listener(text: str | None) -> Listener | None:
    """Return the address for metrics in the value of the setting. Raises ConfigError for a malformed address."""
    return None if text is None else parse_listeners([text], setting=LISTENER)[0]
