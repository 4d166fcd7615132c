"""The actions that a network asks of a face: open, write to and close transports; run work. `L` is the type of link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

L = TypeVar("L")


@dataclass(slots=True)
class Open(Generic[L]):
    """Effect: connect to `link.host`:`link.port`, then report `opened` or `lost`."""

    link: L


@dataclass(slots=True)
class Write(Generic[L]):
    """Effect: write `parts` in order. Each is bytes or another buffer that does not change."""

    link: L
    parts: list[Any]


@dataclass(slots=True)
class Close(Generic[L]):
    """Effect: close the transport of `link`, if it is open. Report no more events of it."""

    link: L


@dataclass(slots=True)
class Work(Generic[L]):
    """Effect: make a call that may take long, in another thread; then report its outcome to `link.worked`."""

    link: L
    call: Callable[[], bytes | None]
