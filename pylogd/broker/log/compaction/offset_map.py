"""A map from keys to the last offset of each, with 24 bytes of memory per entry.

It is an open-addressing hash table in one block of anonymous memory, which is allocated once. An entry is the 16-byte
BLAKE2b hash of a key, and its offset plus one, so that zeroed memory is an empty table. The step between probes comes
from the second half of the hash, and the number of entries is a prime, so that a probe sequence visits every entry.
Keys with equal hashes would be treated as one key. With 16 bytes of BLAKE2b this does not happen in practice, and
nobody can construct such keys.

Rules: `clear` removes all entries at once, and returns the memory to the operating system; single entries are never
removed. The map is full at `load_factor` of its entries; check `available` before a `put_all`. Not safe for use by
several threads. Kafka's counterpart is SkimpyOffsetMap.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterable
from hashlib import blake2b

ENTRY_BYTES = 24
NOT_FOUND = -1

_WORDS = 3  # 8-byte words of an entry: two of the hash, one of offset + 1
_HASH_BYTES = 16
_MIN_SLOTS = 3
_split = struct.Struct("QQ").unpack


class OffsetMap:
    """A map that uses at most `memory` bytes.

    nbytes: its size in bytes.
    capacity: how many keys it can hold.
    """

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
    def available(self) -> int:
        """The number of keys that can still be added."""
        return self.capacity - self.count

    def put_all(self, keys: Iterable[bytes | None], offsets: Iterable[int]) -> None:
        """Set the last offset of each key. Null keys are ignored; if a key occurs twice, the later offset counts.

        Raises MemoryError when the map is full.
        """
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
                raise MemoryError(f"an offset map of {self.capacity} keys is full")
            self.count += 1
            words[at] = low
            words[at + 1] = high
            words[at + 2] = offset + 1

    def latest(self, keys: Iterable[bytes | None]) -> list[int]:
        """Return the last offset of each key. It is NOT_FOUND for a null key and for a key that is not in the map."""
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
        """Remove all entries and return the memory to the operating system until it is used again."""
        self.count = 0
        # The mapping is private and anonymous, so it reads as zeros afterwards.
        self._memory.madvise(mmap.MADV_DONTNEED)


def _prime_up_to(number: int) -> int:
    """Return the largest prime that is not above `number`, and at least 3."""
    candidate = max(number, _MIN_SLOTS)
    while any(candidate % divisor == 0 for divisor in range(2, int(candidate**0.5) + 1)):
        candidate -= 1
    return candidate
