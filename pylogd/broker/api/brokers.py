"""The addresses of the brokers, as clients of a given listener reach them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pylogd.broker.api.context import BrokerParts, RequestContext
from pylogd.broker.metadata.image import NO_LEADER, Broker, PartitionState

#: The first versions of Produce and Fetch whose responses have the addresses of the leaders that they name (KIP-951).
PRODUCE_WITH_LEADERS = 10
FETCH_WITH_LEADERS = 16


def reachable_brokers(context: RequestContext) -> Iterator[tuple[int, str, int, str | None]]:
    """Return (id, host, port, rack) of each live broker that has the client's listener, in order of the ids.

    This broker is always among them.
    """
    for node_id in sorted({*context.broker.cluster.brokers, context.broker.cluster.node_id}):
        found = reachable_broker(context, node_id)
        if found is not None:
            yield found


def reachable_broker(context: RequestContext, node_id: int) -> tuple[int, str, int, str | None] | None:
    """Return (id, host, port, rack) of a live broker; None if it does not have the client's listener."""
    broker, listener = context.broker, context.connection.listener
    found = broker.cluster.brokers.get(node_id)
    rack = None if found is None else found.rack
    if node_id == broker.cluster.node_id:
        return (node_id, *broker.advertised(listener), rack)
    endpoint = None if found is None else found.endpoint(listener)
    return None if endpoint is None else (node_id, endpoint.host, endpoint.port, rack)


def offline_replicas(live: Mapping[int, Broker], topic_id: bytes, state: PartitionState) -> list[int]:
    """Return the replicas whose broker is not alive, or has reported their log directory as failed (KIP-112)."""
    key = topic_id, state.index
    return [node for node in state.replicas if node not in live or key in live[node].outages.offline]


def endpoints_of(context: RequestContext, leaders: Iterable[int]) -> Iterator[tuple[int, str, int, str | None]]:
    """Return the brokers of `reachable_brokers` that are in `leaders`."""
    wanted = set(leaders)
    return (found for found in reachable_brokers(context) if found[0] in wanted) if wanted else iter(())


def leader_elsewhere(broker: BrokerParts, topic: str | bytes, index: int) -> tuple[int, int] | None:
    """Return the id of another broker that leads a partition, and the leader epoch; None if no other broker leads it.

    topic: the topic's name, or its id as bytes.

    The leader is the one in the metadata, even for partitions that this broker no longer has. A client that is told it
    goes there at once, instead of asking for metadata first (KIP-951).
    """
    found = broker.topics.by_id(topic) if isinstance(topic, bytes) else broker.topics.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        return None
    state = found.partitions[index]
    return None if state.leader in (NO_LEADER, broker.cluster.node_id) else (state.leader, state.leader_epoch)
