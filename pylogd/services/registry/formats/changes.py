"""Collect the incompatible changes between two schemas, each with its place in the schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Changes:
    """The changes that a comparison has found so far, and its present place."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._path: list[str] = []

    @contextmanager
    def at(self, *names: object) -> Iterator[None]:
        """Set a place below the present one for the `with` block."""
        self._path += map(str, names)
        try:
            yield
        finally:
            del self._path[len(self._path) - len(names) :]

    def report(self, change: str, *names: object) -> None:
        """Add a change at the present place, or at a place below it."""
        self.found.append(f"{change} at #/{'/'.join([*self._path, *map(str, names)])}")

    def once(self) -> list[str]:
        """Return each change once, in the order in which they were found."""
        return list(dict.fromkeys(self.found))
