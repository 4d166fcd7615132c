"""The interface of metadata stores: a small tree of versioned nodes, like ZooKeeper's, with Deferreds.

Strategy: the interface promises no more than ZooKeeper does, so that the same registries run on ZooKeeper (by kazoo)
and on the embedded SQLite store. Every implementation passes the tests in `tests/contract`.

Rules for implementations:

- Paths are absolute, with `/` between names. They have no empty name, no `.` or `..`, and no NUL. The root exists. Data
  has at most `MAX_DATA_BYTES`.
- Operations of one store take effect in the order of the calls, and their Deferreds fire on the reactor thread in that
  order. A write whose Deferred fired survives a crash of the machine.
- `multi` is atomic: it does all operations or none. The nodes that it creates and sets have the same transaction
  number, which is greater than those of all earlier writes.
- A watch is called once. A successful read sets it atomically with the read (`exists` also sets it on a node that does
  not exist), so no change between the read and the watch is missed. It is called on the reactor thread with the first
  event; further changes before the next read are not reported. No order is promised between a watch and the Deferred of
  the write that triggered it.
- When the session expires, its ephemeral nodes are deleted and its watches are dropped without a call. Session
  listeners are called with `EXPIRED`, and with `CONNECTED` once there is a new session. The owners of ephemeral nodes
  and watches create them again at every `CONNECTED`. After `SUSPENDED` (the connection is lost, the session may be
  alive) everything that was read before may be outdated.
- Errors are those of `metadata.errors`. After `ConnectionLost` a write may or may not have been done; the version of
  the node shows which.

Must not know: what the nodes are used for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

#: Stands for any version.
ANY_VERSION: Final = -1
#: The most bytes of a node's data: ZooKeeper's `jute.maxbuffer`, less the rest of the request.
MAX_DATA_BYTES: Final = 1_000_000


class NodeStat(NamedTuple):
    """The metadata of a node: everything that a store knows besides its data.

    version: counts the writes of its data from 0.
    created, modified: transaction numbers of the store. A node that was deleted and created again has another
        `created`, so (created, version) identifies its content.
    owner: the session of an ephemeral node, 0 for a persistent one.
    """

    version: int
    created: int
    modified: int
    owner: int


class Node(NamedTuple):
    """A node's data and metadata."""

    data: bytes
    stat: NodeStat


class EventType(Enum):
    """The event that triggered a watch."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    """A change to a watched node; CHILDREN means that its set of children changed."""

    type: EventType
    path: str


class SessionState(Enum):
    """The state of a store's session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; the result is its path.

    sequence: whether to append ten digits to the name: a larger number than in every earlier sequence node of this
        parent.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data if it has this version; the result is the new version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children if it has this version; the result is None."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fail unless the node exists and has this version; the result is None."""

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
        """Connect to the store, or open it, and begin a session. Fails with `StoreFailure`."""

    def close() -> Deferred[None]:
        """End the session: its ephemeral nodes are deleted. Later calls fail with `StoreClosed`."""

    def get(path: str, watch: Watch | None = None) -> Deferred[Node]:
        """Read a node. The watch is called when it is changed or deleted. Fails with `NoNode`."""

    def get_many(paths: Sequence[str]) -> Deferred[Sequence[Node | None]]:
        """Read nodes with few requests, however many they are. The result has None for each node that does not exist.

        The nodes are not read atomically.
        """

    def exists(path: str, watch: Watch | None = None) -> Deferred[NodeStat | None]:
        """Return a node's metadata, or None if it does not exist.

        The watch is called when it is created, changed or deleted.
        """

    def children(path: str, watch: Watch | None = None) -> Deferred[Sequence[str]]:
        """Return the sorted names of a node's children. Fails with `NoNode`.

        The watch is called when a child is created or deleted, or the node itself is deleted.
        """

    def children_data(path: str) -> Deferred[Mapping[str, Node]]:
        """Read every child of a node, by name. Fails with `NoNode`.

        The children are not read atomically. A child that is deleted meanwhile is left out.
        """

    def create(path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> Deferred[str]:
        """Create a node; see `Create`. Fails with `NoNode`, `NodeExists` or `NoChildrenForEphemerals`."""

    def ensure(path: str) -> Deferred[None]:
        """Create a persistent, empty node and its parents, as far as they do not exist."""

    def set(path: str, data: bytes, version: int = ANY_VERSION) -> Deferred[int]:
        """Replace a node's data; see `SetData`. Fails with `NoNode` or `BadVersion`."""

    def delete(path: str, version: int = ANY_VERSION) -> Deferred[None]:
        """Delete a node; see `Delete`. Fails with `NoNode`, `BadVersion` or `NotEmpty`."""

    def multi(operations: Sequence[Operation]) -> Deferred[Sequence[Result]]:
        """Do all operations, in order, or none; return their results.

        Fails with the error of the first operation that failed, whose index is the error's `operation`.
        """

    vital = Attribute(
        """Returns whether the owner of the session does its work; called on the reactor thread.

        While it does not, nothing keeps the session, which ends at its timeout. A session without a timeout, of the
        embedded store, stays."""
    )

    def on_session(listener: SessionListener) -> Callable[[], None]:
        """Call `listener` with each new state of the session. Return a function that ends this."""


def check_path(path: str) -> bool:
    """Return whether `path` is valid by the rules above."""
    if path == "/":
        return True
    if not path.startswith("/") or "\0" in path:
        return False
    return not any(name in ("", ".", "..") for name in path[1:].split("/"))


def parent_of(path: str) -> str:
    """Return the path of a node's parent; the root is its own parent."""
    return path.rpartition("/")[0] or "/"
