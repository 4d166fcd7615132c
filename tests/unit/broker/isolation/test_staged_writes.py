"""Appends behind write queues: order, what goes together, refusals, and disks that hang or fail."""

from __future__ import annotations

import errno
import gc
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.isolation.write_queue import PAUSE
from pylogd.broker.log.errors import LogClosed, StorageError, StorageFailure
from pylogd.broker.replica.errors import FencedLeaderEpoch, NotEnoughReplicas, PartitionOffline, QueueFull
from pylogd.broker.replica.partition import Partition
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from pylogd.wire.schema import response_codec
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts, batch, records_in
from tests.fakes.workers import HeldWorkers
from tests.property.test_request_batches import CLIENTS, Side


class Outcomes:
    """What became of appends, in the order in which they were answered."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Any]] = []

    def take(self, name: str, done: Deferred[Any]) -> None:
        done.addCallbacks(
            lambda result: self.all.append((name, result.base_offset)),
            lambda failure: self.all.append((name, failure.type)),
        )


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


def writer_of(parts: Parts, partition: Partition) -> HeldWorkers:
    assert parts.disks is not None
    workers = parts.disks.at(partition.log.directory).queue_of(partition.topic).writer
    assert isinstance(workers, HeldWorkers)
    return workers


def held(parts: Parts, name: str = "t") -> tuple[Partition, HeldWorkers]:
    """Make a topic whose writes wait until they are released."""
    parts.create(name)
    partition = parts.partitions.by_name[name, 0]
    workers = writer_of(parts, partition)
    workers.hold = True
    return partition, workers


def append(parts: Parts, partition: Partition, value: bytes = b"v", **fields: Any) -> Deferred[Any]:
    return parts.replicas.append_in_turn(partition, batch(value, **fields), False)


def values(partition: Partition) -> list[bytes | None]:
    found = partition.read(0, 1 << 20, min_one=True, allow_cold=True)
    return [] if found is None else [record.value for record in records_in(found)]


def test_appends_that_wait_are_written_together_and_in_order(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    writes: list[str] = []
    for name in (b"first", b"second", b"third"):
        outcomes.take(name.decode(), append(parts, partition, name))
    assert len(workers) == 1
    assert partition.high_watermark == 0
    assert values(partition) == []
    parts.fs.calls.clear()
    workers.release()
    writes = [call for call in parts.fs.calls if call.startswith("pwritev")]
    assert len(writes) == 2, "the first one, and the two that came meanwhile"
    assert outcomes.all == [("first", 0), ("second", 1), ("third", 2)]
    assert values(partition) == [b"first", b"second", b"third"]
    assert partition.high_watermark == 3


def test_a_full_queue_refuses_at_once(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    for number in range(4):
        outcomes.take(str(number), append(parts, partition))
    assert outcomes.all == [("3", QueueFull)]
    request = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData("t", bytes(16), [PartitionProduceData(0, batch())])]
    )
    answer = parts.call(request, 9).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "wait for the disk" in answer.error_message
    workers.release()
    assert [name for name, _ in outcomes.all] == ["3", "0", "1", "2"]
    outcomes.take("again", append(parts, partition))
    workers.release()
    assert outcomes.all[-1] == ("again", 3)


@pytest.mark.parametrize("fast", [True, False])
def test_refusals_leave_no_garbage_and_mute_who_comes_too_often(
    tmp_path: Path, request: pytest.FixtureRequest, fast: bool
) -> None:
    """Else a collection, which takes milliseconds, is due every few hundred refusals."""
    side = Side(tmp_path / "side", fast=fast, log_write_queues="always", log_write_queue_max_requests=1)
    request.addfinalizer(side.parts.close)
    writer = writer_of(side.parts, side.parts.partitions.by_name["usual", 0])
    writer.hold = True
    request.addfinalizer(writer.release)
    (frame,) = side.frames([(("usual", 0, 9, 1, None, CLIENTS[0]), [20])])
    side.connect()[1].deliver(frame)
    _, transport = side.connect()
    answers = []
    for number in range(101):
        transport.deliver(frame)
        answers.append(transport.pump())
        if not number:
            gc.collect()
    assert gc.collect() == 0
    decoded = [response_codec(0, 9).decode(memoryview(answer)[9:]) for answer in (answers[0], answers[100])]
    assert [one.responses[0].partition_responses[0].error_code for one in decoded] == [
        ErrorCode.NOT_ENOUGH_REPLICAS
    ] * 2
    assert [one.throttle_time_ms for one in decoded] == [0, 20]
    transport.deliver(frame)
    assert not transport.pump(), "it is muted"
    side.parts.time.advance(PAUSE)
    assert transport.pump()


def test_commits_do_not_wait_behind_data(parts: Parts, outcomes: Outcomes) -> None:
    """Also where the topic of the offsets is on the same disk, whose queues for data are all full."""
    parts.create("__consumer_offsets", cleanup_policy="compact")
    offsets = parts.partitions.by_name["__consumer_offsets", 0]
    assert parts.disks is not None
    disk = parts.disks.at(offsets.log.directory)
    writers = [queue.writer for queue in disk.queues if isinstance(queue.writer, HeldWorkers)]
    for writer in writers:
        writer.hold = True
    for number in range(20):
        parts.create(f"t{number}")
        for _ in range(4):
            append(parts, parts.partitions.by_name[f"t{number}", 0]).addErrback(lambda _: None)
    full = [queue.refused > 0 for queue in disk.queues]
    commit = encode_batch([(b"k", b"v", NOW_MS, ())])
    outcomes.take("commit", parts.replicas.append_in_turn(offsets, commit, True, own=True))
    for writer in writers:
        writer.hold = False
        writer.release()
    assert all(full)
    assert outcomes.all == [("commit", 0)]


@pytest.mark.parametrize("full", [True, False])
def test_who_asks_the_wrong_broker_is_told_so_whatever_the_disk_does(parts: Parts, full: bool) -> None:
    """Else clients would not look for the new leader while the disk of the old one hangs."""
    partition, workers = held(parts)
    for _ in range(3 if full else 1):
        append(parts, partition).addErrback(lambda _: None)
    parts.set_state("t", leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    topic = TopicProduceData("t", bytes(16), [PartitionProduceData(0, batch())])
    answer = parts.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    workers.release()


def test_a_disk_that_hangs_leaves_topics_on_another_one_alone(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    parts.create("u")
    other = parts.partitions.by_name["u", 0]
    assert other.log.directory.split("/")[1] != partition.log.directory.split("/")[1]
    outcomes.take("t", append(parts, partition))
    outcomes.take("u", append(parts, other))
    assert outcomes.all == [("u", 0)]
    workers.release()


def test_batches_behind_a_refused_one_are_refused_until_it_comes_again(parts: Parts, outcomes: Outcomes) -> None:
    """Else those of a producer that is not known yet would be taken for its first ones."""
    partition, workers = held(parts)
    for _ in range(3):
        append(parts, partition)

    def send(sequence: int) -> None:
        fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        outcomes.take(str(sequence), append(parts, partition, b"%d" % sequence, **fields))

    send(0)
    workers.release()
    send(1)
    assert outcomes.all == [("0", QueueFull), ("1", QueueFull)]
    send(0)
    send(1)
    workers.release()
    assert outcomes.all[2:] == [("0", 3), ("1", 4)]


def test_a_refused_batch_is_forgotten_after_its_time(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    for _ in range(3):
        append(parts, partition)
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    outcomes.take("0", append(parts, partition, base_sequence=0, **fields))
    workers.release()
    parts.time.advance(31)
    outcomes.take("5", append(parts, partition, base_sequence=5, **fields))
    workers.release()
    assert outcomes.all == [("0", QueueFull), ("5", 3)]


def test_only_what_does_not_depend_on_others_goes_together(parts: Parts, outcomes: Outcomes) -> None:
    """A duplicate of a batch that is being written is judged when that is committed."""
    partition, workers = held(parts)
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    outcomes.take("first", append(parts, partition, base_sequence=0, **fields))
    outcomes.take("same", append(parts, partition, base_sequence=0, **fields))
    outcomes.take("next", append(parts, partition, base_sequence=1, **fields))
    workers.release()
    assert outcomes.all == [("first", 0), ("same", 0), ("next", 1)]


def test_a_bad_append_fails_alone(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    good = batch(b"x")
    outcomes.take("first", append(parts, partition))
    outcomes.take("bad", parts.replicas.append_in_turn(partition, good[:-1] + b"?", False))
    outcomes.take("last", append(parts, partition))
    workers.release()
    assert [name for name, _ in outcomes.all] == ["first", "bad", "last"]
    assert outcomes.all[2] == ("last", 1)


def test_a_full_disk_fails_the_write_and_not_the_next(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    outcomes.take("first", append(parts, partition))
    with parts.fs.failing("pwritev", errno.ENOSPC):
        workers.release()
    assert outcomes.all == [("first", StorageFailure)]
    outcomes.take("second", append(parts, partition, b"second"))
    workers.release()
    assert outcomes.all[1:] == [("second", 0)]
    assert values(partition) == [b"second"]


def test_a_roll_makes_its_file_in_the_thread(parts: Parts, outcomes: Outcomes) -> None:
    parts.create("t", internal_segment_bytes=200)
    partition = parts.partitions.by_name["t", 0]
    workers = writer_of(parts, partition)
    append(parts, partition, bytes(100))
    workers.hold = True
    parts.fs.calls.clear()
    outcomes.take("roll", append(parts, partition, bytes(100)))
    assert not [call for call in parts.fs.calls if call.startswith("open")]
    assert len(partition.log.segments) == 1
    workers.release()
    assert outcomes.all == [("roll", 1)]
    assert len(partition.log.segments) == 2
    assert values(partition)[-1] == bytes(100)


def test_a_directory_that_fails_answers_what_waits(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    log = partition.log
    for name in ("hanging", "waiting"):
        outcomes.take(name, append(parts, partition))
    workers.begin()
    parts.logs.storage_failed(StorageFailure(log.directory, OSError(errno.ETIMEDOUT, "hangs")))
    assert outcomes.all[0] == ("hanging", StorageFailure)
    assert issubclass(outcomes.all[1][1], (StorageError, PartitionOffline))
    assert parts.disks is not None
    assert sum(parts.disks.stuck.values()) == 1
    outcomes.take("later", append(parts, partition))
    assert outcomes.all[2] == ("later", PartitionOffline)
    assert log.log_end_offset == 0


def test_a_directory_is_reopened_once_no_call_is_stuck_in_it(parts: Parts, outcomes: Outcomes) -> None:
    """Else what hangs would write into files that are in use again."""
    partition, workers = held(parts)
    directory = partition.log.directory.rpartition("/")[0]
    outcomes.take("hanging", append(parts, partition))
    call = next(iter(workers._unanswered))
    workers.begin()
    parts.logs.storage_failed(StorageFailure(directory, OSError(errno.ETIMEDOUT, "hangs")))
    failures: list[Any] = []
    parts.hosting.reopen(directory).addErrback(failures.append)
    assert "1 calls to it have not returned yet: its disk still hangs" in str(failures[0].value)
    workers._returned(call, None)
    result_of(parts.hosting.reopen(directory))
    again = parts.partitions.by_name["t", 0]
    assert writer_of(parts, again) is not workers
    outcomes.take("again", append(parts, again))
    assert outcomes.all == [("hanging", StorageFailure), ("again", 0)]


def test_a_deleted_topic_fails_what_is_being_written(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    outcomes.take("first", append(parts, partition))
    partition.log.abandon()
    workers.release()
    assert outcomes.all == [("first", LogClosed)]


def test_a_write_of_a_lost_leadership_is_committed_before_what_the_new_leader_sends(
    parts: Parts, outcomes: Outcomes
) -> None:
    partition, workers = held(parts)
    outcomes.take("first", append(parts, partition))
    outcomes.take("second", append(parts, partition))
    parts.set_state("t", leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    fetched = parts.replicas.append_fetched(partition, batch(b"theirs", base_offset=1, leader_epoch=1), 0, 0)
    assert fetched is not None
    fetched.addErrback(lambda failure: outcomes.all.append(("fetched", failure.type)))
    workers.release()
    assert outcomes.all[0] == ("first", 0)
    assert outcomes.all[1][0] == "second"
    assert outcomes.all[1][1] is not None
    assert partition.log.log_end_offset == 2
    assert partition.high_watermark == 0


def test_what_was_fetched_in_another_epoch_is_refused(parts: Parts) -> None:
    partition, workers = held(parts)
    parts.set_state("t", leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    failures: list[Any] = []
    for _ in range(2):
        done = parts.replicas.append_fetched(partition, batch(b"theirs", leader_epoch=1), 0, 0)
        assert done is not None
        done.addErrback(failures.append)
    parts.set_state("t", leader=2, leader_epoch=2, replicas=(1, 2), isr=(1, 2))
    workers.release()
    assert [failure.type for failure in failures] == [FencedLeaderEpoch]
    assert partition.log.log_end_offset == 1


def test_truncation_waits_for_a_write(parts: Parts) -> None:
    partition, workers = held(parts)
    append(parts, partition)
    assert not partition.log.writing.acquire(blocking=False)
    workers.release()
    assert partition.log.writing.acquire(blocking=False)
    waiting: list[Any] = []
    append(parts, partition).addCallback(waiting.append)
    assert len(workers) == 1, "the thread waits for whoever has the log"
    partition.log.writing.release()
    workers.release()
    assert waiting[0].base_offset == 1


def test_acks_all_is_refused_where_too_few_are_in_sync(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    outcomes.take("first", append(parts, partition))
    outcomes.take("all", parts.replicas.append_in_turn(partition, batch(), True))
    partition.enough_in_sync = False
    outcomes.take("one", append(parts, partition))
    workers.release()
    assert outcomes.all == [("first", 0), ("all", NotEnoughReplicas), ("one", 1)]


def test_a_refused_copy_of_a_batch_does_not_hold_up_its_producer(parts: Parts, outcomes: Outcomes) -> None:
    partition, workers = held(parts)
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    outcomes.take("first", append(parts, partition, base_sequence=0, **fields))
    for _ in range(2):
        append(parts, partition)
    outcomes.take("copy", append(parts, partition, base_sequence=0, **fields))
    outcomes.take("early", append(parts, partition, base_sequence=1, **fields))
    workers.release()
    outcomes.take("next", append(parts, partition, base_sequence=1, **fields))
    workers.release()
    assert outcomes.all == [("copy", QueueFull), ("early", QueueFull), ("first", 0), ("next", 3)]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
def test_both_paths_refuse_alike(tmp_path: Path, request: pytest.FixtureRequest, version: int, acks: int) -> None:
    """A full queue, and a batch behind one that was refused; also where followers have to be waited for."""
    answers = []
    for fast in (True, False):
        side = Side(tmp_path / str(fast), fast=fast, log_write_queues="always", log_write_queue_max_requests=1)
        request.addfinalizer(side.parts.close)
        got = b""
        for name in ("usual", "waits"):
            writer = writer_of(side.parts, side.parts.partitions.by_name[name, 0])
            writer.hold = True
            request.addfinalizer(writer.release)
            shape = (name, 0, version, acks, None, CLIENTS[0])
            side.connect()[1].deliver(side.frames([(shape, [20])])[0])
            _, transport = side.connect()
            transport.deliver(b"".join(side.frames([(shape, [20, 200, (7, 0), (7, 1)])])))
            got += transport.pump()
            writer.release()
            transport.deliver(b"".join(side.frames([(shape, [(7, 1)])])))
            got += transport.pump()
        answers.append(got)
    assert answers[0] == answers[1]
    assert answers[0].count(b"not appended: ") == (6 if version >= 8 else 0)
    assert answers[0].count(b"an earlier batch of the same producer") == (4 if version >= 8 else 0)
