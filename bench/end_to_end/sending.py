"""Send events at a constant rate, in a process of its own.

    python -m bench.end_to_end.sending ADDRESS TOPIC RATE SECONDS

Every 10 ms it sends what is due by then. An event's time stamp is when it was given to `send`. In the end it prints a
JSON document: how many events, the first and last time stamp, and by how much it was late at most, all in milliseconds.
"""

from __future__ import annotations

import json
import sys
import time

from pylogd.base.clock import wall_ms
from pylogd.client import Producer

SIZE = 100
_TICK = 0.01


def send(address: str, topic: str, rate: int, seconds: float) -> dict[str, float]:
    """Send, wait until everything is acknowledged, and return what was done."""
    value = b"x" * (SIZE - 12)
    sent, late = 0, 0.0
    with Producer(address, linger_ms=5) as producer:
        begin_ms, begun = wall_ms(), time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            due = int(passed * rate)
            for number in range(sent, due):
                producer.send(topic, b"%012d%b" % (number, value))
            sent = due
            took = time.monotonic() - begun - passed
            late = max(late, took - _TICK)
            time.sleep(max(_TICK - took, 0))
        end_ms = wall_ms()
    return {"sent": sent, "begin_ms": begin_ms, "end_ms": end_ms, "late_ms": round(late * 1000)}


if __name__ == "__main__":
    print(json.dumps(send(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
