"""Verdicts on clusters, and the reasons."""

from __future__ import annotations

import pytest

from pylogd.client.core.admin.health import Facts, Partitions, Verdict, judge, stuck_partitions, verdict_of
from pylogd.client.core.model import LogDir, Partition, Topic, TopicPartition


def topic(name: str, *partitions: tuple[int, tuple[int, ...]]) -> Topic:
    """A topic of partitions with replicas 1, 2 and 3, each with its leader and in-sync replicas."""
    made = tuple(Partition(index, leader, 0, (1, 2, 3), isr, ()) for index, (leader, isr) in enumerate(partitions))
    return Topic(name, b"", False, made)


def directory(total: int, usable: int, error: str | None = None) -> LogDir:
    return LogDir(1, "/data", error, total, usable, {})


ALL = (1, 2, 3)
GOOD = topic("t", (1, ALL))
ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)


@pytest.mark.parametrize(
    ("facts", "codes", "verdict"),
    [
        (Facts(ALL, 1, Partitions([GOOD])), [], Verdict.HEALTHY),
        (Facts(ALL, -1, Partitions([GOOD])), ["no-controller"], Verdict.CRITICAL),
        (Facts(ALL, 1, Partitions([topic("t", (-1, (1,)), (1, ALL))])),
         ["offline-partitions", "under-replicated"],
         Verdict.CRITICAL),
        (Facts(ALL, 1, Partitions([topic("t", (1, (1, 2)))])), ["under-replicated"], Verdict.DEGRADED),
        (Facts(ALL, 1, Partitions([topic("t", (1, (1, 2)))]), {"t": 2}), ["under-replicated"], Verdict.DEGRADED),
        (Facts(ALL, 1, Partitions([topic("t", (1, (1,)))]), {"t": 2}),
         ["under-min-isr", "under-replicated"], Verdict.CRITICAL),
        (Facts((1, 2), 1, Partitions([topic("t", (1, (1, 2)))])),
         ["missing-brokers", "under-replicated"], Verdict.DEGRADED),
        (Facts(ALL, 1, Partitions([GOOD]), silent=[3]), ["silent-brokers"], Verdict.DEGRADED),
        (Facts(ALL, 1, Partitions([GOOD]), directories=[directory(-1, -1, "KAFKA_STORAGE_ERROR")]),
         ["offline-directories"],
         Verdict.DEGRADED),
        (Facts(ALL, 1, Partitions([GOOD]), directories=[directory(1000, 40)]), ["low-space"], Verdict.DEGRADED),
        (Facts(ALL, 1, Partitions([GOOD]), directories=[directory(1000, 60), directory(-1, -1)]), [], Verdict.HEALTHY),
    ],
)  # fmt: skip
def test_verdicts(facts: Facts, codes: list[str], verdict: Verdict) -> None:
    reasons = judge(facts)
    assert [reason.code for reason in reasons] == codes
    assert verdict_of(reasons) is verdict


def test_a_reason_names_a_few_and_counts_all() -> None:
    [reason] = judge(Facts(ALL, 1, Partitions([topic("t", *[(1, (1, 2))] * 5)])))
    assert reason.text == "partitions with replicas that are not in sync: 5 (t:0, t:1, t:2, ...)"


def test_partitions_are_stuck_where_their_leader_s_disk_is_full() -> None:
    topics = [topic("t", (1, ALL), (1, ALL), (2, ALL)), topic("u", (1, ALL))]
    full = LogDir(1, "/data", None, 1 << 40, 4096, {ONE: 5, TWO: 5})
    others = LogDir(1, "/more", None, 1 << 40, 1 << 30, {TopicPartition("t", 0): 5, TopicPartition("u", 0): 5})
    failed = LogDir(2, "/data", "KAFKA_STORAGE_ERROR", -1, -1, {TWO: 5})
    unknown = LogDir(2, "/more", None, -1, -1, {TWO: 5})
    assert stuck_partitions(topics, [full, others, failed, unknown]) == ["t:1"]
    assert stuck_partitions(topics, [others, failed, unknown]) == []
    [reason, _] = judge(Facts(ALL, 1, Partitions([GOOD]), directories=[full], stuck=["t:1"]))
    assert reason == (
        Verdict.CRITICAL, "full-disks", "partitions that refuse records, as their leader's disk is full: 1 (t:1)"
    )  # fmt: skip
