"""Keep modules out of a broker's start that only unused parts of other packages need.

`http.cookiejar` brings Python's HTTP client, and 8 ms of regular expressions: Twisted has it for the client of
`twisted.web`. `pdb` is for a debugger in `construct`.

Strategy: while the block of `imported_lazily` runs, the import of such a module makes an empty one, which is filled
when one of its attributes is used for the first time (`importlib.util.LazyLoader`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Final

NAMES: Final = frozenset({"http.cookiejar", "pdb"})


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
