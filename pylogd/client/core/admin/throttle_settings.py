"""The settings that throttle replicas which are not in sync, such as those of a reassignment."""

from __future__ import annotations

from typing import Final

#: Settings of brokers: the bytes per second that each may send and copy.
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
#: Settings of topics: the replicas that are throttled.
THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
#: The value of `THROTTLED` for all replicas.
ALL_REPLICAS: Final = "*"
