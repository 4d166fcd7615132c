"""Assign partitions to consumers: the range assignment of Algorithm 1, as a pure function.

Strategy: a topic's partitions, in order, are divided into as many ranges as its group has streams. The streams, in
order of their names, get one range each. If there is a remainder, the first ranges have one partition more (as in Kafka
0.8; the paper does not say). Every consumer computes the same from the same registries, without a coordinator.

Rules: the ranges of a topic are disjoint, cover all partitions, and differ by one partition at most. Must not know: the
tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogd.client.core.model import TopicPartition


def stream_name(consumer: str, stream: int) -> str:
    """Return the name of a consumer's stream in the ownership registry (Kafka 0.8's consumer thread id)."""
    return f"{consumer}-{stream}"


def cut(partitions: Iterable[int], streams: Iterable[str]) -> dict[str, list[int]]:
    """Return the partitions of a topic for each of its streams. Excess streams get none."""
    ordered = sorted(set(partitions))
    takers = sorted(set(streams))
    if not takers:
        return {}
    each, more = divmod(len(ordered), len(takers))
    shares, start = {}, 0
    for index, taker in enumerate(takers):
        end = start + each + (index < more)
        shares[taker] = ordered[start:end]
        start = end
    return shares


def share_of(
    consumer: str, topics: Mapping[str, Iterable[int]], members: Mapping[str, Mapping[str, int]]
) -> dict[TopicPartition, int]:
    """Return the partitions of one consumer, with the number of the stream that reads each.

    topics: the partitions of each topic.
    members: the number of streams of each consumer, by topic.
    """
    share: dict[TopicPartition, int] = {}
    for topic, count in members.get(consumer, {}).items():
        streams = [stream_name(name, i) for name, wants in members.items() for i in range(wants.get(topic, 0))]
        runs = cut(topics.get(topic, ()), streams)
        for stream in range(count):
            for partition in runs[stream_name(consumer, stream)]:
                share[TopicPartition(topic, partition)] = stream
    return share
