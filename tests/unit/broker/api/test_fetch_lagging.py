"""Fetch while a disk is busy: who waits for it, for how long, and who doesn't."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.api import fetch_lagging
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.api.fetch_lagging import fetch_sparing_disks, is_behind, most_held
from pylogd.broker.isolation.disk_meter import Disk, DiskUsage
from pylogd.broker.isolation.laggards import DiskThrottle
from pylogd.broker.isolation.read_rate import Band
from pylogd.broker.log.errors import ColdRead
from pylogd.broker.log.files import FileSlice
from pylogd.broker.replica.partition import Partition
from pylogd.config import Settings
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pylogd.wire.session import RequestReceived
from tests.fakes.metadata import result_of
from tests.fakes.parts import FakeConnection, Parts, batch, decoded

SIZE = len(batch(b"v"))
MIB = 1 << 20


class Lab(Parts):
    """A broker whose disk is busy. cold: the names of topics whose records are not in the page cache."""

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__(directory, lagging_consumer_lag_bytes=2 * SIZE, **settings)
        self.cold = {"cold"}
        self.throttle = DiskThrottle(Disk("sda", "/stat"), "/data", self.clock, self.laggards.clients)
        self.throttle.rate.limit = 4.0 * MIB
        self.laggards._by_directory = {"/data": self.throttle}
        self.time.advance(1)
        for name in ("cold", "hot"):
            self.create(name)
            for _ in range(10):
                self.append(name, b"v")

    def exhaust(self, seconds: float = 0.5) -> None:
        """Have the disk's turns be used up for so long."""
        self.throttle._fill()
        self.throttle.charge(None, int((seconds + 0.25) * 4 * MIB), 1)

    def fetch(self, *wanted: tuple[str, int], connection: Any = None, **fields: Any) -> Any:
        topics = [FetchTopic(name, bytes(16), [FetchPartition(0, -1, offset, -1, -1, MIB)]) for name, offset in wanted]
        chosen = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 50 * MIB, **fields}
        context = RequestContext(self, connection or self.connection, 12, "test")
        return fetch_sparing_disks(context, FetchRequest(topics=topics, **chosen))


def sizes(response: Any) -> dict[str, int]:
    """How many batches the response has of each topic."""
    assert isinstance(response, FetchResponse)
    assert response.error_code == 0
    assert response.throttle_time_ms == 0
    return {topic.topic: len(topic.partitions[0].records or b"") // SIZE for topic in response.responses}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path)
    monkeypatch.setattr(FileSlice, "missing", lambda records, *_: SIZE * 2 if _is_cold(made, records) else 0)
    yield made
    made.throttle.end()
    made.close()


def _is_cold(lab: Lab, records: Any) -> bool:
    return any(f"/{name}-" in records.file.path for name in lab.cold)


def test_a_consumer_that_keeps_up_never_waits(lab: Lab) -> None:
    lab.exhaust()
    assert sizes(lab.fetch(("cold", 9))) == {"cold": 1}


def test_a_consumer_whose_records_are_in_memory_never_waits(lab: Lab) -> None:
    lab.exhaust()
    assert sizes(lab.fetch(("hot", 0))) == {"hot": 10}


def test_a_read_from_a_disk_with_turns_left_is_counted(lab: Lab) -> None:
    assert sizes(lab.fetch(("cold", 0))) == {"cold": 10}
    assert lab.throttle._tokens == lab.throttle.most - 10 * SIZE


def test_a_part_is_read_when_it_is_its_turn(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskThrottle, "most", 3 * SIZE + 1)
    assert sizes(lab.fetch(("cold", 0))) == {"cold": 3}


def test_one_whose_records_are_read_ahead_waits_too(lab: Lab) -> None:
    assert sizes(lab.fetch(("cold", 0), max_bytes=SIZE)) == {"cold": 1}
    lab.cold.clear()
    lab.exhaust()
    answer = lab.fetch(("cold", 1))
    assert isinstance(answer, Deferred)
    assert sizes(lab.fetch(("cold", 1), connection=FakeConnection())) == {"cold": 9}  # one that was not read for
    lab.time.advance(0.6)
    assert sizes(result_of(answer)) == {"cold": 9}


def test_a_consumer_that_lags_waits_for_its_turn(lab: Lab) -> None:
    lab.exhaust(0.3)
    answer = lab.fetch(("cold", 0))
    assert isinstance(answer, Deferred)
    lab.time.advance(0.2)
    assert not answer.called
    lab.time.advance(0.2)
    assert sizes(result_of(answer)) == {"cold": 10}
    assert [one.client.client_id for one in lab.laggards.waits()] == ["test"]
    assert lab.laggards.clients.seconds == pytest.approx(0.4)


@pytest.mark.parametrize(("max_wait_ms", "held"), [(0, 0.1), (50, 0.1), (500, 0.5), (30_000, 1.0)])
def test_a_fetch_is_held_for_a_bounded_time(lab: Lab, max_wait_ms: int, held: float) -> None:
    lab.exhaust(10)
    answer = lab.fetch(("cold", 0), max_wait_ms=max_wait_ms)
    lab.time.advance(held - 0.01)
    assert not answer.called
    lab.time.advance(0.02)
    response = result_of(answer)
    assert sizes(response) == {"cold": 0}
    assert response.responses[0].partitions[0].high_watermark == 10


def test_it_is_held_far_less_than_the_shortest_session() -> None:
    assert most_held(Settings({"node.id": 1})) == 1.0
    assert most_held(Settings({"node.id": 1, "group.min.session.timeout.ms": 600})) == pytest.approx(0.1)


def test_one_that_asks_again_keeps_its_place(lab: Lab) -> None:
    lab.exhaust(0.75)
    first, other = lab.fetch(("cold", 0)), FakeConnection()
    lab.time.advance(0.5)
    assert sizes(result_of(first)) == {"cold": 0}
    second = lab.fetch(("cold", 0), connection=other)
    again = lab.fetch(("cold", 0))
    lab.time.advance(0.3)
    assert sizes(result_of(again)) == {"cold": 10}
    assert sizes(result_of(second)) == {"cold": 10}
    assert lab.laggards.clients.waits == 2


def test_partitions_that_keep_up_are_answered_at_once(lab: Lab) -> None:
    lab.exhaust()
    assert sizes(lab.fetch(("cold", 0), ("hot", 9))) == {"cold": 0, "hot": 1}


def test_records_of_another_partition_end_the_wait(lab: Lab) -> None:
    lab.exhaust(10)
    answer = lab.fetch(("cold", 0), ("hot", 10))
    lab.time.advance(0.1)
    lab.append("cold", b"v")
    assert not answer.called  # news of what is held
    lab.append("hot", b"v")
    assert sizes(result_of(answer)) == {"cold": 0, "hot": 1}


def test_a_lost_leadership_ends_the_wait(lab: Lab) -> None:
    lab.exhaust(10)
    answer = lab.fetch(("cold", 0))
    lab.set_state("cold", leader=2, leader_epoch=5, replicas=(1, 2), isr=(2,))
    (topic,) = result_of(answer).responses
    assert topic.partitions[0].error_code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_session_advances_in_what_is_held_too(lab: Lab) -> None:
    lab.exhaust(0.2)
    opened = lab.fetch(("cold", 0), ("hot", 9), session_epoch=0)
    assert sizes(opened) == {"cold": 0, "hot": 1}
    goes_on = FetchRequest(
        topics=[FetchTopic("hot", bytes(16), [FetchPartition(0, -1, 10, -1, -1, MIB)])], max_wait_ms=500, min_bytes=1,
        max_bytes=MIB, session_id=opened.session_id, session_epoch=1,
    )  # fmt: skip
    answer: Any = fetch_sparing_disks(RequestContext(lab, lab.connection, 12, "test"), goes_on)
    assert not answer.called
    lab.time.advance(0.3)
    assert sizes(result_of(answer)) == {"cold": 10}


def test_a_session_is_told_of_records_while_another_partition_is_held(lab: Lab) -> None:
    lab.exhaust(10)
    opened = lab.fetch(("cold", 0), ("hot", 9), session_epoch=0)
    goes_on = FetchRequest(
        topics=[FetchTopic("hot", bytes(16), [FetchPartition(0, -1, 10, -1, -1, MIB)])], max_wait_ms=500, min_bytes=1,
        max_bytes=MIB, session_id=opened.session_id, session_epoch=1,
    )  # fmt: skip
    answer: Any = fetch_sparing_disks(RequestContext(lab, lab.connection, 12, "test"), goes_on)
    lab.append("hot", b"v")
    assert sizes(result_of(answer)) == {"hot": 1}


def test_a_follower_is_never_held(lab: Lab) -> None:
    partition = lab.set_state("cold", replicas=(1, 2), isr=(1, 2))
    lab.exhaust(10)
    topics = [FetchTopic("cold", bytes(16), [FetchPartition(0, partition.leader_epoch, 0, -1, -1, MIB)])]
    request = FetchRequest(replica_id=2, topics=topics, max_wait_ms=500, min_bytes=1, max_bytes=MIB)
    assert sizes(fetch_sparing_disks(RequestContext(lab, lab.connection, 12), request)) == {"cold": 10}


def test_an_index_that_is_not_in_memory_is_a_miss(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bool] = []
    read = Partition.read

    def cold(self: Partition, *args: Any, allow_cold: bool, **kwargs: Any) -> Any:
        reads.append(allow_cold)
        if not allow_cold:
            raise ColdRead("index")
        return read(self, *args, allow_cold=allow_cold, **kwargs)

    monkeypatch.setattr(Partition, "read", cold)
    lab.exhaust(0.2)
    answer = lab.fetch(("hot", 0))
    assert not answer.called
    assert True not in reads  # the disk has its rest
    lab.time.advance(0.3)
    assert sizes(result_of(answer)) == {"hot": 10}


def test_a_client_that_leaves_leaves_nothing_behind(lab: Lab) -> None:
    lab.exhaust(0.3)
    answer = lab.fetch(("cold", 0))
    answer.addErrback(lambda failure: failure.trap(CancelledError))
    answer.cancel()
    assert not len(lab.fetch_waits)
    lab.time.advance(6)
    lab.throttle.observe(DiskUsage(0.6, 0.0, 0.0, 0.0, 0, 0.0, None, None), Band(0.55, 0.75), 1024)
    assert len(lab.throttle) == 0


def test_a_fetch_of_very_many_partitions(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_lagging, "MANY_PARTITIONS", 1)
    lab.exhaust(0.2)
    answer = lab.fetch(("cold", 0), ("hot", 10))
    assert isinstance(answer, Deferred)
    lab.time.advance(0)
    lab.time.advance(0.3)
    assert sizes(result_of(answer)) == {"cold": 10, "hot": 0}


def test_a_request_that_is_refused(lab: Lab) -> None:
    assert lab.fetch(session_id=77, session_epoch=3).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_dispatcher_uses_it_only_while_a_disk_is_busy(lab: Lab) -> None:
    dispatcher, connection = Dispatcher(lab), FakeConnection()
    connection.context = None  # type: ignore[attr-defined]
    lab.exhaust(10)

    def fetch() -> Any:
        topics = [FetchTopic("cold", bytes(16), [FetchPartition(0, -1, 0, -1, -1, MIB)])]
        request = FetchRequest(topics=topics, max_wait_ms=0, min_bytes=1, max_bytes=MIB)
        answer = dispatcher.handle(connection, RequestReceived(1, 12, 1, "test", request))  # type: ignore[arg-type]
        if isinstance(answer, Deferred):
            lab.time.advance(0.2)
            answer = result_of(answer)
        return sizes(decoded(answer, 1, 12))

    assert fetch() == {"cold": 10}
    lab.laggards._apply({"/data": lab.throttle})
    assert fetch() == {"cold": 0}
    lab.laggards._apply({})
    assert fetch() == {"cold": 10}


def test_how_far_behind_is_told_by_the_sizes_of_segments(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.create("t", internal_segment_bytes=10 * SIZE)
    for _ in range(35):
        parts.append("t", b"v")
    log = parts.partitions.by_name["t", 0].log
    assert len(log.segments) == 4
    for behind in (0, 1, 4, 5, 6, 14, 15, 24, 25, 34, 35):
        for most in (1, 5, 15, 35, 36):
            assert is_behind(log, 35 - behind, most * SIZE) == (behind >= most), (behind, most)
    assert is_behind(log, 35, 0)
    parts.close()
