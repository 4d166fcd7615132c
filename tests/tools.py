"""Programs that tests need: those of `tools/` as modules, which write files of the checkout, and promtool."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
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


def promtool(*arguments: str, text: bytes = b"", folder: Path | None = None) -> str:
    """Run promtool in a folder, and return what it says. It must succeed. text: its standard input."""
    path = f"{os.environ['PATH']}:{CHECKOUT / '.cache' / 'promtool' / 'usr' / 'bin'}"
    found = shutil.which("promtool", path=path)
    assert found is not None, "these tests need promtool: sh tools/find-promtool.sh downloads it"
    done = subprocess.run([found, *arguments], input=text, capture_output=True, timeout=60, check=False, cwd=folder)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def haproxy() -> str:
    """Return the path of HAProxy."""
    found = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert found is not None, "these tests need HAProxy: sh tools/find-haproxy.sh installs it"
    return found
