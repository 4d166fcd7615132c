"""With acks=0 there is no response, so no record may be written to a connection that the broker has closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pylogd.client.core import link
from pylogd.wire.messages import ApiKey
from pylogd.wire.records import decode_batch
from tests.faces import FACES, DeferredFace, Face
from tests.fakes.broker import FakeBroker


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker() as server:
        yield server


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, server: FakeBroker) -> Iterator[Face]:
    face = FACES[request.param](server.address)
    yield face
    face.close()


def test_no_record_is_lost(face: Face, server: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "IDLE_CHECK_SECONDS", 0.0)
    producer = face.producer(acks=0, linger_ms=0, retry=False)
    for n in range(5):
        producer.send("t", b"%d" % n, partition=0).result()
        while isinstance(face, DeferredFace) and face.reactor.getWriters():
            face.turn()  # the transport writes in the next turn of the reactor
        server.wait_until_asked(ApiKey.PRODUCE, n + 1)
        # the event loops of asyncio and Twisted do not run now, so they notice the close after the next send
        server.drop()
    came = [request.topic_data[0].partition_data[0].records for request in server.asked(ApiKey.PRODUCE)]
    assert [record.value for batch in came for record in decode_batch(batch)] == [b"%d" % n for n in range(5)]
