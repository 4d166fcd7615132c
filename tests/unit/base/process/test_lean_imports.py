"""Modules that a start does not need are there, but empty until they are used."""

from __future__ import annotations

import subprocess
import sys

from pylogd.base.process.lean_imports import imported_lazily

_PROGRAM = """
import sys
from pylogd.base.process.lean_imports import imported_lazily
with imported_lazily():
    from http import cookiejar
    import json.tool
print("http.cookiejar" in sys.modules, "urllib.request" in sys.modules, json.tool.__name__)
print(cookiejar.CookieJar.__name__, "urllib.request" in sys.modules)
"""


def test_a_module_is_filled_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True False json.tool\nCookieJar True\n", "")


def test_later_imports_are_as_usual() -> None:
    before = list(sys.meta_path)
    with imported_lazily():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before
