"""Who may import whom: the rules of ARCHITECTURE.md, read off the sources by `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pylogd

PACKAGE = Path(pylogd.__file__).parent

#: What every room may import.
EVERYWHERE = ("clock", "machine")
#: room -> what of pylogd it may import besides itself. Rooms not named here may import anything.
ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "clock": (),
    "machine": (),
    "config": ("errors",),
    "protocol": (),
    "wire": ("errors", "protocol"),
    "log": ("errors", "wire.records", "wire.compression", "wire.validation", "wire.exceptions"),
    "metadata": ("errors", "config"),
    "controller": ("errors", "config", "metadata"),
    "replica": ("errors", "config", "wire.records", "wire.compression", "wire.messages", "log", "metadata"),
    "groups": ("errors", "config", "wire.records", "log.errors", "metadata", "replica"),
    "api": ("errors", "config", "wire", "log", "metadata", "controller", "replica", "groups"),
    "net": ("errors", "wire"),
    "client": ("errors", "wire"),
    "client.core": ("errors", "wire"),
    "client.blocking": ("errors", "wire", "client.core", "client.evented", "client.zookeeper"),
    "client.evented": ("errors", "wire", "client.core"),
    "client.aio": ("errors", "wire", "client.core", "client.evented"),
    "client.deferred": ("errors", "wire", "client.core", "client.evented", "client.zookeeper", "metadata", "net"),
    "client.zookeeper": ("errors", "client.core", "client.blocking", "metadata"),
    "local": ("errors",),
    "schemas": ("errors", "client", "wire"),
    "spark": ("errors", "client", "schemas.avro"),
}
#: Kept of Twisted by every room: it names what is passed in and starts nothing.
PURE_TWISTED = ("twisted.internet.defer", "twisted.internet.interfaces", "twisted.logger", "twisted.python.failure")
#: Modules that may reach for all of Twisted.
REACTOR = (
    "net",
    "tap",
    "broker",
    "daemon",
    "client.deferred",
    "client.zookeeper",
    "replica.purgatory",
    "replica.manager",
    "replica.fetcher",
    "metadata.sqlite",
    "metadata.worker",
    "cli.broker",
    "cli.schemas",
    "schemas",
)
#: Rooms that never see Twisted at all: sans-I/O code, storage, and what runs without a reactor.
NO_TWISTED = ("errors", "clock", "config", "protocol", "wire", "log", "client", "cli", "local", "spark")


def within(module: str, rooms: tuple[str, ...]) -> bool:
    """Whether `module` is one of `rooms` or inside one."""
    return any(module == room or module.startswith(room + ".") for room in rooms)


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by its name without the leading `pylogd.`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        yield ".".join(parts), path


def imports(name: str, path: Path) -> Iterator[str]:
    """The absolute name of everything that a module imports, in functions and under TYPE_CHECKING too."""
    package = ["pylogd", *(name.split(".") if name else [])]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = package[: len(package) - node.level + 1]
                base = ".".join([*stem, base] if base else stem)
            # `from pylogd.log import manager` imports pylogd.log.manager: the longer name is the one to judge.
            yield from (f"{base}.{alias.name}" for alias in node.names)


MODULES = list(modules())


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name or "pylogd" for name, _ in MODULES])
def test_a_module_imports_only_what_its_room_may(name: str, path: Path) -> None:
    room = max((room for room in ALLOWED if within(name, (room,))), key=len, default="")
    faults = []
    for imported in imports(name, path):
        if room in ALLOWED and imported.startswith("pylogd."):
            target = imported.removeprefix("pylogd.")
            if not within(target, (room, *ALLOWED[room], *EVERYWHERE)) and target != "__version__":
                faults.append(imported)
        if imported.split(".")[0] == "twisted" and not within(name, REACTOR):
            forbidden = within(name, NO_TWISTED) or not within(imported, PURE_TWISTED)
            if forbidden:
                faults.append(imported)
    assert not faults, f"pylogd.{name} may not import {', '.join(sorted(set(faults)))}"


def test_every_room_named_here_exists() -> None:
    rooms = {name.split(".")[0] for name, _ in MODULES} | {"protocol"}
    assert {rule.split(".")[0] for rule in (*ALLOWED, *REACTOR)} | set(NO_TWISTED) <= rooms
