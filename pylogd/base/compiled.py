"""Load the modules that are compiled from C: the only place that does.

Strategy: each compiled module is optional. Its user calls `load`, and has a substitute in Python for None: the module
is missing where there was no compiler. PYLOGD_PURE_PYTHON in the environment turns all of them off, with any value but
an empty one.

A compiled module may declare what it uses of other modules, as `broker/api/fast/_repeated.c` does: in `USES` the
attributes of classes, in `CONSTANTS` numbers that both define. `load` compares this with the present sources.

Rules: a module that exists but can't be used is reported in the log, since the broker is slower without it. A module
that declares something that is not there is not used: it would leave all work to Python code, or do something else.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from types import MemberDescriptorType, ModuleType
from typing import Any, Final, get_args

_log = logging.getLogger(__name__)

#: Whether compiled modules are not used. Read once, at the start of the process.
PURE_PYTHON: Final = bool(os.environ.get("PYLOGD_PURE_PYTHON"))


def load(name: str) -> ModuleType | None:
    """Return a compiled module by its full name; None if it was not compiled, or if compiled modules are turned off."""
    if PURE_PYTHON:
        return None
    try:
        module = import_module(name)
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        _log.warning("Slower Python code replaces the compiled module %s, which could not be loaded: %s", name, error)
        return None
    found = differences(module)
    if found:
        _log.error(
            "Slower Python code replaces the compiled module %s, which does not fit the sources. Build it again. %s",
            name, "; ".join(found),
        )  # fmt: skip
        return None
    return module


def differences(module: Any) -> list[str]:
    """Return what a compiled module declares in `USES` and `CONSTANTS` and other modules lack or define differently.

    USES: tuples of a class, as `module:name`, its attributes that must be slots, and its other attributes. The names of
        attributes are divided by spaces.
    CONSTANTS: tuples of a constant, as `module:name`, and its value: a number, the length of bytes, or the length of a
        type of tuples.
    """
    found = []
    for name, slots, others in getattr(module, "USES", ()):
        kind = _named(name)
        kinds = [] if kind is None else kind.__mro__
        found += [f"{name} has no slot {slot}" for slot in slots.split() if not _is_slot(kinds, slot)]
        found += [f"{name} has no attribute {other}" for other in others.split() if not _is_attribute(kinds, other)]
    for name, value in getattr(module, "CONSTANTS", ()):
        defined = _number(_named(name))
        if defined != value:
            found.append(f"{name} is {defined}, not {value:g}")
    return found


def _named(name: str) -> Any:
    """Return what `module:name` is; None if it is missing."""
    module, _, inside = name.partition(":")
    return getattr(import_module(module), inside, None)


def _is_slot(kinds: list[type], name: str) -> bool:
    found = [vars(kind)[name] for kind in kinds if name in vars(kind)]
    return bool(found) and isinstance(found[0], MemberDescriptorType)


def _is_attribute(kinds: list[type], name: str) -> bool:
    return any(name in vars(kind) or name in vars(kind).get("__annotations__", ()) for kind in kinds)


def _number(value: Any) -> Any:
    if isinstance(value, bytes):
        return len(value)
    return len(get_args(value)) or value
