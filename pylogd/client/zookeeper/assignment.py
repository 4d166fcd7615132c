"""Who reads what: the range assignment of Algorithm 1, as a pure function.

Strategy: a topic's partitions in order are cut into as many runs as its group has streams; the streams in order of
their names take one run each, and the first ones one partition more if it does not come out even (as Kafka 0.8 does,
where the paper leaves the remainder open). Every consumer computes the same from the same registries, so nobody has to
be asked.

Rules: shares of a topic are disjoint, cover it, and differ by one partition at most. Must not know: the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogd.client.core.model import TopicPartition


def stream_name(consumer: str, stream: int) -> str:
    """What a consumer's stream is called in the ownership registry (Kafka 0.8's consumer thread id)."""
    return f"{consumer}-{stream}"


def cut(partitions: Iterable[int], streams: Iterable[str]) -> dict[str, list[int]]:
    """The partitions of one topic for each of its streams; streams beyond the number of partitions get none."""
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
    """Partition -> stream of what belongs to one consumer.

    `topics`: topic -> its partitions. `members`: consumer -> topic -> its number of streams.
    """
    share: dict[TopicPartition, int] = {}
    for topic, count in members.get(consumer, {}).items():
        streams = [stream_name(name, i) for name, wants in members.items() for i in range(wants.get(topic, 0))]
        runs = cut(topics.get(topic, ()), streams)
        for stream in range(count):
            for partition in runs[stream_name(consumer, stream)]:
                share[TopicPartition(topic, partition)] = stream
    return share
