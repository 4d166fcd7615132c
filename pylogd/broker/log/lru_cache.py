"""A bounded cache of the most recently used values: open files and indexes of older segments."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class LruCache(Generic[V]):
    """A cache of values by key, limited by the sum of their weights. Drops the least recently used. Thread-safe."""

    def __init__(self, capacity: int, weigh: Callable[[V], int]) -> None:
        self.capacity = capacity
        self.weight = 0
        self._weigh = weigh
        self._entries: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> V | None:
        """Return a value, and mark it as used; None if it is not in the cache."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: str, value: V) -> None:
        """Add a value. The value added last is always kept, whatever its weight."""
        with self._lock:
            self._drop(key)
            self._entries[key] = value
            self.weight += self._weigh(value)
            while self.weight > self.capacity and len(self._entries) > 1:
                _, old = self._entries.popitem(last=False)
                self.weight -= self._weigh(old)

    def discard(self, key: str) -> None:
        """Remove a value, if it is in the cache."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self.weight -= self._weigh(old)
