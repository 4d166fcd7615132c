"""What `--everything` turns on for all brokers: block cache, throttled laggards, write queues, labels.

The bounds are so low that the load of a chaos run reaches them: the caches hold less than a partition, any use of a
disk throttles it, readers lag who are a second behind, and a disk that hangs is given up after 3 s. All brokers but the
last of five or more carry the label of the topic, so that the others must not get a replica of it whatever fails, and
moves to them are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LABEL: Final = "chaos"
SETTINGS: Final = {
    "log.block.cache.bytes": "1000000",
    "log.write.queues": "always",
    "log.dir.failure.timeout.ms": "3000",
    "lagging.consumer.throttle.enable": "true",
    "lagging.consumer.lag.bytes": "20000",
    "lagging.consumer.disk.utilization.low": "0.001",
    "lagging.consumer.disk.utilization.high": "0.002",
}
_WITHOUT_LABEL: Final = 5


def labels_of(brokers: int) -> Sequence[str]:
    """Return the labels of the brokers, in turn."""
    labelled = brokers if brokers < _WITHOUT_LABEL else brokers - 1
    return [LABEL] * labelled
