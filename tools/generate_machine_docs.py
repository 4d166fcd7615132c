"""Print the page of the site that has the machine tables of the package, as diagrams.

All module-level `NAME = MachineTable(...)` below pylogd/ are included.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from pylogd.base.machine import MachineTable

ROOT = Path(__file__).resolve().parent.parent

_INTRODUCTION = """\
# State machines

The states and events of each state machine. The tables are declared with `pylogd/base/machine.py`. If an event
has no arrow from a state, it must not happen in this state: it is an error of the program.
"""


def found_tables() -> Iterator[tuple[str, MachineTable[Any, Any]]]:
    """Find the tables of the package: (path of the module, table)."""
    for path in sorted((ROOT / "pylogd").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            value = getattr(node, "value", None)
            if isinstance(value, ast.Call) and ast.unparse(value.func).split("[")[0] == "MachineTable":
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                assert isinstance(target, ast.Name)
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield path.relative_to(ROOT).as_posix(), getattr(importlib.import_module(module), target.id)


def diagram(table: MachineTable[Any, Any]) -> str:
    """Return the table as a Mermaid state diagram; several events between the same states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, event, target in table:
        arrows.setdefault((state.name, target.name), []).append(event.name)
    lines = ["stateDiagram-v2", f"    [*] --> {table.initial.name}"]
    lines += [f"    {state} --> {target}: {', '.join(events)}" for (state, target), events in arrows.items()]
    lines += [f"    {state.name} --> [*]" for state, row in table.transitions.items() if not row]
    return "\n".join(lines)


def _meanings(heading: str, members: Iterator[Enum]) -> str:
    rows = "".join(f"| `{member.name}` | {member.value} |\n" for member in members)
    return f"| {heading} | meaning |\n| --- | --- |\n{rows}"


def section(path: str, table: MachineTable[Any, Any]) -> str:
    """Return the part of the page that is about one table."""
    events = [*dict.fromkeys([*(event for _, event, _ in table), *table.everywhere])]
    always = "".join(
        f"In every state, `{event.name}` leads to `{target.name}`, unless an arrow says otherwise.\n\n"
        for event, target in table.everywhere.items()
    )
    return (
        f"## {table.title}\n\n{table.summary} Source: `{path}`.\n\n```mermaid\n{diagram(table)}\n```\n\n{always}"
        f"{_meanings('state', iter(table.transitions))}\n{_meanings('event', iter(events))}"
    )


def page() -> str:
    """Return the whole page."""
    return "\n".join([_INTRODUCTION, *(section(path, table) for path, table in found_tables())])


if __name__ == "__main__":
    print(page(), end="")
