"""A wait that begins when what it waits for is there already ends at once, wherever something happened before it began.

Each test makes something happen between a handler's look and the begin of its wait. tests/simulation/promptness.py
looks for more such places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import fetch as fetching
from pylogd.broker.api.fast.fetch import answer_repeated
from pylogd.broker.api.fetch import answer_after_wait
from pylogd.broker.replica.waiting import PendingAppend
from pylogd.wire.crc import crc32c
from pylogd.wire.fast import compiled
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from pylogd.wire.session import ClientSession
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch

LEADER, FOLLOWER = 1, 2
VERSION = 16
_MIB = 1 << 20


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    # "auto", the default of the former, is "false" without compiled functions
    made = Parts(tmp_path, log_validate_records="true", log_validate_compressed="true")
    yield made
    made.close()


class _Fetcher:
    """Fetches topic `t`, of `partitions` partitions, as broker 2 or as a consumer (`node` -1)."""

    def __init__(self, parts: Parts, partitions: int, node: int, *, session: bool) -> None:
        self.parts, self.node = parts, node
        self.topic_id = parts.create("t", partitions=partitions).topic_id
        if node >= 0:
            for index in range(partitions):
                parts.set_state("t", index, replicas=(LEADER, node), isr=(LEADER, node))
        self.session_id, self.epoch = 0, 0 if session else -1
        self.every = [(index, 0) for index in range(partitions)]
        if session:
            self.fetch(self.every)
            self.fetch()

    def ask(self, wanted: list[tuple[int, int]] | None = None, wait_ms: int = 0) -> Any:
        entries = [
            FetchPartition(index, 0 if self.node >= 0 else -1, offset, partition_max_bytes=_MIB)
            for index, offset in wanted or ()
        ]
        topics = [FetchTopic(topic_id=self.topic_id, partitions=entries)] if entries else []
        request = FetchRequest(
            replica_state=ReplicaState(self.node), max_wait_ms=wait_ms, min_bytes=1, session_id=self.session_id,
            session_epoch=self.epoch, topics=topics,
        )  # fmt: skip
        if self.epoch >= 0:
            self.epoch += 1
        return self.parts.ask(request, VERSION)

    def fetch(self, wanted: list[tuple[int, int]] | None = None) -> dict[int, Any]:
        return self.heard(self.ask(wanted))

    def heard(self, answer: Any) -> dict[int, Any]:
        """Return the partitions with records of an answer, which must be there."""
        response = result_of(answer) if isinstance(answer, Deferred) else answer
        assert response.error_code == 0
        self.session_id = response.session_id
        return {data.partition_index: data for topic in response.responses for data in topic.partitions if data.records}


def _then_append_to(parts: Parts, committed: Deferred[Any], index: int) -> None:
    """Append to another partition, as soon as something is committed: as a coordinator does that writes a marker."""
    committed.addCallback(lambda _: parts.append("t", b"marker", partition=index))


@pytest.mark.parametrize("session", [True, False])
def test_a_followers_fetch_sees_what_its_own_progress_leads_to(parts: Parts, *, session: bool) -> None:
    """The fetch that confirms the decision of a transaction is answered with the marker."""
    follower = _Fetcher(parts, 3, FOLLOWER, session=session)
    partition = parts.partitions.by_name["t", 0]
    parts.replicas.append(partition, batch(b"decision", now_ms=parts.now_ms()), True)
    _then_append_to(parts, parts.replicas.wait_for_replicas([PendingAppend(partition, 1, None)], 5000), 2)
    assert list(follower.fetch(follower.every)) == [0]
    confirming = [(0, 1)] if session else [(0, 1), *follower.every[1:]]
    assert list(follower.heard(follower.ask(confirming, wait_ms=500))) == [2]


def test_a_followers_fetch_still_waits_if_nothing_comes_of_its_progress(parts: Parts) -> None:
    follower = _Fetcher(parts, 3, FOLLOWER, session=True)
    parts.replicas.append(parts.partitions.by_name["t", 0], batch(b"v", now_ms=parts.now_ms()), True)
    assert list(follower.fetch()) == [0]
    waiting = follower.ask([(0, 1)], wait_ms=500)
    assert not waiting.called
    parts.append("t", b"w", partition=1)
    assert list(follower.heard(waiting)) == [1]


@pytest.mark.parametrize("session", [True, False])
def test_a_fetch_of_many_partitions_sees_what_comes_while_it_looks(parts: Parts, *, session: bool) -> None:
    """It looks at some partitions in each turn of the reactor; records come to those that it has seen."""
    with patch.object(fetching, "MANY_PARTITIONS", 2):
        consumer = _Fetcher(parts, 6, -1, session=False)
        if session:
            consumer.epoch = 0
            parts.time.advance(0)
            first = consumer.ask(consumer.every)
            _turns(parts)
            consumer.heard(first)
        waiting = consumer.ask(consumer.every, wait_ms=500)
        assert isinstance(waiting, Deferred)
        assert not waiting.called
        parts.append("t", b"v", partition=0)
        _turns(parts)
        assert list(consumer.heard(waiting)) == [0]


def _turns(parts: Parts) -> None:
    for _ in range(10):
        parts.time.advance(0)


def _broken(now_ms: int) -> bytes:
    """Return a batch that is so large that a thread looks into it, and finds out that it lacks a record."""
    made = bytearray(encode_batch([(None, b"v" * 2_000_000, now_ms, ())]))
    made[57:61], made[23:27] = (2).to_bytes(4, "big"), (1).to_bytes(4, "big")  # count, delta of the last offset
    made[17:21] = crc32c(made[21:]).to_bytes(4, "big")
    return bytes(made)


def test_a_produce_request_ends_though_its_batch_was_committed_before_another_one_is_refused(parts: Parts) -> None:
    parts.create("t", partitions=2, max_message_bytes=10 * _MIB)
    for index in range(2):
        parts.set_state("t", index, replicas=(LEADER, FOLLOWER), isr=(LEADER, FOLLOWER))
    parts.threads.hold = True
    data = [
        PartitionProduceData(0, batch(b"sound", now_ms=parts.now_ms())),
        PartitionProduceData(1, _broken(parts.now_ms())),
    ]
    answer = parts.ask(ProduceRequest(None, -1, 30_000, [TopicProduceData("t", partition_data=data)]), 11)
    assert not answer.called
    partition = parts.partitions.by_name["t", 0]
    assert partition.follower_fetched(FOLLOWER, 1, 0, parts.time.seconds())
    parts.replicas.became_visible(partition)
    assert partition.high_watermark == 1
    parts.threads.hold = False
    parts.threads.release()
    (topic,) = result_of(answer).responses
    assert [one.error_code for one in topic.partition_responses] == [ErrorCode.NONE, ErrorCode.INVALID_RECORD]


def test_a_lower_minimum_isr_ends_waits(parts: Parts) -> None:
    """Enough replicas are in sync by another setting: consumers and producers need not wait for the next append."""
    parts.settings.set_dynamic({"min.insync.replicas": "2"}, {})
    topic = parts.create("t")
    partition = parts.set_state("t", replicas=(LEADER, FOLLOWER), isr=(LEADER, FOLLOWER))
    parts.replicas.append(partition, batch(b"v", now_ms=parts.now_ms()), True)
    parts.set_state("t", isr=(LEADER,))
    assert partition.high_watermark == 0
    wanted = [FetchTopic(topic_id=topic.topic_id, partitions=[FetchPartition(0, partition_max_bytes=_MIB)])]
    waiting = parts.ask(FetchRequest(max_wait_ms=500, min_bytes=1, topics=wanted), VERSION)
    assert not waiting.called
    parts.settings.set_dynamic({"min.insync.replicas": "1"}, {})
    assert partition.high_watermark == 1
    assert result_of(waiting).responses[0].partitions[0].records


@pytest.mark.skipif(compiled.fast is None, reason="there was no compiler")
@pytest.mark.parametrize("session", [True, False])
def test_a_repeated_fetch_that_ends_as_it_begins_is_answered(parts: Parts, *, session: bool) -> None:
    """A wait may be over before the pipeline has taken it: it then has the reply when it does."""
    topic = parts.create("t")
    connection: Any = parts.connection
    session_id, epoch = 0, -1
    wanted = [FetchTopic(topic_id=topic.topic_id, partitions=[FetchPartition(0, partition_max_bytes=_MIB)])]
    if session:
        first = parts.call(FetchRequest(session_epoch=0, topics=wanted), VERSION)
        session_id, epoch = first.session_id, 2
        parts.call(FetchRequest(session_id=session_id, session_epoch=1), VERSION)
    request = FetchRequest(max_wait_ms=500, min_bytes=1, session_id=session_id, session_epoch=epoch, topics=wanted)
    frame = b"".join(map(bytes, ClientSession(_MIB, "test").encode_request(request, VERSION)))  # type: ignore[arg-type]
    with BetweenLookAndWait(parts, lambda: parts.append("t", b"v")):
        wait: Any = answer_repeated(parts, connection, frame, after_wait=answer_after_wait)
    replies: list[Any] = []
    wait.then(lambda reply, what: replies.append((reply, what)), "slot")
    ((reply, what),) = replies
    assert what == "slot"
    assert b"v" in reply[1].read()
    assert not len(parts.fetch_waits)


class BetweenLookAndWait:
    """Have something happen when a wait is about to begin."""

    def __init__(self, parts: Parts, happens: Callable[[], object]) -> None:
        self._purgatory: Any = type(parts.fetch_waits)
        self._happens = happens

    def __enter__(self) -> None:
        enter, happens = self._purgatory.enter, self._happens

        def late(purgatory: Any, *args: Any) -> None:
            happens()
            enter(purgatory, *args)

        self._patch = patch.object(self._purgatory, "enter", late)
        self._patch.start()

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
