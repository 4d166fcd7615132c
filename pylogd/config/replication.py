"""The table of broker settings of replication: followers, in-sync sets, throttles.

This is a part of the table in `broker`, which explains it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pylogd.config.storage import MIB
from pylogd.config.values import LONG_MAX, ConfigError, ConfigType, Mode, Setting

_STRING, _INT, _LONG, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_DYNAMIC: Final = Mode.DYNAMIC
_FOLLOWERS: Final = "Followers"

#: Values of `replica.selector.class`: consumers read from the leader, or from a replica in their rack.
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

#: Settings of topics that name replicas.
THROTTLED_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")

REPLICATION_SETTINGS: Final = [
    Setting(
        "replica.lag.time.max.ms",
        _LONG,
        30_000,
        "Time after which a follower that has not caught up with its leader leaves the in-sync set.",
        _FOLLOWERS,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "replica.fetch.max.bytes",
        _INT,
        MIB,
        "Most bytes of one partition in one fetch of a follower. A first batch larger than this is still returned "
        "whole.",
        _FOLLOWERS,
        minimum=1,
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        _INT,
        10 * MIB,
        "Most bytes in the answer to one fetch of a follower.",
        _FOLLOWERS,
        minimum=1,
    ),
    Setting(
        "replica.fetch.min.bytes",
        _INT,
        1,
        "Bytes that a follower's fetch waits for, up to `replica.fetch.wait.max.ms`.",
        _FOLLOWERS,
        minimum=1,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        _INT,
        500,
        "Longest time that a follower's fetch waits at its leader. Should be well below `replica.lag.time.max.ms`.",
        _FOLLOWERS,
        minimum=1,
    ),
    Setting(
        "replica.fetch.backoff.ms",
        _INT,
        1000,
        "Pause of a follower after a failed fetch, and of a single partition after the leader answered with an error "
        "for it.",
        _FOLLOWERS,
        minimum=1,
    ),
    Setting(
        "replica.socket.timeout.ms",
        _INT,
        30_000,
        "Time after which a follower closes a connection to a leader that does not answer.",
        _FOLLOWERS,
        minimum=1,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        _LONG,
        5000,
        "How often the high watermarks of replicated partitions are written to disk.",
        _FOLLOWERS,
        minimum=1,
    ),
    Setting(
        "replica.selector.class",
        _STRING,
        None,
        f"`{RACK_AWARE}` sends a consumer to an in-sync replica in its own rack (KIP-392). Unset: consumers read from "
        "the leader.",
        _FOLLOWERS,
        nullable=True,
        choices=(RACK_AWARE,),
    ),
    Setting(
        "leader.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Most bytes per second that this broker sends to throttled replicas that are not in sync. (In Kafka only a "
        "dynamic setting.)",
        _FOLLOWERS,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "follower.replication.throttled.rate",
        _LONG,
        LONG_MAX,
        "Most bytes per second that this broker fetches for throttled replicas that are not in sync. (In Kafka only "
        "a dynamic setting.)",
        _FOLLOWERS,
        minimum=1,
        mode=_DYNAMIC,
    ),
    Setting(
        "leader.replication.throttled.replicas",
        _LIST,
        (),
        "Replicas whose fetches are throttled by their leader: `partition:broker, ...`, or `*` for all. Set it for a "
        "topic. (In Kafka only a topic setting.)",
        _FOLLOWERS,
        mode=_DYNAMIC,
    ),
    Setting(
        "follower.replication.throttled.replicas",
        _LIST,
        (),
        "Replicas that throttle their own fetches: `partition:broker, ...`, or `*` for all. Set it for a topic. (In "
        "Kafka only a topic setting.)",
        _FOLLOWERS,
        mode=_DYNAMIC,
    ),
]


def check_throttled(values: Mapping[str, str]) -> None:
    """Raise ConfigError if a topic's throttled replicas are neither `*` nor a list of `partition:broker`."""
    for name in THROTTLED_REPLICAS:
        text = values.get(name, "")
        if text not in ("", "*") and not all(map(_REPLICA.fullmatch, text.split(","))):
            raise ConfigError(
                f'{name} = "{text[:200]}" is not allowed: it must be * for all replicas, or a list of '
                "partition:broker, such as 0:1,0:2",
                name,
            )
