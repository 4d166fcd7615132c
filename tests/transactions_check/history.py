"""What a run did and saw: the transactions with their steps and outcomes, and what readers of committed records got.

A record's value is `<transaction>/<number>/<of>/<cause>`: the transaction that wrote it, its place in that, how many
records that has, and the value of the record that it is a copy of, if it is one. So a value says by itself what has to
be there too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """How a transaction ended, as far as its producer was told."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "not known"


class Action(Enum):
    """A step of a transaction. The first three are recorded before they are taken, the others once they are done."""

    BEGIN = "begins"
    SEND = "sends a record"
    COMMIT = "asks to be committed"
    ACKNOWLEDGED = "is told that a record is written"
    READ = "gets records"
    COMMITTED = "is told that it is committed"


class Step(NamedTuple):
    """One step.

    at: when, by the monotonic clock of this machine, in seconds. number: of the record that is sent. read: the
    transactions whose records were read.
    """

    action: Action
    at: float
    number: int = -1
    read: frozenset[str] = frozenset()


class Position(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


class Value(NamedTuple):
    """What a record says of itself."""

    transaction: str
    number: int
    of: int
    cause: str

    def encode(self) -> bytes:
        """Return it as the value of a record."""
        return "\t".join((self.transaction, str(self.number), str(self.of), self.cause)).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> Value:
        """Return what the value of a record says."""
        transaction, number, of, cause = (data or b"").decode().split("\t")
        return cls(transaction, int(number), int(of), cause)

    @property
    def name(self) -> str:
        """What a copy names as its cause."""
        return f"{self.transaction}#{self.number}"


Reading = list[tuple[Position, Value]]


@dataclass
class History:
    """All that happened. Threads append to it.

    outcomes, steps: of each transaction. readings: what each live reader got, in its order. stable: what each watcher
    was told to be the last stable offset of each partition, in its order. final: all that is committed when everything
    has settled.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    stable: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    final: Reading = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def ended(self, transaction: str, outcome: Outcome) -> None:
        """Record how a transaction ended."""
        with self.lock:
            self.outcomes[transaction] = outcome

    def step(
        self, transaction: str, action: Action, number: int = -1, read: Collection[str] = (), at: float | None = None
    ) -> None:
        """Record a step that is about to be taken, or has been: see `Action`. at: when, if not now."""
        at = time.monotonic() if at is None else at
        self.steps.setdefault(transaction, []).append(Step(action, at, number, frozenset(read)))
