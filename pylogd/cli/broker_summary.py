"""The replicas and leaderships of brokers, for `pylogd cluster describe` and `pylogd brokers list`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pylogd.client.core.model import Broker, Topic

_COLUMNS: Final = (
    ">broker", "state", "address", "rack", "host_id", "labels", ">replicas", ">leads", ">should_lead", ">not_in_sync",
)  # fmt: skip


def broker_columns(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of a table of these records: `host_id` is only there if a broker shares its machine."""
    shared = any(one["host_id"] for one in summaries)
    return [column for column in _COLUMNS if shared or column != "host_id"]


def broker_summaries(
    brokers: Sequence[Broker], topics: Sequence[Topic], labels: Mapping[int, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return a record for each broker: live brokers, and brokers that are down and have replicas.

    labels: the labels of live brokers, by broker id.

    In the records, `should_lead` is the number of partitions whose preferred leader is the broker.
    """
    live = {broker.node_id: broker for broker in brokers}
    held: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    should: Counter[int] = Counter()
    lagging: Counter[int] = Counter()
    for topic in topics:
        for one in topic.partitions:
            held.update(one.replicas)
            leads[one.leader] += 1
            should[one.replicas[0] if one.replicas else -1] += 1
            lagging.update(node for node in one.replicas if node not in one.isr)
    return [
        {
            "broker": node,
            "state": "up" if node in live else "down",
            "address": f"{live[node].host}:{live[node].port}" if node in live else None,
            "rack": live[node].rack if node in live else None,
            "host_id": live[node].host_id if node in live else None,
            "labels": list(labels.get(node, ())),
            "replicas": held[node],
            "leads": leads[node],
            "should_lead": should[node],
            "not_in_sync": lagging[node],
        }
        for node in sorted(live.keys() | held.keys())
    ]
