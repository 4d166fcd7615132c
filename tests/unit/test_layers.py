"""Packages import only what `tests/layers.py` allows, no modules import each other, and the documents agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layers import (
    CHECKOUT,
    EVERYWHERE,
    PACKAGE,
    RULES,
    SOURCES,
    TWISTED_NAMES,
    Twisted,
    c_imports,
    c_sources,
    circles,
    import_graph,
    imports,
    modules,
    ruled_by,
    within,
)
from tests.tools import tool

MODULES = modules(PACKAGE)
C_SOURCES = c_sources(SOURCES)


def _forbidden(name: str) -> set[str]:
    """Return what a module imports and may not."""
    package = ruled_by(name)
    rule = RULES[package] if name else RULES["base.errors"]
    own = (package, *rule.imports, *EVERYWHERE)
    faults = set()
    for imported in imports(f"pylogd.{name}".rstrip("."), MODULES[name]):
        target = imported.removeprefix("pylogd.")
        if imported.startswith("pylogd.") and target != "__version__" and not within(target, own):
            faults.add(imported)
        if imported.split(".")[0] == "twisted" and not within(name, rule.reactor):
            allowed = rule.twisted is Twisted.ALL or (rule.twisted is Twisted.NAMES and within(imported, TWISTED_NAMES))
            faults |= set() if allowed else {imported}
    return faults


def test_modules_import_only_what_their_package_may() -> None:
    faults = {f"pylogd.{name}": forbidden for name in MODULES if (forbidden := _forbidden(name))}
    assert faults == {}


@pytest.mark.parametrize("name", C_SOURCES)
def test_c_code_takes_only_what_its_package_may_import(name: str) -> None:
    package = ruled_by(name)
    allowed = (package, *RULES[package].imports, *EVERYWHERE)
    taken = sorted({target.removeprefix("pylogd.") for target in c_imports(C_SOURCES[name])})
    assert [target for target in taken if not within(target, allowed)] == []
    assert [target for target in taken if target not in MODULES and not _is_c(target)] == []


def _is_c(target: str) -> bool:
    return any(name.rpartition(".")[0] == target or name == target for name in C_SOURCES)


def test_the_names_in_c_code_are_found(tmp_path: Path) -> None:
    source = tmp_path / "_some.c"
    source.write_text('/* pylogd.cli.main */ CLASS(log, LOG, "pylogd.broker.log.log:Log") f("pylogd.wire.exceptions");')
    assert list(c_imports(source)) == ["pylogd.broker.log.log", "pylogd.wire.exceptions"]


def test_every_module_has_a_rule() -> None:
    without = [name for name in MODULES if name and not ruled_by(name)]
    parts = {".".join(name.split(".")[:2]) for name in MODULES if name.startswith("client.")}
    assert without == []
    assert parts <= set(RULES), "each part of the client has a rule of its own"


def test_every_module_named_in_the_rules_exists() -> None:
    named = {*RULES, *EVERYWHERE, *(name for rule in RULES.values() for name in (*rule.imports, *rule.reactor))}
    assert sorted(named - set(MODULES) - {"protocol"}) == []


def test_the_rules_make_layers() -> None:
    """No package may import one that may import it."""
    packages = {
        package: {ruled_by(name) for name in rule.imports} - {package}
        | (set() if package in EVERYWHERE else set(EVERYWHERE))
        for package, rule in RULES.items()
    }
    assert circles(packages) == set()


def test_no_modules_import_each_other() -> None:
    roots = {"pylogd": PACKAGE, "bench": CHECKOUT / "bench", "conformance": CHECKOUT / "conformance"}
    assert [sorted(circle) for circle in circles(import_graph(roots))] == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("import p.b", "from p import a"),
        ("from p.b import x", "def f():\n    from p.a import y"),
        ("from . import b", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import y"),
    ],
)
def test_a_circle_is_found(tmp_path: Path, first: str, second: str) -> None:
    for name, text in {"__init__": "", "a": first, "b": second, "c": "import p.a\nfrom p import b"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert circles(import_graph({"p": tmp_path})) == {frozenset({"p.a", "p.b"})}


def test_the_table_in_the_architecture_is_current() -> None:
    text = (CHECKOUT / "ARCHITECTURE.md").read_text("utf-8")
    assert tool("generate_package_table").with_table(text) == text, "run python tools/generate_package_table.py"
