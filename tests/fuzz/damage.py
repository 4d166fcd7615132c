"""Damage bytes by chance, as often as not near their start, where headers are."""

from __future__ import annotations

import random

_HEADERS = 140  # bytes of a request that are not records
_TELLING = (0, 1, 2, 127, 128, 255)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes with one or two others."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 2) if changed else 0):
        place = chance.randrange(len(changed) if chance.random() < 0.5 else min(len(changed), _HEADERS))
        changed[place] = chance.choice((*_TELLING, chance.randrange(256)))
    return bytes(changed)
