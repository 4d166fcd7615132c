"""The fast path of Fetch gives the same response as the general handler, or leaves the request to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.fast import fetch as fast
from pylogd.broker.log.markers import encode_marker
from pylogd.broker.log.transactions import VERIFICATION_OFF
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from pylogd.wire.records import TRANSACTIONAL
from tests.fakes.parts import Parts, batch

BATCHES = 10
LEFT = fast.FastFetch(None, False)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    made = Parts(tmp_path_factory.mktemp("parts"), log_index_interval_bytes=0)
    made.create("t")
    for _ in range(BATCHES):
        made.append("t", b"one", b"two")
    made.create("transactions")
    for producer in (1, 2, 3, 1, 2, 3, -1, 2, 3):
        write(made, producer)
    for producer, committed in ((1, False), (3, True), (2, False)):
        mark(made, producer, committed=committed)
    for producer in (1, -1, 4, -1):
        write(made, producer)
    mark(made, 4, committed=False)  # behind the last stable offset: producer 1 has a transaction open
    yield made
    made.close()


def write(parts: Parts, producer: int) -> None:
    """Append a record to the topic with transactions, in one of the producer's unless that is -1."""
    partition = parts.partitions.by_name["transactions", 0]
    if producer < 0:
        parts.replicas.append(partition, batch(), False)
        return
    sequence = max(partition.log.producers.next_sequence(producer, 0), 0)
    data = batch(producer_id=producer, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL)
    parts.replicas.append(partition, data, False, terms=VERIFICATION_OFF)


def mark(parts: Parts, producer: int, *, committed: bool) -> None:
    """End the producer's transaction."""
    marker = encode_marker(producer, 0, parts.now_ms(), committed=committed, coordinator_epoch=0)
    parts.replicas.append(parts.partitions.by_name["transactions", 0], marker, False, own=True)


def said(response: Any) -> Any:
    """Return a response by value, with the bytes of file slices in place of the slices."""
    assert isinstance(response, FetchResponse)
    for topic in response.responses:
        for data in topic.partitions:
            records: Any = data.records
            if records:
                data.records = (records.file.path, records.position, records.length)
            if data.aborted_transactions:
                found: Any = [(one.producer_id, one.first_offset) for one in data.aborted_transactions]
                data.aborted_transactions = found
    return response


_REPLICA_STATE_SINCE = 15
sizes = st.integers(-1, 1000) | st.just(1 << 20)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    offset=st.integers(-1, 2 * BATCHES + 1),
    partition_max=sizes,
    max_bytes=sizes,
    min_bytes=sizes,
    isolation=st.integers(0, 1),
    leader_epoch=st.sampled_from([-1, -1, 0, 1]),
    last_epoch=st.sampled_from([-1, -1, -1, 0]),
    session=st.sampled_from([(0, -1), (0, -1), (0, -1), (0, 0), (7, -1), (7, 1)]),
    index=st.sampled_from([0, 0, 0, 1]),
    replica=st.sampled_from([-1, -1, -1, 5]),
    name=st.sampled_from(["t", "transactions"]),
    version=st.integers(fast.FIRST_VERSION, 18),
)
def test_both_paths_answer_alike(
    parts: Parts, offset: int, partition_max: int, max_bytes: int, min_bytes: int, isolation: int, leader_epoch: int,
    last_epoch: int, session: tuple[int, int], index: int, replica: int, name: str, version: int,
) -> None:  # fmt: skip
    topic_id = parts.partitions.by_name[name, 0].topic_id
    wanted = FetchPartition(index, leader_epoch, offset, last_epoch, partition_max_bytes=partition_max)
    request = FetchRequest(
        replica_id=replica if version < _REPLICA_STATE_SINCE else -1,
        replica_state=ReplicaState(replica if version >= _REPLICA_STATE_SINCE else -1),
        max_wait_ms=0,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic("", topic_id, [wanted])],
    )
    context = RequestContext(parts, parts.connection, version, "test")
    found = fast.answer(context, request)
    if found == LEFT:
        return
    with patch.object(fast, "answer", return_value=LEFT):
        answer = parts.ask(request, version)
    if found.at_end:
        assert found.response is None
        assert not answer.error_code
        (data,) = answer.responses[0].partitions
        assert (data.error_code, data.records) == (0, b"")
        assert said(parts.ask(request, version)) == said(answer)
    else:
        assert said(found.response) == said(answer)


def test_the_usual_request_takes_the_fast_path(parts: Parts) -> None:
    topic_id = parts.partitions.by_name["t", 0].topic_id
    for version in range(fast.FIRST_VERSION, 19):
        topic = FetchTopic("", topic_id, [FetchPartition(0, 0, 4, -1, partition_max_bytes=1 << 20)])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])
        context = RequestContext(parts, parts.connection, version, "test")
        response = fast.answer(context, request).response
        assert response is not None
        assert len(response.responses[0].partitions[0].records or b"") > 0
