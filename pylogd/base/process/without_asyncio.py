"""Keep asyncio out of a broker, which has Twisted's reactor as its only event loop.

`twisted.internet.defer` imports three names from asyncio, of which it calls one. They bring in 30 modules, `ssl` among
them: a twentieth of what a start without partitions takes.

Strategy: while that one module is imported, `asyncio` is a module with only these names. After it asyncio can be
imported as ever. If a release of Twisted wants other names, its module is imported as usual, with asyncio.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Coroutine
from types import CoroutineType, ModuleType
from typing import Final

_ASYNCIO: Final = "asyncio"
_DEFER: Final = "twisted.internet.defer"


def import_deferred() -> None:
    """Import `twisted.internet.defer`, without asyncio if it can do without."""
    if _ASYNCIO in sys.modules:
        return
    sys.modules[_ASYNCIO] = _Names(_ASYNCIO)
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module(_DEFER)
    finally:
        del sys.modules[_ASYNCIO]


class _Names(ModuleType):
    """The names that Twisted imports. It has the two classes for its annotations, which nothing evaluates."""

    AbstractEventLoop = Future = object

    @staticmethod
    def iscoroutine(value: object) -> bool:
        """Return whether a value is a coroutine."""
        return isinstance(value, (CoroutineType, Coroutine))
