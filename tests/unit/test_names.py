"""Names follow docs/glossary.md: names that only this project understood do not come back.

Names of classes, functions and modules are checked. A word that is retired in one meaning may be used in its ordinary
one: a method `run` runs something, `Network.State` says whose state it is, and local variables are not checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("pylogd", "tests", "bench", "conformance", "tools", "examples")
#: Words that no name contains, with the word to use instead.
WORDS = {
    "lane": "partition queue", "lanes": "partition queues", "flying": "in flight", "flies": "is in flight",
    "obey": "apply", "obeyed": "used", "obeys": "applies", "bear": "record a failure", "hurry": "abort",
    "outbox": "send queue", "shipping": "send queue", "insync": "ISR",
    "placing": "assignment",  # `placement` is how Kafka names the choice of brokers for replicas
}  # fmt: skip
#: Whole names that do not say of what, or for what.
NAMES = {"Asked", "Place", "State", "Group", "Room", "Plain", "Told", "Those"}
#: Modules whose names can't be told apart from another module's.
MODULES = {
    "runs", "room", "rooms", "positions", "cleaning", "answered", "located", "spread", "steady",
    "together",
}  # fmt: skip
#: Kafka's own word is in them: `min.insync.replicas`.
ALLOWED = {"min_insync_of", "effective_min_insync"}


def names(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each module, class and function below `root`."""
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        where = path.relative_to(root).as_posix()
        yield where, path.stem
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{where}:{node.lineno}", node.name


def words(name: str) -> set[str]:
    """Return the words of a name in either case: `PartitionQueue` and `partition_queue` are the same."""
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def faults(root: Path) -> Iterator[str]:
    """Yield a line for each name that must not be used."""
    for where, name in names(root):
        is_module = ":" not in where
        retired = name in NAMES or (is_module and name in MODULES) or words(name) & WORDS.keys()
        if retired and name not in ALLOWED:
            yield f"{where}: {name}"


def test_no_name_that_only_this_project_understands() -> None:
    assert list(faults(CHECKOUT)) == []


def test_such_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "pylogd").mkdir()
    (tmp_path / "pylogd" / "outbox.py").write_text(
        "class State:\n    def obey(self): ...\n\nclass OpenLane: ...\n\nasync def run_lanes(): ...\n\ndef run(): ...\n"
    )
    found = {line.rpartition(" ")[2] for line in faults(tmp_path)}
    assert found == {"outbox", "State", "OpenLane", "obey", "run_lanes"}
