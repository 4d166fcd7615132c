"""Which members of a group had to wait for busy disks, for `pylogd groups describe`.

Brokers count waits by client (`lagging.consumers.throttled`, see docs/lagging-consumers.md), since a fetch does not say
its group. Members of a group have the same client id and host; clients that share both can't be told apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pylogd.base.errors import KafkaError, PylogdError, UnsupportedByBroker
from pylogd.client import Admin
from pylogd.client.core.model import GroupDescription

_NAME: Final = "lagging.consumers.throttled"


def throttled_clients(admin: Admin, timeout: float) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the clients that had to wait in the last minute, with the broker, from all brokers that report them, and
    the ids of the brokers that do not answer within `timeout` seconds.

    A broker that the user may not ask, or that is not pylogd of this release, adds nothing.
    """
    found = []
    silent = []
    nodes = [broker.node_id for broker in admin.cluster.brokers()]
    for node, entries in admin.configs_by_broker(nodes, [_NAME], timeout).items():
        if isinstance(entries, (KafkaError, UnsupportedByBroker)):
            continue
        if isinstance(entries, PylogdError):
            silent.append(node)
            continue
        for entry in entries:
            if entry.name == _NAME and entry.value:
                found += [{"broker": node, **client} for client in json.loads(entry.value)]
    return found, silent


def of_group(group: GroupDescription, clients: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the clients that are members of a group."""
    members = {(member.client_id, member.host.removeprefix("/")) for member in group.members}
    return [client for client in clients if (client["client"], client["host"]) in members]


def line(client: dict[str, Any]) -> str:
    """Return the fields of a client that are shown."""
    busy = "" if client["utilization"] is None else f" at {client['utilization']:.0%}"
    return (
        f"throttled: {client['seconds']:.1f} s in the last minute: client {client['client']!r} of {client['host']}, "
        f"reading {client['partition']} from broker {client['broker']}, disk {client['disk']} ({client['directory']})"
        f"{busy}"
    )
