"""Load the modules that are compiled from C: the only place that does.

Strategy: each compiled module is optional. Its user calls `load`, and has a substitute in Python for None: the module
is missing where there was no compiler. PYLOGD_PURE_PYTHON in the environment turns all of them off, with any value but
an empty one.

Rules: a module that exists but can't be loaded is reported in the log, since the broker is slower without it.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from types import ModuleType
from typing import Final

_log = logging.getLogger(__name__)

#: Whether compiled modules are not used. Read once, at the start of the process.
PURE_PYTHON: Final = bool(os.environ.get("PYLOGD_PURE_PYTHON"))


def load(name: str) -> ModuleType | None:
    """Return a compiled module by its full name; None if it was not compiled, or if compiled modules are turned off."""
    if PURE_PYTHON:
        return None
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        _log.warning("Slower Python code replaces the compiled module %s, which could not be loaded: %s", name, error)
        return None
