"""Functions have at most 45 lines and modules at most 500, so that each can be read in one sitting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("pylogd", "bench", "conformance", "examples", "tests", "tools")
MOST_IN_FUNCTION = 45
MOST_IN_MODULE = 500
#: Modules that are tables, by their path, and what they are tables of.
TABLES = {
    "pylogd/config/tables.py": "generated from pylogd/config/*.toml: the settings",
    "pylogd/wire/messages/": "generated from protocol/apis: a class for each structure of an API",
}
#: Functions and modules that are too long and still to be split, with their lengths. The list must match exactly:
#: remove what was split, and add nothing.
TOO_LONG: dict[str, int] = {}


def too_long(root: Path) -> Iterator[tuple[str, int]]:
    """Yield each function and module below `root` that is too long, by path and name, with its number of lines."""
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(tuple(TABLES)):
            continue
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > MOST_IN_MODULE:
            yield name, lines
        for function, length in functions(ast.parse(text), ""):
            if length > MOST_IN_FUNCTION:
                yield f"{name}:{function}", length


def functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the qualified name and the number of lines of each function, its decorators not counted."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                assert child.end_lineno is not None
                yield name[:-1], child.end_lineno - child.lineno + 1
        yield from functions(child, name)


def test_nothing_is_too_long_but_what_is_listed() -> None:
    found = dict(too_long(CHECKOUT))
    assert found == TOO_LONG


def test_every_table_exists() -> None:
    assert [name for name in TABLES if not (CHECKOUT / name).exists()] == []


def test_long_ones_are_found(tmp_path: Path) -> None:
    body = "\n".join("        pass" for _ in range(MOST_IN_FUNCTION))
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "long.py").write_text(
        f"class A:\n    def short(self):\n        pass\n\n    async def long(self):\n{body}\n" + "\n" * MOST_IN_MODULE
    )
    found = dict(too_long(tmp_path))
    assert found.pop("tools/long.py") > MOST_IN_MODULE
    assert found == {"tools/long.py:A.long": MOST_IN_FUNCTION + 1}
