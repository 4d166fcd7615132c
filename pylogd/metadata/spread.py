"""Spread over time what an event would have all brokers of a large cluster do at the same moment.

Strategy: a watch tells every broker at once, and each then reads. One server of ZooKeeper answers some thousand
requests a second, so the broker that has to act, such as a new controller, would wait behind all others. Each therefore
waits for its share of the time that the server takes to answer them all, which delays the last one no further.

Must not know: what brokers do then.
"""

from __future__ import annotations

import zlib

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime


def share(of: int, event: int) -> float:
    """Return a number from 0 to 1: how much of the time a broker waits, another one after each event."""
    return zlib.crc32(b"%d %d" % (event, of)) / 2**32


def sleep(clock: IReactorTime, seconds: float) -> Deferred[None]:
    """Return a Deferred that fires after so many seconds, and can be cancelled."""
    done: Deferred[None] = Deferred(lambda _: later.cancel())
    later = clock.callLater(seconds, done.callback, None)
    return done
