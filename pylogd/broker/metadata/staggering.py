"""Spread work over time that one event would make all brokers of a large cluster do at the same moment.

Strategy: a watch calls every broker at once, and each then reads. One server of ZooKeeper answers some thousand
requests per second. So a broker that has to act, such as a new controller, would wait for all the others. Therefore
each broker waits for its share of the time in which the server answers them all, which does not delay the last one
further.

Must not know: what brokers do then.
"""

from __future__ import annotations

import zlib

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime


def share(of: int, event: int) -> float:
    """Return which share of the time a broker waits, from 0 to 1. The share differs for each event."""
    return zlib.crc32(b"%d %d" % (event, of)) / 2**32


def sleep(clock: IReactorTime, seconds: float) -> Deferred[None]:
    """Return a Deferred that fires after this many seconds, and can be cancelled."""
    done: Deferred[None] = Deferred(lambda _: later.cancel())
    later = clock.callLater(seconds, done.callback, None)
    return done
