"""Programs of `tools/` as modules, so that tests compare what they would write with the files of the checkout."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.conftest import CHECKOUT


def tool(name: str) -> ModuleType:
    """Return `tools/<name>.py` as a module.

    What it puts on `sys.path` to import the checkout is taken away again: later tests of the same run would find the
    checkout's metadata (`*.egg-info`) in place of those of the installed wheel.
    """
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module
