"""Who may read and change a cluster's nodes in ZooKeeper, if `zookeeper.set.acl` is set.

- `/config`, `/delegation_token`, `/kafka-acl`, `/kafka-acl-extended`, `/scram_decoy_secret`, `/changes/log`, and all
  nodes below them: only clients with the brokers' credentials have access.
- `/consumers` itself: everybody has full access, because consumers make the nodes of their groups below it.
- All others: everybody may read, and the brokers' credentials allow everything.

A node gets its ACL when it is made. `protect` sets the ACLs of the nodes of an existing tree.

Source: Kafka's `zookeeper.set.acl`, which hides the settings of users and brokers and the delegation tokens. Here all
settings and the ACLs are hidden too, since no client has to read them in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kazoo import security
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pylogd.store.paths import CHANGE_LOG, CONSUMERS, SCRAM_DECOY_SECRET

#: Nodes with secrets or other confidential data, with all nodes below them. The change log names users, tokens and what
#: ACLs protect.
_HIDDEN: Final = ("/config", "/delegation_token", "/kafka-acl", "/kafka-acl-extended", SCRAM_DECOY_SECRET, CHANGE_LOG)
_OWNERS: Final = tuple(security.CREATOR_ALL_ACL)
_READABLE: Final = (*_OWNERS, *security.READ_ACL_UNSAFE)
_OPEN: Final = tuple(security.OPEN_ACL_UNSAFE)

#: Returns the ACL of a node by its path below the chroot; None for ZooKeeper's default, which allows everything.
AclOf = Callable[[str], list[Any] | None]


def no_acl(_path: str) -> None:
    """Return None: everybody may do everything with a node."""


def protected_acl(path: str) -> list[Any]:
    """Return the ACL of a node.

    path: the node's path below the chroot.
    """
    if path == CONSUMERS:
        return list(_OPEN)
    hidden = any(path == root or path.startswith(root + "/") for root in _HIDDEN)
    return list(_OWNERS if hidden else _READABLE)


def protect(client: KazooClient, chroot: str, acl_of: AclOf = protected_acl) -> int:
    """Give every node below `chroot` its ACL. Return the number of nodes. Waits. Raises kazoo's errors.

    acl_of: returns a node's ACL; `no_acl` removes the protection.

    The nodes of consumer groups are not changed, since they belong to the consumers.
    """
    count = 0
    for path in _tree(client, chroot, ""):
        try:
            client.set_acls(chroot + path or "/", acl_of(path) or list(_OPEN))
        except NoNodeError:
            continue  # it was deleted meanwhile
        count += 1
    return count


def _tree(client: KazooClient, chroot: str, path: str) -> Iterator[str]:
    """Yield the paths of a node and of all nodes below it, except ZooKeeper's own and those of consumer groups."""
    yield path
    if path == CONSUMERS:
        return
    try:
        names = client.get_children(chroot + path or "/")
    except NoNodeError:
        return
    for name in names:
        below = f"{path}/{name}"
        if below != "/zookeeper":
            yield from _tree(client, chroot, below)
