"""Which offset is the last of each key: the memory of a compaction, 24 bytes an entry and not one more.

Strategy: one block of anonymous memory, taken once, is an open-addressed table. An entry is the 16-byte BLAKE2b hash of
a key and its offset, which is kept plus one so that zeroed memory is an empty table. A second value from the same hash
is the distance between tries, and the number of entries is a prime, so every probe reaches every entry. Two keys with
one hash would be taken for one; for 16 bytes of BLAKE2b nobody can find such a pair, let alone meet one.

Rules: nothing is ever removed but all at once, which also gives the memory back to the system. It is full at
`load_factor` of its entries; the caller asks `room` before it puts. One thread uses a map.
Must not know: batches, files.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterable
from hashlib import blake2b

ENTRY_BYTES = 24
NOT_FOUND = -1

_WORDS = 3  # of 8 bytes: two of hash, one of offset + 1
_HASH_BYTES = 16
_LEAST_SLOTS = 3
_split = struct.Struct("QQ").unpack


class KeyMap:
    """See the module. `nbytes` is at most `memory`; `capacity` is how many keys it takes."""

    def __init__(self, memory: int, load_factor: float = 0.9) -> None:
        self.slots = _prime_up_to(memory // ENTRY_BYTES)
        self.capacity = max(min(int(self.slots * load_factor), self.slots - 1), 1)
        self.nbytes = self.slots * ENTRY_BYTES
        self.count = 0
        self._memory = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._words = memoryview(self._memory).cast("Q")

    def __len__(self) -> int:
        return self.count

    @property
    def room(self) -> int:
        """How many more keys it takes."""
        return self.capacity - self.count

    def put_all(self, keys: Iterable[bytes | None], offsets: Iterable[int]) -> None:
        """Say for each key that its last offset is this one; of a key that comes twice the later counts."""
        words, slots = self._words, self.slots
        limit = slots * _WORDS
        for key, offset in zip(keys, offsets, strict=False):
            if key is None:
                continue
            low, high = _split(blake2b(key, digest_size=_HASH_BYTES).digest())
            at = low % slots * _WORDS
            if words[at + 2]:
                if words[at] != low or words[at + 1] != high:
                    step = (high % (slots - 1) + 1) * _WORDS
                    at = (at + step) % limit
                    while words[at + 2] and (words[at] != low or words[at + 1] != high):
                        at = (at + step) % limit
                if words[at + 2]:
                    words[at + 2] = offset + 1
                    continue
            if self.count >= self.capacity:
                raise MemoryError(f"a key map of {self.capacity} keys is full")
            self.count += 1
            words[at] = low
            words[at + 1] = high
            words[at + 2] = offset + 1

    def latest(self, keys: Iterable[bytes | None]) -> list[int]:
        """The last offset of each key, `NOT_FOUND` of those that were never put and of null."""
        words, slots = self._words, self.slots
        limit = slots * _WORDS
        found: list[int] = []
        append = found.append
        for key in keys:
            if key is None:
                append(NOT_FOUND)
                continue
            low, high = _split(blake2b(key, digest_size=_HASH_BYTES).digest())
            at = low % slots * _WORDS
            offset = words[at + 2]
            if offset and (words[at] != low or words[at + 1] != high):
                step = (high % (slots - 1) + 1) * _WORDS
                while True:
                    at = (at + step) % limit
                    offset = words[at + 2]
                    if not offset or (words[at] == low and words[at + 1] == high):
                        break
            append(offset - 1)
        return found

    def clear(self) -> None:
        """Forget all and let the system have the memory until it is used again."""
        self.count = 0
        self._memory.madvise(mmap.MADV_DONTNEED)  # private and anonymous: it reads as zeros from now on


def _prime_up_to(number: int) -> int:
    """The largest prime not above `number`, and at least 3."""
    candidate = max(number, _LEAST_SLOTS)
    while any(candidate % divisor == 0 for divisor in range(2, int(candidate**0.5) + 1)):
        candidate -= 1
    return candidate
