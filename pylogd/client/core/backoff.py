"""Compute the pauses between retries."""

from __future__ import annotations

import random


class Backoff:
    """Pauses before retries: doubling from `first` to `most` seconds, with 20 % of jitter."""

    __slots__ = ("_delay", "_first", "_most", "_random")

    def __init__(self, first: float = 0.1, most: float = 1.0, rng: random.Random | None = None) -> None:
        """Tests pass `rng` to know the jitter."""
        self._first = first
        self._most = most
        self._delay = first
        self._random = rng or random.Random()

    def next(self) -> float:
        """Return the next pause in seconds."""
        delay = self._delay
        self._delay = min(delay * 2, self._most)
        return delay * self._random.uniform(0.8, 1.2)

    def reset(self) -> None:
        """Start again from `first`, after a success."""
        self._delay = self._first
