"""Where a client finds the brokers of the cluster, by the listener that it came in by."""

from __future__ import annotations

from collections.abc import Iterator

from pylogd.api.context import RequestContext


def reachable_brokers(context: RequestContext) -> Iterator[tuple[int, str, int, str | None]]:
    """(id, host, port, rack) of each live broker, in order of the ids.

    This broker is always among them, since it answers. Another one that has no such listener can't be reached by this
    client and is left out.
    """
    broker = context.broker
    listener = context.connection.listener
    live = broker.cluster.brokers
    for node_id in sorted({*live, broker.node_id}):
        found = live.get(node_id)
        rack = None if found is None else found.rack
        if node_id == broker.node_id:
            yield (node_id, *broker.advertised(listener), rack)
        elif found is not None:
            endpoint = found.endpoint(listener)
            if endpoint is not None:
                yield node_id, endpoint.host, endpoint.port, rack
