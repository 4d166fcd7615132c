"""Rules for imports between the packages of pylogd, and the import graph that they are checked against.

`tests/unit/test_layers.py` checks the rules; `tools/generate_package_table.py` writes the table in ARCHITECTURE.md from
them. Imports are read from the sources with `ast`, so those in functions and under TYPE_CHECKING count like any other.
C code has the rule of its package too. It names what it takes from other modules in strings (`base/compiled.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pylogd

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = Path(pylogd.__file__).parent
#: The checkout's package: C files are not installed.
SOURCES = CHECKOUT / "pylogd"


class Twisted(Enum):
    """How much of Twisted a package may import."""

    NEVER = "no"
    NAMES = "names"
    ALL = "all"


class Rule(NamedTuple):
    """What the modules of a package may import besides the package itself and `EVERYWHERE`."""

    imports: tuple[str, ...] = ()
    twisted: Twisted = Twisted.NAMES
    #: modules of the package that may import all of Twisted as exceptions
    reactor: tuple[str, ...] = ()


#: Modules that every package may import.
EVERYWHERE = ("base.errors", "base.clock", "base.machine", "base.compiled")
#: Modules that `Twisted.NAMES` allows: types of arguments. They do not use a reactor.
TWISTED_NAMES = (
    "twisted.internet.defer", "twisted.internet.interfaces", "twisted.logger", "twisted.python.failure",
)  # fmt: skip
_NEVER = Twisted.NEVER
#: Package, or module outside of packages, -> its rule, from the bottom up. A package inside of another, such as
#: `wire.messages`, has the rule of the outer one.
RULES: Mapping[str, Rule] = {
    "base": Rule(reactor=("base.threads", "base.process")),
    "base.errors": Rule(twisted=_NEVER),
    "base.clock": Rule(twisted=_NEVER),
    "base.machine": Rule(twisted=_NEVER),
    "base.compiled": Rule(twisted=_NEVER),
    "base.placement": Rule(twisted=_NEVER),
    "protocol": Rule(twisted=_NEVER),
    "config": Rule(twisted=_NEVER),
    "wire": Rule(("protocol", "base.limits"), _NEVER),
    "web": Rule(("base",), Twisted.ALL),
    "web.client": Rule(twisted=_NEVER),
    "store": Rule(
        ("base", "config"), reactor=("store.sqlite", "store.frames", "store.server", "store.remote"),
    ),
    "credentials": Rule(("config", "web.client"), _NEVER),
    "link": Rule(("wire", "credentials.certificates"), Twisted.ALL),
    "local": Rule(("base.ports",), _NEVER),
    "client": Rule(("base.placement", "wire", "credentials"), _NEVER),
    "client.core": Rule(("base.placement", "wire", "credentials"), _NEVER),
    "client.properties": Rule(("credentials", "client.core"), _NEVER),
    "client.evented": Rule(("wire", "credentials", "client.core"), _NEVER),
    "client.zookeeper": Rule(("base.deferreds", "client.core", "config", "store"), Twisted.ALL),
    "client.blocking": Rule(("wire", "credentials", "client.core", "client.evented", "client.zookeeper"), _NEVER),
    "client.aio": Rule(("wire", "credentials", "client.core", "client.evented"), _NEVER),
    "client.deferred": Rule(
        ("wire", "credentials", "client.core", "client.evented", "client.zookeeper", "store", "link"), Twisted.ALL
    ),
    "client.registry": Rule(
        ("web.client", "credentials", "client.core", "client.evented", "client.properties"), _NEVER
    ),
    "local.secure": Rule(("base.ports", "client", "local", "credentials"), _NEVER),
    "broker": Rule(
        ("base", "config", "wire", "store", "credentials", "link"), Twisted.ALL
    ),
    "broker.log": Rule(
        (
            "wire.records", "wire.record_fields", "wire.compression", "wire.validation", "wire.timestamps",
            "wire.exceptions", "base.histogram",
        ),
        _NEVER,
    ),
    "broker.cache": Rule(("config", "broker.log")),
    "broker.metadata": Rule(("base", "config", "store")),
    "broker.security": Rule(("base", "config", "store", "credentials", "broker.metadata")),
    "broker.quotas": Rule(("base", "config", "broker.metadata")),
    "broker.isolation": Rule(("base", "config")),
    "broker.controller": Rule(("base", "config", "store", "broker.metadata")),
    "broker.telemetry": Rule(
        ("base", "config", "wire.compression", "wire.crc", "wire.exceptions", "broker.metadata")
    ),
    "broker.replica": Rule(
        (
            "base", "config", "wire.records", "wire.compression", "wire.exceptions", "wire.messages", "store",
            "broker.log", "broker.isolation", "broker.metadata",
        ),
        reactor=("broker.replica.periodic_maintenance",),
    ),
    "broker.transactions": Rule(
        ("base", "config", "wire.records", "wire.messages", "store.paths", "broker.log.errors", "broker.metadata",
         "broker.replica")
    ),
    "broker.groups": Rule(
        ("base", "config", "wire.records", "store.paths", "broker.log.errors", "broker.metadata", "broker.replica")
    ),
    "broker.api": Rule(
        (
            "base", "config", "wire", "store", "credentials", "broker.log", "broker.metadata", "broker.security",
            "broker.quotas", "broker.isolation", "broker.controller", "broker.replica", "broker.telemetry",
            "broker.transactions", "broker.groups",
        )
    ),
    "broker.net": Rule(("base", "wire", "credentials", "link", "broker.security"), Twisted.ALL),
    "broker.listening": Rule(
        ("base", "config", "credentials", "link", "broker.metadata.image", "broker.net", "broker.security"), Twisted.ALL
    ),
    "broker.storage": Rule(("base", "config", "broker.log", "broker.cache", "broker.isolation", "broker.replica")),
    "broker.broker": Rule(
        (
            "base", "config", "store", "link", "broker.log", "broker.metadata", "broker.security", "broker.quotas",
            "broker.controller", "broker.replica", "broker.telemetry", "broker.transactions", "broker.groups",
            "broker.api", "broker.net", "broker.listening", "broker.storage",
        ),
        Twisted.ALL,
    ),
    "broker.metrics": Rule(
        (
            "base", "config", "web", "store", "wire.messages", "wire.size_sampling", "broker.api", "broker.broker",
            "broker.groups", "broker.log.log", "broker.log.manager", "broker.metadata", "broker.net.page_cache",
            "broker.replica", "broker.telemetry",
        ),
        Twisted.ALL,
    ),
    "broker.process": Rule(
        (
            "base", "config", "credentials.scram", "broker.log.files", "broker.metadata.entity_configs",
            "broker.metadata.service", "broker.broker", "broker.metrics",
        ),
        Twisted.ALL,
    ),
    "broker.tap": Rule(("base", "config", "broker.process"), Twisted.ALL),
    "broker.workers": Rule(
        (
            "base", "config", "store", "broker.api.first_requests", "broker.log.files",
            "broker.net.shared_port", "broker.process",
        ),
        Twisted.ALL,
    ),
    "lake": Rule(twisted=_NEVER),
    "lake.tables": Rule(twisted=_NEVER),
    "lake.typed": Rule(("client.registry", "lake.tables"), _NEVER),
    "lake.spark": Rule(("client", "lake.tables", "lake.typed"), _NEVER),
    "services": Rule(twisted=Twisted.ALL),
    "services.registry": Rule(("base", "wire", "web", "credentials", "client"), Twisted.ALL),
    "services.mirror": Rule(
        ("base", "config", "wire", "web", "store", "credentials", "client", "lake.tables", "lake.typed"), Twisted.ALL
    ),
    "services.audit": Rule(
        ("base", "wire.exceptions", "wire.records", "web", "client", "lake.tables", "services.mirror.tables"),
        Twisted.ALL,
    ),
    "services.console": Rule(
        (
            "base", "config", "wire.messages", "wire.records", "web", "store", "credentials", "client", "lake.tables",
            "lake.typed", "services.audit",
        ),
        Twisted.ALL,
    ),
    "cli": Rule(
        (
            "base", "config", "web.tls", "store", "credentials", "local", "client", "lake", "services",
            "broker.log.verify", "broker.log.dump", "broker.process", "broker.workers",
        ),
        _NEVER,
        reactor=("cli.service_options", "cli.console", "cli.mirror", "cli.schema_registry"),
    ),
    "__main__": Rule(("cli",), _NEVER),
}  # fmt: skip


def within(module: str, packages: tuple[str, ...]) -> bool:
    """Return whether `module` is one of `packages` or inside one."""
    return any(module == package or module.startswith(package + ".") for package in packages)


def ruled_by(module: str) -> str:
    """Return the entry of `RULES` for a module of pylogd, named without `pylogd.`; "" if there is none."""
    return max((name for name in RULES if within(module, (name,))), key=len, default="")


def modules(root: Path) -> dict[str, Path]:
    """Return the Python files below `root` by their module names, without the name of `root`, which itself is ""."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path) -> Iterator[str]:
    """Yield the absolute name of everything that the module `name` imports.

    `from pylogd.broker.log import manager` yields `pylogd.broker.log.manager`: only the longer name tells the module.
    """
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            yield from (".".join([*base, alias.name]) for alias in node.names)


def c_sources(root: Path) -> dict[str, Path]:
    """Return the C files below `root` by their module names, without the name of `root`; headers with their suffix."""
    found = sorted(root.rglob("*.[ch]"))
    return {".".join(path.relative_to(root).with_suffix("").parts) + path.suffix: path for path in found}


_C_NAME = re.compile(r'"(pylogd(?:\.\w+)+)(?::\w+)?"')
_C_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def c_imports(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a C file names in its strings, and of the headers that it includes."""
    text = path.read_text(encoding="utf-8")
    yield from _C_NAME.findall(text)
    for header in _C_INCLUDE.findall(text):
        inside = (path.parent / header).resolve().relative_to(SOURCES.parent)
        yield ".".join(inside.with_suffix("").parts)


def import_graph(roots: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return for each module below the packages `roots`, by full name, the modules among them that it imports.


    An import of `a.b` does not count as one of `a`, although it runs `a/__init__.py`.
    """
    paths = {
        f"{root}.{name}".rstrip("."): path for root, folder in roots.items() for name, path in modules(folder).items()
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        targets = (target if target in paths else target.rpartition(".")[0] for target in imports(name, path))
        graph[name] = {target for target in targets if target in paths and target != name}
    return graph


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that import each other, directly or through others (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        open_.append(name)
        for target in sorted(graph[name]):
            if target not in order:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in open_:
                lowest[name] = min(lowest[name], order[target])
        if lowest[name] == order[name]:
            at = open_.index(name)
            if len(open_) - at > 1:
                found.add(frozenset(open_[at:]))
            del open_[at:]

    for name in graph:
        if name not in order:
            visit(name)
    return found
