"""Consumers of all faces detect that an unclean election truncated records they had read (KIP-320)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pylogd.client import LogTruncation, TopicPartition
from pylogd.client.core.model import OffsetAndMetadata
from pylogd.wire.records import Record
from tests.clusters import BrokerCluster
from tests.faces import FACES, Face, poll_until
from tests.integration.clusters.test_eligible_replicas import leader, make
from tests.integration.test_failover import send

StartCluster = Callable[..., BrokerCluster]
T0 = TopicPartition("t", 0)


@pytest.fixture
def faces(start_cluster: StartCluster) -> Iterator[tuple[BrokerCluster, list[Face]]]:
    cluster = start_cluster(settings={"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"})
    made = [face(cluster.bootstrap) for face in FACES.values()]
    yield cluster, made
    for face in made:
        face.close()


def lose_fifty_records(cluster: BrokerCluster) -> None:
    """Elect broker 3, which lacks offsets 100 to 149, and write other records from offset 100 on."""
    cluster.kill(2)
    cluster.until(lambda: leader(cluster, "t") == -1, "that nobody leads")
    cluster.start(3)
    cluster.wait_for_brokers([1, 3])
    cluster.until(lambda: elected(cluster), "that broker 3 is elected")
    send(cluster, "t", range(1000, 1100), partitions=1)


def elected(cluster: BrokerCluster) -> bool:
    cluster.ask(lambda admin: admin.elect_leaders([("t", 0)], unclean=True))
    return leader(cluster, "t") == 3


def values(records: list[Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def read(consumer: Any, count: int) -> list[int]:
    return values(poll_until([consumer], lambda records: len(records) >= count))


def test_truncation_by_an_unclean_election_is_detected(faces: tuple[BrokerCluster, list[Face]]) -> None:
    cluster, made = faces
    make(cluster, "t", (2, 3))
    send(cluster, "t", range(100), partitions=1)
    cluster.stop(3)
    cluster.until(lambda: leader(cluster, "t") == 2, "that broker 2 leads")
    send(cluster, "t", range(100, 150), partitions=1)
    strict, lenient = [], []
    for number, face in enumerate(made):
        strict.append(face.consumer(auto_offset_reset="none"))
        strict[-1].assign({T0: 0})
        lenient.append(face.consumer(auto_offset_reset="latest"))
        lenient[-1].assign({T0: 0})
        for consumer in (strict[-1], lenient[-1]):
            assert read(consumer, 150) == list(range(150))
        member = face.consumer(group_id=f"g{number}")
        member.subscribe("t")
        assert read(member, 150) == list(range(150))
        member.close()  # commits the positions with their leader epochs
    lose_fifty_records(cluster)
    for number, face in enumerate(made):
        assert read(lenient[number], 100) == list(range(1000, 1100)), "reading continues where the logs diverge"
        with pytest.raises(LogTruncation) as told:
            poll_until([strict[number]], bool)
        [(partition, divergent)] = told.value.divergent_offsets.items()
        assert partition == T0 and divergent is not None
        assert divergent.offset == 100 and divergent.leader_epoch >= 0
        strict[number].seek(T0, divergent)
        assert read(strict[number], 100) == list(range(1000, 1100))
        member = face.consumer(group_id=f"g{number}", auto_offset_reset="latest")
        member.subscribe("t")
        assert read(member, 100) == list(range(1000, 1100)), "the committed offset is validated too"
        committed = member.committed([T0])[T0]
        assert isinstance(committed, OffsetAndMetadata)
    cluster.start(2)
