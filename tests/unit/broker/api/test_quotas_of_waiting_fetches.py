"""A fetch that waits for records when a quota is set is charged when it is answered, as one that begins later is."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.broker.api.fast.waiting_fetch import WaitingFetch
from pylogd.broker.quotas.limits import QuotaKind
from pylogd.wire.fast import compiled
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.session import ClientSession, RequestReceived
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, records_in
from tests.unit.broker.api.test_client_quotas import NO_OUTPUT, Client, limit


@pytest.fixture
def client(parts: Parts) -> Client:
    return Client(parts)


def test_a_fetch_that_waited_when_the_quota_was_set_is_counted_too(client: Client) -> None:
    topic_id = client.parts.partitions.by_name["t", 0].topic_id
    wanted = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(0, partition_max_bytes=1 << 20)])
    request = FetchRequest(max_wait_ms=500, min_bytes=25_000, topics=[wanted])
    answer = client.dispatcher.handle(client.connection, RequestReceived(request.API_KEY, 16, 1, "app", request))
    client.produce(20_000)
    limit(client, consumer_byte_rate=15_000.0)
    client.produce(20_000)
    found = result_of(answer)
    assert found.throttle_time_ms > 300
    assert len(records_in(found.responses[0].partitions[0].records)) == 1, "as much as an idle client may fetch"


@pytest.mark.skipif(compiled.fast is None, reason="there was no compiler")
@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("expires", [False, True])
def test_a_fetch_that_waits_on_the_short_way_when_the_quota_is_set(
    client: Client, in_session: bool, expires: bool
) -> None:
    session_id, epoch = 0, -1
    if in_session:
        session_id, epoch = client.fetch(session_epoch=0).session_id, 2
        client.fetch(session_id=session_id, session_epoch=1)
    topic_id = client.parts.partitions.by_name["t", 0].topic_id
    wanted = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(0, partition_max_bytes=1 << 20)])
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[wanted], session_id=session_id, session_epoch=epoch)
    frame: list[Any] = ClientSession(1 << 20, "app").encode_request(request, 16)
    client.connection.known_fetch = None
    wait = client.dispatcher.handle_repeated(client.connection, b"".join(map(bytes, frame)), NO_OUTPUT)
    assert isinstance(wait, WaitingFetch)
    replies: list[Any] = []
    wait.then(lambda reply, _: replies.append(reply), None)
    limit(client, consumer_byte_rate=1000.0)
    if expires:
        client.parts.client_quotas.charge(QuotaKind.FETCH, "ANONYMOUS", "app", 11_000)
        client.parts.time.advance(0.6)
    else:
        client.produce(11_000)
    (found,) = replies
    assert found.throttle_time_ms > 1000
    assert client.muted == [found.throttle_time_ms / 1000]
    assert any(data.records for topic in found.responses for data in topic.partitions) != expires
