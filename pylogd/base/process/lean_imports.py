"""Keep modules out of a broker's start that only unused parts of other packages need.

`http.cookiejar` brings Python's HTTP client, and 8 ms of regular expressions: Twisted has it for the client of
`twisted.web`. `pdb` is for a debugger in `construct`. While the block of `imported_lazily` runs, the import of such a
module makes an empty one, which is filled when one of its attributes is used for the first time
(`importlib.util.LazyLoader`).

A broker has Twisted's reactor as its only event loop. `twisted.internet.defer` imports three names from asyncio, of
which it calls one. They bring in 30 modules, `ssl` among them: a twentieth of what a start without partitions takes.
While `import_deferred` imports that one module, `asyncio` is a module with only these names. After it asyncio can be
imported as ever. If a release of Twisted wants other names, its module is imported as usual, with asyncio.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Coroutine, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import CoroutineType, ModuleType
from typing import Final

#: The modules that are imported when they are used.
NAMES: Final = frozenset({"http.cookiejar", "pdb"})
_ASYNCIO: Final = "asyncio"
_DEFER: Final = "twisted.internet.defer"


class _LazyFinder:
    """Finds the modules of `NAMES`, to be imported when they are used."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module; None for a module that is imported as usual."""
        spec = PathFinder.find_spec(name, path, target) if name in NAMES else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextlib.contextmanager
def imported_lazily() -> Iterator[None]:
    """Import the modules of `NAMES` lazily while the block runs."""
    finder = _LazyFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


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
