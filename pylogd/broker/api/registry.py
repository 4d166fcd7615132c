"""The registry of APIs: which are served, at which versions, by which handler.

Strategy: `@handles(FetchRequest, 4, 18)` above a handler is the only registration. `dispatch`, the versions that a
connection accepts and the ApiVersions response are all derived from it, so they can't disagree.

Rules: a handler serves every version that it registers. With `advertise_from` ApiVersions announces lower versions than
are served, for clients that look for an old version before they use a new one; each use says for which client. With
`overlaps` requests of one connection may start while earlier ones of the same API wait; without it a request starts
when all earlier ones are answered. `overlaps` is for handlers whose effect, if any, is complete when they return, even
if the answer is a Deferred.

Must not know: any single API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pylogd.broker.api.context import RequestContext

M = TypeVar("M")
R = TypeVar("R")
Handler = Callable[["RequestContext", Any], Any]
"""(context, request) -> the response, a Deferred of it, or None where no reply is due."""


class Registration(NamedTuple):
    """An API with its handler; see the module for the fields."""

    api_key: int
    name: str
    first: int
    last: int
    advertise_from: int
    overlaps: bool
    handler: Handler


_registrations: dict[int, Registration] = {}
REGISTRATIONS: Mapping[int, Registration] = MappingProxyType(_registrations)
_handlers: dict[int, Handler] = {}
HANDLERS: Mapping[int, Handler] = MappingProxyType(_handlers)


def handles(
    request: type[M], first: int, last: int, *, advertise_from: int | None = None, overlaps: bool = False
) -> Callable[[Callable[[RequestContext, M], R]], Callable[[RequestContext, M], R]]:
    """Register a function as the handler of `request` at versions `first` to `last`."""
    message: Any = request

    def register(handler: Callable[[RequestContext, M], R]) -> Callable[[RequestContext, M], R]:
        key: int = message.API_KEY
        if key in _registrations:
            raise ValueError(f"{message.API_NAME} has a handler already")
        lowest = first if advertise_from is None else advertise_from
        _registrations[key] = Registration(key, message.API_NAME, first, last, lowest, overlaps, handler)
        _handlers[key] = handler
        return handler

    return register


def served_versions() -> dict[int, tuple[int, int]]:
    """Return the lowest and highest version served, by API key."""
    return {key: (found.first, found.last) for key, found in sorted(_registrations.items())}


def overlapping_apis() -> frozenset[int]:
    """Return the keys of the APIs registered with `overlaps`."""
    return frozenset(key for key, found in _registrations.items() if found.overlaps)
