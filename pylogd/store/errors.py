"""The errors of a metadata store: it refused an operation, or failed.

Users of the store handle them. No such node, a wrong version and an expired session are among them.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.base.errors import PylogdError


class StoreError(PylogdError):
    """A metadata store refused an operation, or failed."""


class NodeError(StoreError):
    """An operation on one node failed; nothing was changed.

    `path` is the node. `operation` is the index of the failed operation within a `multi`, else 0.
    """

    text: ClassVar[str] = "failed"

    def __init__(self, path: str, operation: int = 0) -> None:
        super().__init__(f"{path}: {self.text}")
        self.path = path
        self.operation = operation


class NoNode(NodeError):
    """The node, or the parent of a node to be created, does not exist."""

    text = "no such node"


class NodeExists(NodeError):
    """The node to be created already exists."""

    text = "the node exists"


class BadVersion(NodeError):
    """The node was changed since the version that the caller has seen."""

    text = "the node has another version"


class NotEmpty(NodeError):
    """A node with children can't be deleted."""

    text = "the node has children"


class NoChildrenForEphemerals(NodeError):
    """An ephemeral node can't have children."""

    text = "an ephemeral node has no children"


class InvalidNode(NodeError):
    """A path is not absolute and plain, or the data is larger than a node may be."""

    text = "not a valid path, or too much data"


class AccessDenied(NodeError):
    """The node's access control list does not allow this with the present credentials."""

    text = "the node's ACL does not allow that to these credentials"


class SessionExpired(StoreError):
    """The session ended: its ephemeral nodes and watches are gone, and the operation was not done."""


class ConnectionLost(StoreError):
    """No answer came; the operation may or may not have been done."""


class StoreClosed(StoreError):
    """The store is closed, or not started."""


class StoreFailure(StoreError):
    """The store's storage failed: disk full, read-only, damaged, or in use by another process."""


class NodeIdInUse(StoreError):
    """Another live broker is registered with this broker's node id."""


class CorruptMetadata(StoreError):
    """A node has invalid content."""

    def __init__(self, path: str, reason: object) -> None:
        super().__init__(f"metadata node {path} is not readable: {reason}")
        self.path = path
