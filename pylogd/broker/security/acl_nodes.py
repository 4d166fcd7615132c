"""The paths and contents of the nodes that hold ACLs in a metadata store. They are the same as in Kafka's ZooKeeper
tree.

A literal pattern is `/kafka-acl/<Type>/<name>`, a prefixed one `/kafka-acl-extended/prefixed/<Type>/<name>`. A node
holds `{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"}]}`.

Names with characters that no path can have, such as a group id with a slash, are stored with those characters (and `%`)
percent-encoded; Kafka refuses ACLs with a slash, and stores a percent sign as it is.
Must not know: stores, decisions by ACLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from pylogd.broker.security.acls import AclEntry, PatternType, Permission, ResourcePattern
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.credentials.principal import parse_principal
from pylogd.store.errors import CorruptMetadata

LITERAL_ROOT: Final = "/kafka-acl"
PREFIXED_ROOT: Final = "/kafka-acl-extended/prefixed"
ROOTS: Final[Mapping[PatternType, str]] = {PatternType.LITERAL: LITERAL_ROOT, PatternType.PREFIXED: PREFIXED_ROOT}

#: The types' names in paths, such as `TransactionalId` for TRANSACTIONAL_ID.
_TYPES: Final[Mapping[ResourceType, str]] = {
    kind: kind.name.title().replace("_", "") for kind in ResourceType if kind is not ResourceType.ANY
}
_TYPES_BY_NAME: Final = {name: kind for kind, name in _TYPES.items()}
_OPERATIONS: Final[Mapping[AclOperation, str]] = {
    found: found.name.title().replace("_", "") for found in AclOperation if found is not AclOperation.ANY
}
_OPERATIONS_BY_NAME: Final = {name: operation for operation, name in _OPERATIONS.items()}
_PERMISSIONS: Final = {Permission.ALLOW: "Allow", Permission.DENY: "Deny"}
_PERMISSIONS_BY_NAME: Final = {name: permission for permission, name in _PERMISSIONS.items()}

#: Characters that ZooKeeper does not allow in a path, the slash that separates names, and the mark of the encoding.
_NOT_IN_NAMES: Final = re.compile("[/%\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def parents() -> list[str]:
    """Return the paths below which patterns are stored, one for each pattern type and resource type."""
    return [f"{root}/{name}" for root in ROOTS.values() for name in _TYPES.values()]


def pattern_path(pattern: ResourcePattern) -> str:
    """Return the path of the node of a pattern."""
    name = _NOT_IN_NAMES.sub(lambda found: quote(found[0], safe=""), pattern.name)
    if name in (".", ".."):
        name = name.replace(".", "%2E")
    return f"{ROOTS[pattern.pattern]}/{_TYPES[pattern.resource]}/{name}"


def pattern_of_path(path: str) -> ResourcePattern | None:
    """Return the pattern of a node, None for a node of another kind."""
    for pattern_type, root in ROOTS.items():
        kind, slash, name = path.removeprefix(f"{root}/").partition("/")
        if path.startswith(f"{root}/") and slash and name and kind in _TYPES_BY_NAME:
            return ResourcePattern(_TYPES_BY_NAME[kind], unquote(name), pattern_type)
    return None


def encode_entries(entries: Sequence[AclEntry]) -> bytes:
    """Encode the node of a pattern."""
    acls = [
        {
            "principal": str(entry.principal),
            "permissionType": _PERMISSIONS[entry.permission],
            "operation": _OPERATIONS[entry.operation],
            "host": entry.host,
        }
        for entry in entries
    ]
    return json.dumps({"version": 1, "acls": acls}, separators=(",", ":")).encode()


def decode_entries(path: str, data: bytes) -> tuple[AclEntry, ...]:
    """Decode the node of a pattern, whose entries come in order.

    Entries for operations that this release does not know are left out, since no request can be for those operations.
    Raises `CorruptMetadata` for anything else that can't be read.
    """
    if not data:
        return ()
    try:
        document = json.loads(data)
        if document["version"] != 1:
            raise ValueError(f"version {document['version']}")
        return tuple(sorted({entry for found in document["acls"] if (entry := _decode_entry(found)) is not None}))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def _decode_entry(found: Mapping[str, Any]) -> AclEntry | None:
    principal, host = parse_principal(found["principal"]), found["host"]
    if not isinstance(host, str) or not isinstance(found["operation"], str):
        raise ValueError("host and operation have to be texts")
    operation = _OPERATIONS_BY_NAME.get(found["operation"])
    permission = _PERMISSIONS_BY_NAME[found["permissionType"]]
    return None if operation is None else AclEntry(principal, host, operation, permission)
