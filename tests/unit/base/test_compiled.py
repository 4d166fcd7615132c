"""Compiled modules are loaded in one place, which one variable of the environment turns off."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pylogd.base import compiled
from tests.layers import PACKAGE

#: Prints which compiled modules of pylogd a broker with TLS imports.
_IMPORT = (
    "import sys, pylogd.broker.broker, pylogd.client.blocking, pylogd.link.tls_records as tls\n"
    "import pylogd.broker.log.residency as residency, pylogd.wire.records as records\n"
    "print(*sorted(n for n in sys.modules if n.startswith('pylogd.') and n.rpartition('.')[2].startswith('_')\n"
    "              and getattr(sys.modules[n], '__file__', '').endswith('.so')))\n"
    "found = (records.speedups, tls._send_records, residency.send_resident is not residency.leave)\n"
    "print(sum(map(bool, found)))\n"
)


def _names() -> list[str]:
    """Return the names of the compiled modules, by their sources."""
    found = [path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(PACKAGE.rglob("_*.c"))]
    return [".".join(path.parts) for path in found]


def _compiled() -> bool:
    return all(list((PACKAGE.parent / name.replace(".", "/")).parent.glob("_*.so")) for name in _names())


@pytest.mark.parametrize("pure", ["", "1"])
def test_one_variable_turns_all_compiled_modules_off(pure: str) -> None:
    if not pure and not _compiled():
        pytest.skip("there was no compiler")
    environment = {**os.environ, "PYLOGD_PURE_PYTHON": pure, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    imported, in_use = done.stdout.splitlines()
    assert imported.split() == ([] if pure else _names())
    assert int(in_use) == (0 if pure else 3)


def test_nothing_else_imports_a_compiled_module() -> None:
    """All of them are loaded by name. An import statement would ignore the variable."""
    names = "|".join(name.rpartition(".")[2] for name in _names())
    statement = re.compile(rf"^\s*(from\s+\S*\b({names})\s+import|(from|import)\s.*\b({names})\b)", re.MULTILINE)
    found = [str(path) for path in PACKAGE.rglob("*.py") if statement.search(path.read_text("utf-8"))]
    assert found == []


def test_a_missing_module_is_none(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PURE_PYTHON", False)
    assert compiled.load("pylogd.base._missing") is None
    assert caplog.records == []


def test_a_broken_module_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "PURE_PYTHON", False)
    (tmp_path / "broken_compiled.py").write_text("raise ImportError('undefined symbol: x')")
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert compiled.load("broken_compiled") is None
    assert [record.message for record in caplog.records] == [
        "Slower Python code replaces the compiled module broken_compiled, which could not be loaded: "
        "undefined symbol: x"
    ]
