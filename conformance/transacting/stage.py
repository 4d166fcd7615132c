"""What a scenario has: a client, topics of its own, and a transcript of what the client answered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from conformance.transacting.driver import Driver
from pylogd.client import Admin

#: How long something that the client does not wait for by itself may take.
_SECONDS: Final = 60.0


class Stage:
    """One scenario with one client. `transcript`: (operation, answer), in order."""

    def __init__(self, driver: Driver, address: str, name: str) -> None:
        """name: of the scenario and the client; all names begin with it."""
        self._driver = driver
        self._address = address
        self._name = name
        self.transcript: list[tuple[str, Any]] = []
        self._open: list[str] = []

    def topic(self, name: str, partitions: int = 1) -> str:
        """Make a topic, and return its name."""
        full = self.named(name)
        with Admin(self._address) as admin:
            admin.create_topic(full, partitions, 1)
        return full

    def named(self, name: str) -> str:
        """Return a name of this scenario: of a topic, a group or a transactional id."""
        return f"{self._name}-{name}"

    def __call__(self, do: str, **fields: Any) -> Any:
        """Have the client do an operation. Keep its answer in the transcript, and return it."""
        answer = self.quietly(do, **fields)
        said = " ".join([do, *(str(fields[key]) for key in ("name", "topic", "isolation") if key in fields)])
        self.transcript.append((said.replace(f"{self._name}-", ""), answer))
        return answer

    def quietly(self, do: str, **fields: Any) -> Any:
        """Have the client do an operation, whose answer depends on the time."""
        if do in ("consumer", "producer"):
            self._open.append(fields["name"])
        if do == "close":
            self._open.remove(fields["name"])
        return self._driver(do, **fields)

    def keep(self, what: str, answer: Any) -> None:
        """Keep something in the transcript."""
        self.transcript.append((what, answer))

    def producer(self, name: str, id: str = "id", timeout: int = 30000) -> None:
        """Make a producer that has begun with its id. Keep the outcome."""
        self.quietly("producer", name=name, id=self.named(id), timeout=timeout)
        self("init", name=name)

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        """Ask until something is so; keep the last answer, and return it."""
        deadline = time.monotonic() + _SECONDS
        while not (found := condition()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.keep(what, found)
        return found

    def settled(self, names: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
        """Poll members until they have so many partitions each, in any order. Keep the sizes, and return the shares."""
        deadline = time.monotonic() + _SECONDS
        while True:
            for name in names:
                self.quietly("poll", name=name, ms=100)
            shares: list[list[str]] = [self.quietly("assignment", name=name) for name in names]
            if sorted(map(len, shares)) == sorted(sizes) or time.monotonic() > deadline:
                break
        self.keep(f"sizes of {len(names)}", sorted(map(len, shares)))
        self.keep("partitions", sorted(place.removeprefix(f"{self._name}-") for share in shares for place in share))
        return shares

    def close(self) -> None:
        """Close what is open."""
        for name in list(self._open):
            if not self._driver.broken:
                with contextlib.suppress(RuntimeError):
                    self.quietly("close", name=name)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        with Admin(self._address) as admin:
            admin.create_partitions(topic, partitions)

    def limit(self, topic: str) -> None:
        """Let a topic take batches of 1,000 bytes at most."""
        with Admin(self._address) as admin:
            admin.alter_configs("topic", topic, {"max.message.bytes": "1000"})
