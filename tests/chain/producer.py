"""A producer process of the chain: it sends numbered events through the audit, and writes a journal of its own.

    python producer.py BOOTSTRAP TOPIC NAME EVENTS A_SECOND WINDOW_MS PADDING FOLDER

FOLDER/NAME.journal has a line for each event before it is sent, `S NUMBER MS`, and one once it is acknowledged,
`A NUMBER PARTITION OFFSET`, or failed, `F NUMBER ERROR`. A line has been given to the kernel, so it survives `kill -9`.
FOLDER/allowed has how many events each producer may have sent. An event's value is `NAME NUMBER MS` and PADDING bytes.
A process that is started again continues after the last number that its journal has; it does not send again what it
doesn't know about. The audit's journal is FOLDER/NAME.audit.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from pylogd.base.clock import wall_ms
from pylogd.client import AuditedProducer, Producer
from pylogd.client.blocking.producer import Delivery

_TURN_SECONDS: Final = 0.02
_BUFFERED: Final = 32 * 1024 * 1024


class Journal:
    """The producer's own journal, which the audit does not know."""

    def __init__(self, path: Path) -> None:
        before = path.read_bytes().split(b"\n") if path.exists() else []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.next = 1 + max((int(line.split()[1]) for line in before if line.startswith(b"S ")), default=-1)

    def write(self, line: str) -> None:
        """Append a line."""
        os.write(self._file, line.encode() + b"\n")


class Allowance:
    """How many events may have been sent, as the harness says in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._allowed = 0

    def has(self, number: int) -> bool:
        """Whether the event of this number may be sent."""
        if number >= self._allowed:
            self._allowed = int(self._path.read_text())
        return number < self._allowed


class Sending:
    """The events that are on their way."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pending: deque[tuple[int, Delivery]] = deque()

    def add(self, number: int, delivery: Delivery) -> None:
        """Note an event that was sent."""
        self._pending.append((number, delivery))

    def note(self) -> None:
        """Note in the journal what has arrived. Events of different partitions arrive in another order."""
        for _ in range(len(self._pending)):
            number, delivery = self._pending.popleft()
            if not delivery.done:
                self._pending.append((number, delivery))
            elif delivery.error is not None:
                self._journal.write(f"F {number} {delivery.error!r}")
            else:
                self._journal.write(f"A {number} {delivery.partition} {delivery.offset}")

    @property
    def some(self) -> bool:
        """Whether events are on their way."""
        return bool(self._pending)


def main(
    bootstrap: str, topic: str, name: str, events: str, a_second: str, window_ms: str, padding: str, folder: str
) -> None:
    """Send the events."""
    journal = Journal(Path(folder, f"{name}.journal"))
    sending, behind, filler = Sending(journal), int(events), b"." * int(padding)
    with Producer(
        bootstrap, idempotence=True, linger_ms=5, buffer_memory=_BUFFERED, delivery_timeout=600.0, max_block=600.0
    ) as producer, AuditedProducer(
        producer, topic=f"{topic}-audit", window_ms=int(window_ms), server=name, journal=Path(folder, f"{name}.audit")
    ) as audited:  # fmt: skip
        allowance, due = Allowance(Path(folder, "allowed")), time.monotonic()
        for number in range(journal.next, behind):
            while not allowance.has(number):
                time.sleep(_TURN_SECONDS)
                sending.note()
            ms = wall_ms()
            journal.write(f"S {number} {ms}")
            value = b"%s %d %d %s" % (name.encode(), number, ms, filler)
            sending.add(number, audited.send(topic, value, key=b"%d" % (number % 100)))
            due = max(due + 1 / float(a_second), time.monotonic() - _TURN_SECONDS)
            if due > time.monotonic() + _TURN_SECONDS:
                time.sleep(_TURN_SECONDS)
                sending.note()
        while sending.some:
            time.sleep(_TURN_SECONDS)
            sending.note()


if __name__ == "__main__":
    main(*sys.argv[1:])
