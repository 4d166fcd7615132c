"""Who may read and change a cluster's nodes in ZooKeeper, where `zookeeper.set.acl` is set.

- `/config`, `/delegation_token`, `/kafka-acl`, `/kafka-acl-extended`, `/scram_decoy_secret`, `/changes/log`, and all
  below them: only whoever has the brokers' credentials.
- `/consumers` itself: everybody, because consumers make the nodes of their groups below it.
- All others: everybody may read, the brokers' credentials may do everything.

A node gets its ACL when it is made. `protect` gives the nodes of an existing tree theirs.

Source: Kafka's `zookeeper.set.acl`, which hides the settings of users and brokers and the delegation tokens. Here all
settings and the ACLs are hidden too: no client has to read them in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kazoo import security
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pylogd.metadata.layout import CHANGE_LOG, CONSUMERS, SCRAM_DECOY_SECRET

#: Nodes with secrets, or with what strangers should not know, and all below them. The change log names users, tokens
#: and what ACLs protect.
_HIDDEN: Final = ("/config", "/delegation_token", "/kafka-acl", "/kafka-acl-extended", SCRAM_DECOY_SECRET, CHANGE_LOG)
_OWNERS: Final = tuple(security.CREATOR_ALL_ACL)
_READABLE: Final = (*_OWNERS, *security.READ_ACL_UNSAFE)
_OPEN: Final = tuple(security.OPEN_ACL_UNSAFE)

#: Returns the ACL of a node by its path below the chroot; None for ZooKeeper's default, which allows everything.
AclOf = Callable[[str], list[Any] | None]


def no_acl(_path: str) -> None:
    """Return None: everybody may do everything with a node."""


def protected_acl(path: str) -> list[Any]:
    """Return the ACL of a node. path: below the chroot."""
    if path == CONSUMERS:
        return list(_OPEN)
    hidden = any(path == root or path.startswith(root + "/") for root in _HIDDEN)
    return list(_OWNERS if hidden else _READABLE)


def protect(client: KazooClient, chroot: str, acl_of: AclOf = protected_acl) -> int:
    """Give every node below `chroot` its ACL, and return how many there are. Waits. Raises kazoo's errors.

    The nodes of consumer groups stay as they are, since they belong to the consumers. acl_of: `no_acl` takes the
    protection away again.
    """
    count = 0
    for path in _tree(client, chroot, ""):
        try:
            client.set_acls(chroot + path or "/", acl_of(path) or list(_OPEN))
        except NoNodeError:
            continue  # deleted meanwhile
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
