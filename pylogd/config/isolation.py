"""The settings that keep a slow or hanging disk from slowing everything else (docs/isolation.md)."""

from __future__ import annotations

from typing import Final

from pylogd.config.values import ConfigType, Setting

_ISOLATION: Final = "Isolation of disks"

#: Values of `log.write.queues`.
OFF: Final = "off"
SLOW: Final = "slow"
ALWAYS: Final = "always"

ISOLATION_SETTINGS: Final = [
    Setting(
        "log.write.queues",
        ConfigType.STRING,
        SLOW,
        "Where appends are written. `off`: on the thread that serves all connections, and a disk that is slow or hangs "
        "stops the whole broker. `always`: in threads of each data directory, with queues by topic; a disk that is "
        "slow or hangs then stops only requests that need this disk. `slow`: as `off` while the disk of a data "
        "directory is quick, at the same cost, and as `always` while it is slow; a disk that hangs without having been "
        "slow before still stops the broker, and other brokers take over when its session with ZooKeeper ends. See "
        "docs/isolation.md. (Only in pylogd.)",
        _ISOLATION,
        choices=(OFF, SLOW, ALWAYS),
    ),
    Setting(
        "log.write.queues.per.dir",
        ConfigType.INT,
        4,
        "With `log.write.queues`: number of queues for each data directory; each queue has a thread. Topics are "
        "spread over the queues by the hash of their names; internal topics have an additional queue. (Only in "
        "pylogd.)",
        _ISOLATION,
        minimum=1,
        maximum=64,
    ),
    Setting(
        "log.write.queue.max.requests",
        ConfigType.INT,
        500,
        "With `log.write.queues`: most appends that wait in one queue or are being written. Further appends are "
        "refused at once with NOT_ENOUGH_REPLICAS, and clients retry. (Only in pylogd.)",
        _ISOLATION,
        minimum=1,
    ),
    Setting(
        "log.write.queue.max.bytes",
        ConfigType.INT,
        16 << 20,
        "With `log.write.queues`: most bytes of records that wait in one queue or are being written. (Only in pylogd.)",
        _ISOLATION,
        minimum=1,
    ),
    Setting(
        "log.dir.failure.timeout.ms",
        ConfigType.LONG,
        30_000,
        "With `log.write.queues`: if a call to a data directory has not returned after this time, the directory "
        "fails, as after an error of its disk: other brokers take over the partitions that this broker leads there. "
        "(In Kafka, how long a broker tries to tell the controller of a failed directory before it stops.)",
        _ISOLATION,
        minimum=1,
    ),
]
