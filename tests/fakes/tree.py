"""The nodes of a fake ZooKeeper and the leader that orders writes to them, shared by all fakes of ZooKeeper.

It implements the rules of `IMetadataStore` independently; the contract suite checks the real stores against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pylogd.store.errors import (
    BadVersion,
    InvalidNode,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    StoreError,
)
from pylogd.store.interfaces import (
    ANY_VERSION,
    MAX_DATA_BYTES,
    Check,
    Create,
    Delete,
    EventType,
    Node,
    NodeStat,
    Operation,
    Result,
    check_path,
    parent_of,
)

#: the changes of a write, in order: (path, node or None)
Changes = list[tuple[str, Node | None]]
#: the watches that a write triggers: kind ("data" or "children"), event, path
Events = list[tuple[str, EventType, str]]


@dataclass(slots=True)
class Written:
    """The outcome of a write."""

    results: list[Result] = field(default_factory=list)
    changes: Changes = field(default_factory=list)
    events: Events = field(default_factory=list)
    error: StoreError | None = None


class MemoryTree:
    """The nodes by path."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", NodeStat(0, 0, 0, 0))}
        self.names: dict[str, set[str]] = {"/": set()}
        self.sequences: dict[str, int] = {}

    def apply(self, path: str, node: Node | None) -> Events:
        """Make, replace or (`None`) delete a node; the watches that this sets off."""
        return self._drop(path) if node is None else self._put(path, node)

    def _put(self, path: str, node: Node) -> Events:
        if path in self.nodes:
            self.nodes[path] = node
            return [("data", EventType.CHANGED, path)]
        parent = parent_of(path)
        self.nodes[path] = node
        self.names[path] = set()
        self.names[parent].add(path.rpartition("/")[2])
        return [("data", EventType.CREATED, path), ("children", EventType.CHILDREN, parent)]

    def _drop(self, path: str) -> Events:
        parent = parent_of(path)
        del self.nodes[path], self.names[path]
        self.names[parent].discard(path.rpartition("/")[2])
        return [
            ("data", EventType.DELETED, path),
            ("children", EventType.DELETED, path),
            ("children", EventType.CHILDREN, parent),
        ]


class Leader:
    """Decides the writes, of sessions that live."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.zxid = 0
        self.sessions: dict[int, float] = {}  # live sessions and their timeouts

    def write(self, session: int, operations: Sequence[Operation]) -> Written:
        """Do a write of a session on the leader's tree, all of it or nothing."""
        self.zxid += 1
        if session not in self.sessions:
            return Written(error=SessionExpired("no such session"))
        written = Written()
        undo: list[tuple[str, Node | None]] = []
        for index, operation in enumerate(operations):
            try:
                if not check_path(operation.path):
                    raise InvalidNode(operation.path)
                result, changes = self._apply(session, operation)
            except NodeError as error:
                error.operation = index
                for path, node in reversed(undo):
                    self.tree.apply(path, node)
                return Written(error=error)
            for path, node in changes:
                undo.append((path, self.tree.nodes.get(path)))
                written.events += self.tree.apply(path, node)
            written.results.append(result)
            written.changes += changes
        return written

    def end(self, session: int) -> Written:
        """Delete what lives with a session."""
        self.zxid += 1
        self.sessions.pop(session, None)
        written = Written()
        for path in sorted(path for path, node in self.tree.nodes.items() if node.stat.owner == session):
            written.changes.append((path, None))
            written.events += self.tree.apply(path, None)
        return written

    def _apply(self, session: int, operation: Operation) -> tuple[Result, Changes]:
        if isinstance(operation, Create):
            return self._create(session, operation)
        node = self.tree.nodes.get(operation.path)
        if node is None:
            raise NoNode(operation.path)
        if operation.version not in (ANY_VERSION, node.stat.version):
            raise BadVersion(operation.path)
        if isinstance(operation, Check):
            return None, []
        if isinstance(operation, Delete):
            if self.tree.names[operation.path] or operation.path == "/":
                raise NotEmpty(operation.path)
            return None, [(operation.path, None)]
        if len(operation.data) > MAX_DATA_BYTES:
            raise InvalidNode(operation.path)
        stat = node.stat._replace(version=node.stat.version + 1, modified=self.zxid)
        return stat.version, [(operation.path, Node(operation.data, stat))]

    def _create(self, session: int, operation: Create) -> tuple[Result, Changes]:
        if len(operation.data) > MAX_DATA_BYTES:
            raise InvalidNode(operation.path)
        if operation.path == "/":
            raise NodeExists("/")
        parent = self.tree.nodes.get(parent_of(operation.path))
        if parent is None:
            raise NoNode(operation.path)
        if parent.stat.owner:
            raise NoChildrenForEphemerals(operation.path)
        path = operation.path
        if operation.sequence:
            number = self.tree.sequences.get(parent_of(path), 0)
            self.tree.sequences[parent_of(path)] = number + 1
            path = f"{path}{number:010d}"
        if path in self.tree.nodes:
            raise NodeExists(path)
        stat = NodeStat(0, self.zxid, self.zxid, session if operation.ephemeral else 0)
        return path, [(path, Node(operation.data, stat))]
