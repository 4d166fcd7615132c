"""Rules for imports between the packages of pylogd, and the import graph that they are checked against.

`tests/unit/test_layers.py` checks the rules; `tools/generate_package_table.py` writes the table in ARCHITECTURE.md from
them. Imports are read from the sources with `ast`, so those in functions and under TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pylogd

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = Path(pylogd.__file__).parent


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
EVERYWHERE = ("errors", "clock", "machine")
#: Modules that `Twisted.NAMES` allows: types of arguments. They do not use a reactor.
TWISTED_NAMES = (
    "twisted.internet.defer", "twisted.internet.interfaces", "twisted.logger", "twisted.python.failure",
)  # fmt: skip
_NEVER = Twisted.NEVER
#: What clients authenticate with.
_CREDENTIALS = ("security.sasl", "security.principal")
#: Package, or module outside of packages, -> its rule, from the bottom up. A package inside of another, such as
#: `wire.messages`, has the rule of the outer one.
RULES: Mapping[str, Rule] = {
    "errors": Rule(twisted=_NEVER),
    "clock": Rule(twisted=_NEVER),
    "machine": Rule(twisted=_NEVER),
    "histogram": Rule(twisted=_NEVER),
    "threads": Rule(twisted=Twisted.ALL),
    "http_channel": Rule(("limits.shares",), Twisted.ALL),
    "protocol": Rule(twisted=_NEVER),
    "config": Rule(twisted=_NEVER),
    "limits": Rule(),
    "wire": Rule(("protocol", "limits"), _NEVER),
    "log": Rule(
        (
            "wire.records", "wire.record_fields", "wire.compression", "wire.validation", "wire.timestamps",
            "wire.exceptions", "histogram",
        ),
        _NEVER,
    ),
    "cache": Rule(("config", "log")),
    "placement": Rule(twisted=_NEVER),
    "metadata": Rule(
        ("config", "limits.expressions", "placement", "threads"),
        reactor=("metadata.sqlite", "metadata.store_frames", "metadata.store_server", "metadata.remote"),
    ),
    "security": Rule(("config", "limits", "metadata")),
    "security.sasl": Rule(("security.principal",), _NEVER),
    "quotas": Rule(("config", "limits", "metadata")),
    "isolation": Rule(("config", "limits")),
    "controller": Rule(("config", "metadata", "placement")),
    "telemetry": Rule(("config", "limits", "wire.compression", "wire.crc32c", "wire.exceptions", "metadata")),
    "replica": Rule(
        (
            "config", "limits.shares", "wire.records", "wire.compression", "wire.exceptions", "wire.messages", "log",
            "isolation", "metadata",
        ),
        reactor=("replica.housekeeping",),
    ),
    "transactions": Rule(("config", "limits", "wire.records", "wire.messages", "log.errors", "metadata", "replica")),
    "groups": Rule(("config", "limits", "wire.records", "log.errors", "metadata", "replica")),
    "api": Rule(
        (
            "config", "limits", "wire", "log", "metadata", "security", "quotas", "isolation", "controller", "replica",
            "telemetry", "transactions", "groups", "histogram", "placement",
        )
    ),
    "net": Rule(("limits", "wire", "security"), Twisted.ALL),
    "listening": Rule(("config", "limits", "metadata.image", "net", "security"), Twisted.ALL),
    "broker": Rule(
        (
            "config", "limits", "wire", "log", "cache", "metadata", "security", "quotas", "isolation", "controller",
            "replica", "telemetry", "transactions", "groups", "api", "net", "listening", "threads",
        ),
        Twisted.ALL,
    ),
    "process": Rule(
        ("config", "log.files", "metadata.entity_configs", "metadata.service", "security.sasl", "broker", "metrics"),
        Twisted.ALL,
    ),
    "metrics": Rule(
        (
            "api", "broker", "config", "groups", "histogram", "http_channel", "limits.log_lines", "log.log",
            "log.manager", "metadata", "net.page_cache", "replica", "telemetry", "wire.messages", "wire.size_sampling",
        ),
        Twisted.ALL,
    ),
    "tap": Rule(("config", "process"), Twisted.ALL),
    "workers": Rule(
        ("config", "metadata.sqlite", "metadata.store_server", "metadata.errors", "api.first_requests", "log.files",
         "net.shared_port", "local.broker", "process"),
        Twisted.ALL,
    ),
    "client": Rule(("placement", "wire", *_CREDENTIALS), _NEVER),
    "client.core": Rule(("placement", "wire", *_CREDENTIALS), _NEVER),
    "client.properties": Rule((*_CREDENTIALS, "security.ciphers", "client.core"), _NEVER),
    "client.evented": Rule(("wire", *_CREDENTIALS, "client.core"), _NEVER),
    "client.zookeeper": Rule(("client.core", "config.values", "config.zookeeper", "metadata"), Twisted.ALL),
    "client.blocking": Rule(("wire", *_CREDENTIALS, "client.core", "client.evented", "client.zookeeper"), _NEVER),
    "client.aio": Rule(("wire", *_CREDENTIALS, "client.core", "client.evented"), _NEVER),
    "client.deferred": Rule(
        ("wire", *_CREDENTIALS, "client.core", "client.evented", "client.zookeeper", "metadata", "net"), Twisted.ALL
    ),
    "schemas": Rule(("client", "http_channel", "limits.shares", "wire", "threads", *_CREDENTIALS), Twisted.ALL),
    "tables": Rule(twisted=_NEVER),
    "typed": Rule(("schemas.api_client", "schemas.pattern_engines", "schemas.patterns", "tables"), _NEVER),
    "spark": Rule(("client", "schemas.avro", "tables", "typed"), _NEVER),
    "audit": Rule(
        ("client", "metrics.http", "mirror.tables", "tables", "threads", "wire.exceptions", "wire.records"), Twisted.ALL
    ),
    "mirror": Rule(
        (
            "client", "metrics.http", "wire", "metadata", "config.values", "config.zookeeper", "schemas.access",
            "schemas.api_client", "tables", "threads", "typed", *_CREDENTIALS,
        ),
        Twisted.ALL,
    ),
    "console": Rule(
        (
            "audit.judging", "audit.report", "client", "config", "http_channel", "limits.shares", "metadata",
            "metrics.http", "metrics.registered_groups", "metrics.steps", "placement", "schemas", "security.sasl",
            "tables", "threads", "typed.errors", "typed.json_codec", "wire.messages", "wire.records",
        ),
        Twisted.ALL,
    ),
    "local": Rule(twisted=_NEVER),
    "local.secure": Rule(("client", "local", "security.sasl", "wire.messages"), _NEVER),
    "cli": Rule(
        (
            "audit", "client", "config", "console", "local", "log.verify", "log.dump", "metadata.node_acls", "mirror",
            "placement", "process", "schemas", "security.sasl", "spark", "tables", "typed", "workers",
        ),
        _NEVER,
        reactor=("cli.common", "cli.console", "cli.mirror", "cli.schemas"),
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

    `from pylogd.log import manager` yields `pylogd.broker.log.manager`: only the longer name tells which module is meant.
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
