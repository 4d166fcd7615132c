"""The consumer's fetch session (KIP-227) with a real broker: it is kept, and opened anew after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.ports import free_ports
from pylogd.client import TopicPartition
from tests.faces import FACES, poll_until
from tests.integration.conftest import StartBroker

COUNT = 20


def sessions(consumer: Any) -> list[tuple[int, int]]:
    """Return the id and the epoch of each of a consumer's sessions."""
    inside = getattr(consumer, "target", consumer)._consumer.core.fetcher._sessions
    return [(session._id, session._epoch) for session in inside.values()]


@pytest.mark.parametrize("kind", FACES)
def test_a_session_lost_in_a_restart_is_opened_again(start_broker: StartBroker, kind: str) -> None:
    [port] = free_ports(1)
    broker = start_broker(port=port)
    face = FACES[kind](broker.address)
    try:
        face.admin().create_topic("t", COUNT)
        producer = face.producer(acks=1)
        consumer = face.consumer(fetch_max_wait_ms=100)
        partitions = [TopicPartition("t", index) for index in range(COUNT)]
        consumer.assign(partitions)

        def round_trip(number: int) -> None:
            for partition in partitions:
                producer.send("t", b"%d" % number, partition=partition.partition)
            producer.flush()
            records = poll_until([consumer], lambda records: len(records) >= COUNT)
            assert sorted((r.partition, r.value) for r in records) == [(n, b"%d" % number) for n in range(COUNT)]

        round_trip(1)
        [(session, epoch)] = sessions(consumer)
        assert session > 0 and epoch > 0
        round_trip(2)
        poll_until([consumer], lambda _: sessions(consumer)[0][1] > epoch + 3)
        assert [number for number, _ in sessions(consumer)] == [session], "the session is kept"
        assert broker.stop() == 0
        start_broker(port=port)
        round_trip(3)
        [(another, _)] = sessions(consumer)
        assert another not in (0, session)
    finally:
        face.close()
