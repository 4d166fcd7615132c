"""CRC-32C: the compiled function of the package crc32c, and the CRC of a buffer whose first bytes were replaced.

The function is loaded without the rest of the package. The package looks up its own version when it is imported, which
imports 40 modules of the standard library, and it has a command line. That takes 12 ms of each start of a broker and of
each command that reads records.

Strategy for replaced bytes: the new CRC is made from the old one, without reading the other bytes. A CRC is linear. If
two buffers differ only in their first parts, take the difference of the CRCs of the first parts, and append as many
zero bytes to it as the rest has bytes: the result is the difference of the two CRCs. To append zeros is a linear map of
32 bits. Tables have the maps for 1, 2, 4, 8 ... bytes, so any number takes a few look-ups.

Source: zlib's `crc32_combine`, for the polynomial of CRC-32C.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final, cast

_PACKAGE, _EXTENSION = "crc32c", "_crc32c"
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


def _load() -> Callable[..., int]:
    """Return the function. Raises ImportError if the package is not installed."""
    extension = _load_extension()
    if extension is not None:
        return cast(Callable[..., int], extension.crc32c)
    import crc32c as package  # noqa: PLC0415 - only where its extension is not found alone

    return package.crc32c


def _load_extension() -> ModuleType | None:
    """Load the package's extension module alone; None if it is not where it is expected, or the package is loaded."""
    package = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    loader: tuple[Any, list[str]] = ExtensionFileLoader, EXTENSION_SUFFIXES
    for directory in (package and package.submodule_search_locations) or ():
        spec = FileFinder(directory, loader).find_spec(_EXTENSION)
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module if hasattr(module, "crc32c") else None
    return None


#: `crc32c(data, value=0)`: the CRC-32C of a buffer. `value` is the CRC of the bytes before it.
crc32c: Final = _load()
