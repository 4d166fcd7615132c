"""The compiled function of the package crc32c, without the rest of the package.

The package looks up its own version when it is imported, which imports 40 modules of the standard library, and it has a
command line. That takes 12 ms of each start of a broker and of each command that reads records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final, cast

_PACKAGE, _EXTENSION = "crc32c", "_crc32c"


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
