"""Choose which extreme requests come, and in which order.

Strategy: rounds. In a round each API comes once at each of its versions, in a random order, with one thing about it
that is extreme; in between come the attacks that are known by name. Sizes are spread evenly over their magnitudes, so
small requests are as frequent as large ones. Only the request that is chosen is built: to build a large one takes
longer than to answer it. A few are beyond the broker's bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from pylogd.broker.api.registry import served_versions
from tests.extreme.attacks import CONVERSATIONS, TABLE
from tests.extreme.messages import Extreme, Sizes, variants
from tests.extreme.state import Known

#: A request to send, or an attack of many requests with its scale.
Chosen = Extreme | tuple[Callable[..., Any], float]

_MOST_ELEMENTS: Final = 20_000  # `request.max.elements`
_MOST_DATA: Final = 80 << 20
_BEYOND: Final = 0.003  # the share of requests whose arrays are larger than the bound
_FACTOR: Final = 20
_NAMED: Final = 0.1  # the share of attacks that are known by name
_CONVERSATIONS: Final = 0.002
_SCALES: Final = (0.01, 0.1, 1.0)
_CONVERSED: Final = (0.01, 0.05, 0.25)


class Chooser:
    """Chooses requests. known: what exists on the broker. missing: versions of APIs that did not come yet."""

    def __init__(self, rng: Random, known: Known) -> None:
        self._rng = rng
        self._known = known
        self._all = [(key, v) for key, (first, last) in served_versions().items() for v in range(first, last + 1)]
        self._round: list[tuple[int, int]] = []
        self._attacks: dict[tuple[Callable[..., Extreme], float], Extreme] = {}
        self.missing = set(self._all)

    def next(self) -> Chosen:
        """Return what to send next."""
        kind = self._rng.random()
        if kind < _CONVERSATIONS:
            return self._rng.choice(CONVERSATIONS), self._rng.choice(_CONVERSED)
        if kind < _CONVERSATIONS + _NAMED:
            return self._attack(self._rng.choice(TABLE), self._rng.choice(_SCALES))
        if not self._round:
            self._round = self._rng.sample(self._all, len(self._all))
        key, version = self._round.pop()
        self.missing.discard((key, version))
        return self._rng.choice(variants(key, version, self._known, self._sizes())).build()

    def _sizes(self) -> Sizes:
        elements = int(_MOST_ELEMENTS ** self._rng.random())
        if self._rng.random() < _BEYOND:
            elements *= _FACTOR
        return Sizes(elements, int(_MOST_DATA ** self._rng.random()))

    def _attack(self, attack: Callable[[Known, float], Extreme], scale: float) -> Extreme:
        """Return an attack, which is built once: some have hundreds of thousands of elements."""
        if (attack, scale) not in self._attacks:
            self._attacks[attack, scale] = attack(self._known, scale)
        return self._attacks[attack, scale]
