"""Consumer groups in a real ZooKeeper, for the faces that support them (blocking and Twisted)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from pylogd.client import Closed, ConsumerInterceptor, TopicPartition
from pylogd.client.core.errors import ClientError
from pylogd.client.core.model import OffsetAndMetadata
from tests.faces import FACES, Face, poll_until
from tests.integration.conftest import StartBroker
from tests.zookeeper import ZooKeeper


@pytest.fixture(params=["blocking", "deferred"])
def face(request: pytest.FixtureRequest, zookeeper: ZooKeeper, start_broker: StartBroker) -> Iterator[Face]:
    broker = start_broker(settings=zookeeper.settings)
    face = FACES[request.param](broker.address)
    yield face
    face.close()


class Counting(ConsumerInterceptor):
    """Keeps what was committed."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, int] = {}

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.update((partition, each.offset) for partition, each in offsets.items())


def fill(face: Face, first: int, count: int) -> None:
    producer = face.producer()
    for n in range(first, first + count):
        producer.send("events", b"%d" % n, partition=n % 2)
    producer.flush()


def test_members_share_partitions_and_take_over(face: Face, zookeeper: ZooKeeper) -> None:
    # A session that expired on a busy machine would cause records to be read twice.
    options = {"group_id": "g", "coordinator": "zookeeper", "zookeeper": zookeeper.connect, "session_timeout": 30.0}
    face.admin().create_topic("events", 2)
    fill(face, 0, 20)
    both = [TopicPartition("events", 0), TopicPartition("events", 1)]
    counting = Counting()
    first = face.consumer(interceptors=[counting], **options)
    with pytest.raises(ClientError, match="subscribe first"):
        first.committed(both)
    told: list[str] = []
    first.subscribe("events", on_assign=lambda _: told.append("assign"), on_revoke=lambda _: told.append("revoke"))
    found = poll_until([first], lambda records: len(records) >= 20)
    assert sorted(int(record.value or b"") for record in found) == list(range(20))
    assert first.assignment == both and told == ["assign"]
    first.commit()
    assert [offset.offset for offset in first.committed(both).values()] == [10, 10]
    assert counting.committed == dict.fromkeys(both, 10)

    second = face.consumer(**options)
    second.subscribe("events")
    poll_until([first, second], lambda _: len(first.assignment) == len(second.assignment) == 1)
    assert "revoke" in told
    fill(face, 20, 20)
    found = poll_until([first, second], lambda records: len(records) >= 20)
    assert sorted(int(record.value or b"") for record in found) == list(range(20, 40))

    first.close(60.0)
    poll_until([second], lambda _: sorted(second.assignment) == both)
    fill(face, 40, 20)
    found = poll_until([second], lambda records: len(records) >= 20)
    assert sorted(int(record.value or b"") for record in found) == list(range(40, 60))
    second.unsubscribe()
    assert second.assignment == []
    second.close()
    with pytest.raises(Closed):
        second.poll(1)


def test_streams_return_each_record_once(face: Face, zookeeper: ZooKeeper) -> None:
    face.admin().create_topic("events", 2)
    fill(face, 0, 20)
    consumer = face.consumer(group_id="g", coordinator="zookeeper", zookeeper=zookeeper.connect, session_timeout=30.0)
    streams = consumer.create_message_streams("events", 2)["events"]
    found = [record for stream in streams for record in face.take(stream, 10)]
    assert sorted(int(record.value or b"") for record in found) == list(range(20))


def test_options_for_zookeeper_groups_are_checked(face: Face) -> None:
    with pytest.raises(ValueError, match="zookeeper="):
        face.consumer(group_id="g", coordinator="zookeeper")


def test_a_new_topic_of_a_deleted_ones_name_is_read_from_its_beginning(face: Face, zookeeper: ZooKeeper) -> None:
    """The offset nodes are named by topic, and nobody deletes them with it."""
    options = {"group_id": "g", "coordinator": "zookeeper", "zookeeper": zookeeper.connect, "session_timeout": 30.0}
    face.admin().create_topic("events", 2)
    fill(face, 0, 8)
    first = face.consumer(**options)
    first.subscribe("events")
    poll_until([first], lambda records: len(records) >= 8)
    first.commit()
    first.close()
    face.admin().delete_topic("events")
    face.admin().create_topic("events", 2)
    fill(face, 100, 20)
    second = face.consumer(**options)
    second.subscribe("events")
    found = poll_until([second], lambda records: len(records) >= 20)
    assert sorted(int(record.value or b"") for record in found) == list(range(100, 120))
