"""Call the interceptors of a client, so that an exception in one is logged and has no other effect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def overridden(interceptors: Sequence[Any], base: type, method: str) -> list[Callable[..., Any]]:
    """Return `method` of every interceptor that overrides the method of `base`."""
    default = getattr(base, method)
    return [getattr(each, method) for each in interceptors if getattr(type(each), method, default) is not default]


def check_interceptors(interceptors: Sequence[Any], base: type) -> None:
    """Raise ValueError if an object is not an interceptor."""
    for each in interceptors:
        if not isinstance(each, base):
            raise ValueError(f"interceptors must be instances of {base.__name__}, not {each!r}")


def changed_by(log: logging.Logger, hooks: Sequence[Callable[[T], T]], subject: T) -> T:
    """Pass `subject` through the hooks, each with the result of the previous one; return the last result."""
    for hook in hooks:
        try:
            changed = hook(subject)
            if not isinstance(changed, type(subject)):
                raise TypeError(f"it returned {type(changed).__name__} instead of {type(subject).__name__}")
            subject = changed
        except Exception:
            log.exception("interceptor %s failed; its input is used unchanged", _name(hook))
    return subject


def tell(log: logging.Logger, hooks: Sequence[Callable[..., Any]], *what: Any) -> None:
    """Call every hook."""
    for hook in hooks:
        try:
            hook(*what)
        except Exception:
            log.exception("interceptor %s failed", _name(hook))


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
