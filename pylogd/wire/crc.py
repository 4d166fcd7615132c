"""Compute the CRC-32C of a buffer whose first bytes were replaced, from the old CRC, without reading the other bytes.

Strategy: a CRC is linear. If two buffers differ only in their first parts, take the difference of the CRCs of the first
parts, and append as many zero bytes to it as the rest has bytes: the result is the difference of the two CRCs. To
append zeros is a linear map of 32 bits. Tables have the maps for 1, 2, 4, 8 ... bytes, so any number takes a few
look-ups.

Source: zlib's `crc32_combine`, for the polynomial of CRC-32C.
"""

from __future__ import annotations

from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # the reflected form
_BYTES: Final = 4

#: The map that appends 2 ** index zero bytes: four tables, one for each byte of a CRC.
_Map = tuple[tuple[int, ...], ...]
_maps: list[_Map] = []


def append_zeros(value: int, size: int) -> int:
    """Return a CRC after `size` more zero bytes. The CRC must be without initial and final inversion.

    The difference of two CRCs is such a CRC. The compiled `_speedups` has the same function.
    """
    power = 0
    while size:
        if size & 1:
            if power >= len(_maps):
                _build(power)
            first, second, third, fourth = _maps[power]
            value = first[value & 255] ^ second[value >> 8 & 255] ^ third[value >> 16 & 255] ^ fourth[value >> 24]
        size >>= 1
        power += 1
    return value


def _build(power: int) -> None:
    """Build the maps up to the one for 2 ** `power` zero bytes."""
    if not _maps:
        _maps.append(_tables([_append_zero_byte(1 << bit) for bit in range(8 * _BYTES)]))
    while len(_maps) <= power:
        last = _maps[-1]
        _maps.append(_tables([_applied(last, _applied(last, 1 << bit)) for bit in range(8 * _BYTES)]))


def _append_zero_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


def _applied(tables: _Map, value: int) -> int:
    found = 0
    for number, table in enumerate(tables):
        found ^= table[value >> 8 * number & 255]
    return found


def _tables(images: list[int]) -> _Map:
    """Return the tables of a linear map, given its result for each single bit."""
    tables = []
    for number in range(_BYTES):
        table = [0]
        for image in images[8 * number : 8 * number + 8]:
            table += [value ^ image for value in table]
        tables.append(tuple(table))
    return tuple(tables)
