"""The table of broker settings of metrics and health. docs/monitoring.md explains them.

A part of the table in `broker`, which says how to read it.
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
        "endpoint string such as `tcp:9404:interface=127.0.0.1`. Port 0 picks a free one. Whoever can connect may read "
        "them, without a password and without encryption: choose an address that only the monitoring reaches. Needs "
        "the package `prometheus-client` (`pip install 'pylogd-broker[metrics]'`). Unset: nowhere. (Ours.)",
        _METRICS,
        nullable=True,
    ),
    Setting(
        "metrics.topics.max",
        _INT,
        200,
        "Topics that have metrics of their own: the first so many that have been written or read since the start. "
        "All others are counted together. (Ours.)",
        _METRICS,
        minimum=0,
        maximum=100_000,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.groups.max",
        _INT,
        200,
        "Consumer groups that have metrics of their own: those that lag most. All others are counted together. (Ours.)",
        _METRICS,
        minimum=0,
        maximum=100_000,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "metrics.clients.max",
        _INT,
        50,
        "Client ids that have metrics of their own among those that clients push (KIP-714): the first so many. All "
        "others are counted together. Also the most users, client ids and addresses with a quota of one kind that "
        "are shown. (Ours.)",
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
        "How often the lag of the consumer groups is measured that this broker coordinates. (Ours.)",
        _METRICS,
        minimum=1000,
    ),
]


def metrics_listener(text: str | None) -> Listener | None:
    """Return where metrics are served, by the value of the setting. Raises ConfigError for a malformed address."""
    return None if text is None else parse_listeners([text], setting=LISTENER)[0]
