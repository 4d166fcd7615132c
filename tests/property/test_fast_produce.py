"""The short way through Produce answers, and appends, as the general one does, or leaves the request to it undone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from pylogd.api.context import RequestContext
from pylogd.api.fast.produce import produce_one
from pylogd.api.produce import produce_all
from pylogd.wire import schema
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.fakes.parts import Parts, batch
from tests.fakes.storage import fix_crc, with_header

VERSIONS = range(3, 14)
LONG = "n" * 249
#: Topics by what is done with them, and the settings that make it so.
TOPICS: dict[str, dict[str, str]] = {
    "t": {},
    LONG: {},
    "compacted": {"cleanup_policy": "compact"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "small": {"max_message_bytes": "100"},
    "two": {"min_insync_replicas": "2"},
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    made = Parts(tmp_path_factory.mktemp("parts"))
    for name, configs in TOPICS.items():
        made.create(name, **configs)
        if name not in ("compacted", "small"):
            made.append(name, b"v")
    made.set_state("two", replicas=(1, 2), isr=(1,))
    made.create("followed")
    made.set_state("followed", leader=1, leader_epoch=1)
    yield made
    made.close()


def batches(parts: Parts) -> st.SearchStrategy[bytes | None]:
    now_ms = parts.now_ms()
    whole = batch(b"one", b"two", now_ms=now_ms)
    good = [whole, batch(b"v" * 200, now_ms=now_ms), whole + whole]
    bad = [None, b"", whole[:-1], whole[:30], whole[:-1] + bytes([whole[-1] ^ 1]), batch(b"old", now_ms=-5), b"x" * 80]
    good += [batch(b"v" * 99, now_ms=now_ms, compression=codec) for codec in range(1, 5)]
    bad += [fix_crc(whole[:-1] + b"\1"), with_header(whole, max_timestamp=now_ms + 5), with_header(whole, attributes=1)]
    return st.sampled_from(good * 3 + bad)


def log_of(parts: Parts, name: str) -> tuple[Any, ...]:
    partition = parts.replicas.partitions[name, 0]
    return (partition.high_watermark, partition.log.log_end_offset, partition.log.size)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_both_answer_and_append_alike(parts: Parts, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS))
    name = data.draw(st.sampled_from(["t", *TOPICS, "followed", "absent"]))
    index = data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    acks = data.draw(st.sampled_from([-1, -1, 1, 0, 2]))
    transactional = data.draw(st.sampled_from([None, None, None, "id"]))
    found = parts.replicas.partitions.get((name, 0))
    topic_id = found.topic_id if found is not None else bytes(range(16))
    records = [data.draw(batches(parts)) for _ in range(data.draw(st.sampled_from([1, 1, 1, 2])))]
    by_id = version >= 13

    def request() -> ProduceRequest:
        rows = [PartitionProduceData(index, None if one is None else memoryview(one)) for one in records]
        topics = [TopicProduceData("" if by_id else name, topic_id if by_id else bytes(16), rows)]
        return ProduceRequest(transactional, acks, 1000, topics)

    context = RequestContext(parts, parts.connection, version, "test")  # type: ignore[arg-type]
    before = log_of(parts, name) if found is not None else None
    short = produce_one(context, request())
    assert not isinstance(short, ProduceResponse)
    after = log_of(parts, name) if found is not None else None
    if short is None:
        assert after == before
        return
    assert before is not None and after is not None and after[1] > before[1]
    general = produce_all(context, request())
    assert isinstance(general, ProduceResponse)
    one = schema.response_codec(ProduceRequest.API_KEY, version).decode(memoryview(short))
    grown = tuple(now - then for then, now in zip(before, after, strict=True))
    again = tuple(now - then for then, now in zip(after, log_of(parts, name), strict=True))
    assert grown == again
    [[expected], [answered]] = [reply.responses[0].partition_responses for reply in (general, one)]
    assert answered.base_offset == before[1]
    assert replace(answered, base_offset=after[1]) == expected
    assert schema.response_codec(ProduceRequest.API_KEY, version).encode(one) == [short]


@pytest.mark.parametrize("version", [9, 12, 13])
@pytest.mark.parametrize("acks", [-1, 1])
def test_the_usual_request_goes_the_short_way(parts: Parts, version: int, acks: int) -> None:
    topic_id = parts.replicas.partitions["t", 0].topic_id if version >= 13 else bytes(16)
    rows = [PartitionProduceData(0, memoryview(batch(b"v", now_ms=parts.now_ms())))]
    request = ProduceRequest(None, acks, 1000, [TopicProduceData("t" if version < 13 else "", topic_id, rows)])
    context = RequestContext(parts, parts.connection, version, "test")  # type: ignore[arg-type]
    assert produce_one(context, request) is not None


def test_what_is_waited_for_goes_the_general_way(parts: Parts) -> None:
    parts.create("shared")
    partition = parts.set_state("shared", isr=(0, 1), replicas=(0, 1))
    assert not partition.alone
    rows = [PartitionProduceData(0, memoryview(batch(b"v", now_ms=parts.now_ms())))]
    request = ProduceRequest(None, -1, 1000, [TopicProduceData("shared", bytes(16), rows)])
    context = RequestContext(parts, parts.connection, 9, "test")  # type: ignore[arg-type]
    assert produce_one(context, request) is None
    assert partition.log.log_end_offset == 0
    assert isinstance(produce_all(context, request), Deferred)
    assert partition.log.log_end_offset == 1
