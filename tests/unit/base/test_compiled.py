"""Compiled modules are loaded in one place, which one variable of the environment turns off."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pylogd.base import compiled
from tests.layers import PACKAGE, SOURCES

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
    found = [path.relative_to(SOURCES.parent).with_suffix("") for path in sorted(SOURCES.rglob("_*.c"))]
    assert found
    return [".".join(path.parts) for path in found]


def _compiled() -> bool:
    return all(list((PACKAGE.parent / name.replace(".", "/")).parent.glob("_*.so")) for name in _names())


@pytest.mark.parametrize("pure", ["", "1"])
def test_one_variable_turns_all_compiled_modules_off(pure: str) -> None:
    if not pure and not _compiled():
        pytest.skip("there was no compiler")
    # Safe path: the checkout must not hide the installed package.
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYLOGD_PURE_PYTHON": pure, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", _IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    imported, in_use = done.stdout.splitlines()
    assert imported.split() == ([] if pure else _names())
    assert int(in_use) == (0 if pure else 3)


def test_nothing_else_imports_a_compiled_module() -> None:
    """All of them are loaded by name. An import statement would ignore the variable."""
    names = "|".join(name.rpartition(".")[2] for name in _names())
    statement = re.compile(rf"^\s*(from|import)\s.*(?<!\bas )\b({names})\b", re.MULTILINE)
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


class Attributes:
    """What a compiled module uses."""

    __slots__ = ("plain",)

    annotated: int

    def method(self) -> None:
        """Do nothing."""


Pair = tuple[int, str]
NUMBER = 7
BYTES = b"abc"


def _declare(**declared: Any) -> list[str]:
    return compiled.differences(SimpleNamespace(**declared))


@pytest.mark.parametrize(
    ("slots", "others", "missing"),
    [
        ("plain ", "annotated method ", []),
        ("plain renamed ", "", ["slot renamed"]),
        ("method ", "", ["slot method"]),
        ("", "gone plain ", ["attribute gone"]),
    ],
)
def test_missing_attributes_are_found(slots: str, others: str, missing: list[str]) -> None:
    name = f"{__name__}:Attributes"
    assert _declare(USES=[(name, slots, others)]) == [f"{name} has no {what}" for what in missing]


def test_other_constants_are_found() -> None:
    same = [("Pair", 2.0), ("NUMBER", 7.0), ("BYTES", 3.0)]
    assert _declare(CONSTANTS=[(f"{__name__}:{name}", value) for name, value in same]) == []
    assert _declare(CONSTANTS=[(f"{__name__}:Pair", 3.0)]) == [f"{__name__}:Pair is 2, not 3"]
    assert _declare(CONSTANTS=[(f"{__name__}:GONE", 1.0)]) == [f"{__name__}:GONE is None, not 1"]


def test_a_module_that_does_not_fit_is_not_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "PURE_PYTHON", False)
    module = ModuleType("old_compiled")
    module.USES = [(f"{__name__}:Attributes", "renamed", ""), (f"{__name__}:Gone", "", "x")]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "old_compiled", module)
    assert compiled.load("old_compiled") is None
    assert [record.message for record in caplog.records] == [
        "Slower Python code replaces the compiled module old_compiled, which does not fit the sources. Build it again. "
        f"{__name__}:Attributes has no slot renamed; {__name__}:Gone has no attribute x"
    ]


@pytest.mark.parametrize("name", _names())
def test_compiled_modules_fit_the_sources(name: str) -> None:
    """An attribute or a constant that was renamed here has to be renamed in the C file."""
    try:
        module = import_module(name)
    except ImportError:
        pytest.skip("there was no compiler")
    assert compiled.differences(module) == []


def test_the_compiled_road_of_a_record_declares_what_it_uses() -> None:
    module = pytest.importorskip("pylogd.broker.api.fast._repeated", reason="there was no compiler")
    declared = {name.rpartition(":")[2]: set((slots + others).split()) for name, slots, others in module.USES}
    assert {"log_end_offset", "_lock", "read"} <= declared["Log"]
    assert {"_watched", "check"} <= declared["Purgatory"]
    assert {"size", "write", "cached"} <= declared["Segment"]
    assert len(module.CONSTANTS) >= 10
