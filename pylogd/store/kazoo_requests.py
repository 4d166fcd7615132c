"""Translates between kazoo and the store: errors, nodes, events, and a request that kazoo does not have.

`MultiRead` reads many nodes by one request (ZooKeeper 3.6 and newer): kazoo needs about 0.1 ms for each request, which
is too long for the tens of thousands of nodes that a broker of a large cluster reads when it starts.

Must not know: chroots, the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct, multiheader_struct, read_buffer, stat_struct, write_string
from kazoo.protocol.states import EventType as KazooEventType
from kazoo.protocol.states import ZnodeStat

from pylogd.store.errors import (
    AccessDenied,
    BadVersion,
    ConnectionLost,
    InvalidNode,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    StoreError,
    StoreFailure,
)
from pylogd.store.interfaces import (
    MAX_DATA_BYTES,
    Create,
    Delete,
    EventType,
    Node,
    NodeStat,
    Operation,
    SetData,
    check_path,
    parent_of,
)
from pylogd.store.node_acls import AclOf

#: The store's event for each event of kazoo.
EVENTS: Final = {
    KazooEventType.CREATED: EventType.CREATED,
    KazooEventType.DELETED: EventType.DELETED,
    KazooEventType.CHANGED: EventType.CHANGED,
    KazooEventType.CHILD: EventType.CHILDREN,
}
#: Errors about the node that the request names.
_ON_NODE: Final = (
    (kazoo.BadVersionError, BadVersion),
    (kazoo.NotEmptyError, NotEmpty),
    (kazoo.NodeExistsError, NodeExists),
    (kazoo.NoAuthError, AccessDenied),
    (kazoo.BadArgumentsError, InvalidNode),
)
#: Errors after which a request may or may not have been done, or ZooKeeper asks to try again.
_LOST: Final = (
    kazoo.ConnectionLoss,
    kazoo.ConnectionClosedError,  # it is a subclass of SessionExpiredError, and must be checked before that
    kazoo.OperationTimeoutError,
    kazoo.SessionMovedError,
)
_GET_DATA: Final = 4
_ERROR: Final = -1


class MultiRead:
    """A request for the data of many nodes, answered with a `Node` or an exception for each."""

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def serialize(self) -> bytes:
        """Return the request's body."""
        header = multiheader_struct.pack(_GET_DATA, False, -1)
        reads = b"".join([header + write_string(path) + b"\0" for path in self.paths])
        return reads + bytes(multiheader_struct.pack(-1, True, -1))

    @staticmethod
    def deserialize(body: bytes, offset: int) -> list[Node | Exception]:
        """Return the answers, in the order of the paths."""
        found: list[Node | Exception] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(body, offset)
            offset += multiheader_struct.size
            if done:
                return found
            if kind == _ERROR:
                found.append(kazoo.EXCEPTIONS[int_struct.unpack_from(body, offset)[0]]())
                offset += int_struct.size
            else:
                data, offset = read_buffer(body, offset)
                found.append(node_of((data, ZnodeStat._make(stat_struct.unpack_from(body, offset)))))
                offset += stat_struct.size


def error_of(error: BaseException, operation: Operation, index: int = 0) -> StoreError:
    """Return the store's error for an error of kazoo.

    index: the index of the operation in a `multi`.
    """
    path = operation.path
    parent = parent_of(path)
    if isinstance(error, kazoo.NoNodeError):
        return NoNode(parent if isinstance(operation, Create) else path, index)
    if isinstance(error, kazoo.NoChildrenForEphemeralsError):
        return NoChildrenForEphemerals(parent, index)
    for kind, ours in _ON_NODE:
        if isinstance(error, kind):
            return ours(path, index)
    if isinstance(error, _LOST):
        return ConnectionLost(
            f"{path}: the connection to ZooKeeper was lost; the operation may or may not have been done"
        )
    if isinstance(error, kazoo.SessionExpiredError):
        return SessionExpired(f"{path}: the ZooKeeper session has expired")
    return StoreFailure(f"{path}: ZooKeeper failed: {type(error).__name__}{f' ({error})' if str(error) else ''}")


def stat_of(stat: ZnodeStat | None) -> NodeStat | None:
    """Return the store's NodeStat for kazoo's; None for a node that does not exist."""
    return None if stat is None else NodeStat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner)


def node_of(answer: tuple[bytes | None, Any]) -> Node:
    """Return the store's Node for kazoo's answer: (data or None, stat)."""
    data, stat = answer
    return Node(data or b"", NodeStat(stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner))


def version_of(stat: ZnodeStat) -> int:
    """Return the version after a write."""
    version: int = stat.version
    return version


def read_many(paths: Sequence[str], client: KazooClient) -> Any:
    """Send a `MultiRead`; return kazoo's result object."""
    answer = client.handler.async_result()
    client._call(MultiRead(paths), answer)  # kazoo has no public method to send such a request
    return answer


def transact(operations: Sequence[Operation], full: Callable[[str], str], acl_of: AclOf, client: KazooClient) -> Any:
    """Send a transaction of all operations.

    full: returns a path as the servers know it.
    acl_of: returns the ACL of a new node.
    """
    transaction = client.transaction()
    for operation in operations:
        path = full(operation.path)
        if isinstance(operation, Create):
            transaction.create(path, operation.data, acl_of(operation.path), operation.ephemeral, operation.sequence)
        elif isinstance(operation, SetData):
            transaction.set_data(path, operation.data, operation.version)
        elif isinstance(operation, Delete):
            transaction.delete(path, operation.version)
        else:
            transaction.check(path, operation.version)
    return transaction.commit_async()


def fault_of(operation: Operation) -> NodeError | None:
    """Return the error of an operation that is invalid on any tree; None if it is valid."""
    if not check_path(operation.path):
        return InvalidNode(operation.path)
    if isinstance(operation, Create | SetData) and len(operation.data) > MAX_DATA_BYTES:
        return InvalidNode(operation.path)
    if operation.path == "/":
        # ZooKeeper refuses these for its own root, but would do them with a chroot, which is an ordinary node.
        if isinstance(operation, Create):
            return NodeExists("/")
        if isinstance(operation, Delete):
            return NotEmpty("/")
    return None


def prefixes(path: str) -> Iterator[str]:
    """Iterate over the paths of a node's ancestors below the root, from the top, and the node's own path."""
    names = path.strip("/").split("/") if path != "/" else []
    for count in range(1, len(names) + 1):
        yield "/" + "/".join(names[:count])
