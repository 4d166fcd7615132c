"""The producer of a round: it writes numbered messages in a thread, as many as the harness allows so far."""

from __future__ import annotations

import random
import threading
import time

from pylogd.client import Producer
from pylogd.wire.records import NewRecord

PARTITIONS = 4
START_MS = 1_700_000_000_000
STEP_MS = 4  # between the time stamps of two messages: a million messages take more than an hour
SET = 500


class Writer(threading.Thread):
    """Write the topic's messages in a thread, up to an allowed number.

    Sets of messages go to the partitions in turn; message n has the time stamp START_MS + n * STEP_MS.
    error: what ended it early.
    """

    def __init__(self, address: str, topic: str, messages: int, seed: int, *, a_second: float = 0.0) -> None:
        """a_second: how many messages it writes in a second; 0 for as many as it can."""
        super().__init__(name="writer", daemon=True)
        self._address, self._topic, self._messages = address, topic, messages
        self._rng = random.Random(seed)
        self._noise = self._rng.randbytes(1 << 16)
        self._allowed = 0
        self._pause = SET / a_second if a_second else 0.0
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def allow(self, messages: int) -> None:
        """Allow writing up to `count` messages."""
        with self._changed:
            self._allowed = max(self._allowed, min(messages, self._messages))
            self._changed.notify()

    def trickle(self) -> None:
        """Allow one more set of messages."""
        self.allow(self._allowed + SET)

    @property
    def is_exhausted(self) -> bool:
        """Whether all messages are allowed, so that none can be added."""
        return self._allowed >= self._messages

    def run(self) -> None:
        try:
            with Producer(self._address, idempotence=True, compression="zstd") as producer:
                for number in range(0, self._messages, SET):
                    behind = min(number + SET, self._messages)
                    self._wait_until_allowed(behind)
                    some = [self._record(each) for each in range(number, behind)]
                    producer.send_set(self._topic, some, partition=number // SET % PARTITIONS)
                    time.sleep(self._pause)
        except BaseException as error:
            self.error = error

    def _wait_until_allowed(self, messages: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: messages <= self._allowed)

    def _record(self, number: int) -> NewRecord:
        """Return a message with an incompressible value of up to 200 bytes. Every 50th value is null."""
        at, size = self._rng.randrange(1 << 16), self._rng.randrange(200)
        value = None if number % 50 == 49 else b"%d/%b" % (number, self._noise[at : at + size])
        headers = [("n", b"%d" % number)] if number % 20 == 0 else []
        return NewRecord(b"key %d" % (number % 1000), value, START_MS + number * STEP_MS, headers)
