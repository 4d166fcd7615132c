"""What a metadata store is: a small versioned tree in the manner of ZooKeeper, asked through Deferreds.

Strategy: the interface promises no more than ZooKeeper does and no less than what is written above it needs, so that
the same registries run on ZooKeeper (through kazoo) and on the embedded SQLite store. `tests/contract` has the suite
that every implementation passes.

Rules for implementations:

- Paths are absolute, `/` between names, no empty name, no `.` or `..`, no NUL. The root exists. Data is at most
  `MAX_DATA_BYTES`.
- Operations of one store take effect in the order of the calls, and their Deferreds fire on the reactor thread in that
  order. A write whose Deferred fired survives a crash of the machine.
- `multi` is atomic: all operations or none.
- A watch is one-shot. It is set by a successful read (by `exists` also on a node that is not there), atomically with
  it, so no change between the read and the watch is missed. It is called on the reactor thread, once, with the first
  event; several changes before its holder reads again are one event. No order is promised between a watch and the
  Deferred of the write that set it off.
- When the session expires, its ephemeral nodes are deleted and its watches are dropped uncalled; session listeners
  hear `EXPIRED`, then `CONNECTED` once a new session stands. Whoever holds ephemeral nodes or watches makes them anew
  at every `CONNECTED`. After `SUSPENDED` (the connection is down, the session may live) nothing read before is certain.
- Errors are those of `metadata.errors`. With `ConnectionLost` a write may or may not have been done; versions tell.

Must not know: what the tree is used for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

#: "Whatever version it has."
ANY_VERSION: Final = -1
#: What a node holds at most (ZooKeeper's `jute.maxbuffer`, less room for the request around it).
MAX_DATA_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class NodeStat:
    """What the tree knows of a node besides its data.

    `version` counts the writes of its data from 0. `created` and `modified` are transaction numbers of the store: a
    path made anew has another `created`, so (created, version) names one content. `owner` is the session that an
    ephemeral node lives with, 0 for a lasting one.
    """

    version: int
    created: int
    modified: int
    owner: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read."""

    data: bytes
    stat: NodeStat


class EventType(Enum):
    """What set off a watch."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change to a watched node; CHILDREN means that its set of children changed."""

    type: EventType
    path: str


class SessionState(Enum):
    """How the store stands with its session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; its result is the path. A `sequence` node gets ten digits behind its name, larger than those of
    every sequence node made under the same parent before.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data if it has that version; its result is the new version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children if it has that version; its result is None."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fail unless the node exists and has that version; its result is None."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = Create | SetData | Delete | Check
Result: TypeAlias = str | int | None
Watch: TypeAlias = Callable[[WatchEvent], None]
SessionListener: TypeAlias = Callable[[SessionState], None]


class IMetadataStore(Interface):
    """A versioned tree with ephemeral nodes, sequence nodes and one-shot watches. See the module for the rules."""

    session_id: int = Attribute("The number of the present session, 0 before `start`.")

    def start() -> Deferred[None]:
        """Connect or open, and begin a session. Fails with `StoreFailure` if that can't be done."""

    def close() -> Deferred[None]:
        """End the session: its ephemeral nodes are deleted. Later calls fail with `StoreClosed`."""

    def get(path: str, watch: Watch | None = None) -> Deferred[Node]:
        """A node, or `NoNode`. The watch fires when it is changed or deleted."""

    def exists(path: str, watch: Watch | None = None) -> Deferred[NodeStat | None]:
        """What is known of a node, None if there is none. The watch fires when it is created, changed or deleted."""

    def children(path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        """The sorted names of a node's children, or `NoNode`. The watch fires when one is created or deleted, or the
        node itself is deleted.
        """

    def children_data(path: str) -> Deferred[Mapping[str, Node]]:
        """Every child by name, or `NoNode`: `children` and `get` of each, as fast as the store can. Children are read
        one by one: one that vanishes meanwhile is left out.
        """

    def create(path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        """Make a node below one that exists; see `Create`. `NoNode`, `NodeExists`, `NoChildrenForEphemerals`."""

    def ensure(path: str) -> Deferred[None]:
        """Make a lasting, empty node and all of its parents, where they don't exist."""

    def set(path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        """Replace a node's data; see `SetData`. `NoNode`, `BadVersion`."""

    def delete(path: str, version: int = ANY_VERSION) -> Deferred[None]:
        """Delete a node; see `Delete`. `NoNode`, `BadVersion`, `NotEmpty`."""

    def multi(operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        """Do all operations, in order, or none; their results. Fails with the error of the first that failed, whose
        index is in its `operation`.
        """

    def on_session(listener: SessionListener) -> Callable[[], None]:
        """Call `listener` at each change of the session's state from now on; returns the undoing."""


def check_path(path: str) -> bool:
    """Whether `path` is absolute and plain, as the rules above want it."""
    if path == "/":
        return True
    if not path.startswith("/") or "\0" in path:
        return False
    return not any(name in ("", ".", "..") for name in path[1:].split("/"))


def parent_of(path: str) -> str:
    """The path of a node's parent; the root's is the root."""
    return path.rpartition("/")[0] or "/"
