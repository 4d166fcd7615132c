"""The queue of the audit log, from the reactor's thread to the log's: bounded, with a share for each client.

If it is full, the client that has most events in it loses its oldest event to a client that has fewer, and
unauthenticated clients lose theirs before principals (`limits.shares`). A client that has most itself adds nothing. So
a client whose operations are denied repeatedly loses its own events, and not those of others.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import count, islice
from typing import Final, Generic, TypeVar

from pylogd.base.limits.shares import NOBODY, Places, Share

T = TypeVar("T")

#: How many events are taken at once.
MOST_TAKEN: Final = 1000
#: How many of them are taken while the lock is held, for which the reactor's thread may have to wait.
_UNDER_THE_LOCK: Final = 100


class AuditQueue(Generic[T]):
    """A bounded queue of events, which several threads may use. The module describes the rules."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: OrderedDict[int, T] = OrderedDict()  # the oldest first
        self._places: Places[int] = Places()
        self._numbers = count()
        self._dropped = 0
        self._changed = threading.Condition()

    def put(self, event: T, share: Share = NOBODY) -> None:
        """Add an event, if there is space for it or another event gives way to it."""
        with self._changed:
            if len(self._events) >= self._most:
                self._dropped += 1
                gives_way = self._places.share_that_gives_way(share)
                if gives_way is None:
                    return
                self._remove(next(self._places.of(gives_way)))
            number = next(self._numbers)
            self._events[number] = event
            self._places.enter(number, share.name, known=share.known)
            self._changed.notify()

    def take(self, seconds: float, most: int = MOST_TAKEN) -> list[T]:
        """Remove and return the oldest events, at most `most`. If there are none, wait up to `seconds`."""
        with self._changed:
            if not self._events and seconds > 0:
                self._changed.wait(seconds)
        taken: list[T] = []
        while len(taken) < most:
            with self._changed:
                numbers = list(islice(self._events, min(most - len(taken), _UNDER_THE_LOCK)))
                taken += [self._remove(number) for number in numbers]
            if not numbers:
                break
        return taken

    def dropped(self) -> int:
        """Return how many events were lost since the last call."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
            return dropped

    def _remove(self, number: int) -> T:
        self._places.leave(number)
        return self._events.pop(number)
