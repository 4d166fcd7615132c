"""Let one coroutine run at a time, even if a signal handler raises between any two instructions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import CORO_RUNNING, CORO_SUSPENDED, getcoroutinestate
from typing import Any, TypeVar

T = TypeVar("T")


class OneAtATime:
    """Tell whether a coroutine is in progress, by the coroutine's own state: a flag could stay set after a signal."""

    def __init__(self) -> None:
        self._present: Coroutine[Any, Any, Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether a coroutine is in progress."""
        return self._present is not None and getcoroutinestate(self._present) in (CORO_RUNNING, CORO_SUSPENDED)

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the coroutine that `make` returns."""
        coroutine = self._present = make()
        try:
            return await coroutine
        finally:
            self._present = None
