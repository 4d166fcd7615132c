"""Which members of a group had to wait for busy disks, for `pylogd groups describe`.

Brokers count waits by client (`lagging.consumers.throttled`, see docs/lagging-consumers.md), since a fetch does not say
its group. Members of a group have the same client id and host; clients that share both can't be told apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pylogd.client import Admin
from pylogd.client.core.model import GroupDescription
from pylogd.errors import KafkaError

_NAME: Final = "lagging.consumers.throttled"


def throttled_clients(admin: Admin) -> list[dict[str, Any]]:
    """Return the clients that had to wait in the last minute, with the broker, from all brokers that report them.

    One that is down, that may not be asked, or that is no pylogd of this release tells nothing.
    """
    found = []
    for broker in admin.describe_cluster().brokers:
        try:
            entries = admin.describe_configs("broker", str(broker.node_id), [_NAME])
        except KafkaError:
            continue
        for entry in entries:
            if entry.name == _NAME and entry.value:
                found += [{"broker": broker.node_id, **client} for client in json.loads(entry.value)]
    return found


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
