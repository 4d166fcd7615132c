"""When a disk counts as slow, and when as quick again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.isolation.disk_meter import DirtyPages, Disk, DiskMeter, DiskUsage, Pressure, parse_dirty
from pylogd.broker.isolation.pace import LEAST_CALM, MOST_CALM, DiskPace, Pace
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch
from tests.fakes.workers import HeldWorkers, set_pace

IDLE = DiskUsage(0.1, 0.0, 0.0, 0.0, 0, 10.0, None, 0.001)
PRESSED = Pressure(0.9, 0.5, 0.9, 0.5)


class Watched:
    """The pace of a disk on a clock of its own, which goes on by a second with each look."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pace = DiskPace("/a", self.now)

    def look(
        self, count: int = 1, usage: DiskUsage | None = IDLE, under_way: float = 0.0, pressure: Pressure | None = None,
        dirty: DirtyPages | None = None,
    ) -> Pace:  # fmt: skip
        for _ in range(count):
            self.now += 1
            self.pace.observe(self.now, under_way, usage, pressure, dirty)
        return self.pace.pace


@pytest.fixture
def disk() -> Watched:
    return Watched()


def test_a_long_write_makes_a_disk_slow_at_once(disk: Watched) -> None:
    disk.pace.wrote(0.019, disk.now)
    disk.pace.wrote(0.049, disk.now)
    assert not disk.pace.slow
    disk.pace.wrote(0.02, disk.now)  # 69 ms within one second
    assert disk.pace.slow
    assert disk.pace.switches == 1


def test_short_waits_add_up_within_a_second_only(disk: Watched) -> None:
    for _ in range(5):
        disk.pace.wrote(0.04, disk.now)
        disk.look()
    assert not disk.pace.slow


@pytest.mark.parametrize(
    "signs",
    [
        {"under_way": 0.06},
        {"dirty": DirtyPages(900, 500, 1500)},
        {"usage": IDLE._replace(in_flight=3, completed=0.0)},
        {"usage": IDLE._replace(utilisation=0.99, write_latency=0.2), "pressure": PRESSED},
    ],
)
def test_signs_of_trouble_make_a_disk_slow(disk: Watched, signs: dict[str, Any]) -> None:
    assert disk.look(**signs) is Pace.SLOW


@pytest.mark.parametrize(
    "signs",
    [
        {"usage": IDLE._replace(utilisation=0.99, write_latency=0.2)},  # nobody waits for it
        {"usage": IDLE._replace(utilisation=0.99, write_latency=0.01), "pressure": PRESSED},  # it is quick
        {"usage": IDLE._replace(utilisation=0.5, write_latency=0.2), "pressure": PRESSED},
        {"usage": IDLE._replace(utilisation=0.99, write_latency=None, read_latency=0.5), "pressure": PRESSED},
        {"usage": None, "pressure": PRESSED},
        {"dirty": DirtyPages(890, 500, 1500)},
        {"under_way": 0.04},
    ],
)
def test_a_quick_disk_may_be_busy(disk: Watched, signs: dict[str, Any]) -> None:
    assert disk.look(**signs) is Pace.QUICK


@pytest.mark.parametrize(
    "signs",
    [
        {"under_way": 0.03},
        {"under_way": 90.0},
        {"dirty": DirtyPages(700, 500, 1500)},
        {"usage": IDLE._replace(utilisation=0.9, write_latency=0.06)},
        {"usage": IDLE._replace(in_flight=1, completed=0.0)},
    ],
)
def test_a_slow_disk_stays_so_until_nothing_speaks_against_it(disk: Watched, signs: dict[str, Any]) -> None:
    disk.pace.suspect("a test says so", disk.now)
    assert disk.look(500, **signs) is Pace.SLOW
    assert disk.look(5) is Pace.CALMING
    assert disk.look(1, **signs) is Pace.SLOW, "the bounds of the way back are lower"
    assert disk.look(1 + round(LEAST_CALM)) is Pace.QUICK


def test_it_has_to_be_calm_without_interruption(disk: Watched) -> None:
    disk.pace.suspect("a test says so", disk.now)
    for _ in range(10):
        assert disk.look(round(LEAST_CALM)) is Pace.CALMING
        disk.pace.wrote(0.03, disk.now)
        assert disk.look() is Pace.SLOW
    assert disk.pace.slow
    assert disk.look(1 + round(LEAST_CALM)) is Pace.QUICK
    assert disk.pace.switches == 2


def test_who_is_slow_again_soon_has_to_be_calm_for_longer(disk: Watched) -> None:
    needed = LEAST_CALM
    for _ in range(8):
        disk.pace.suspect("a test says so", disk.now)
        assert disk.look(round(needed)) is Pace.CALMING
        assert disk.look() is Pace.QUICK
        needed = min(needed * 2, MOST_CALM)
    disk.look(1000)
    disk.pace.suspect("a test says so", disk.now)
    assert disk.look(1 + round(LEAST_CALM)) is Pace.QUICK, "that was long ago"


def test_dirty_pages_are_compared_with_where_the_kernel_stops_writers() -> None:
    text = "nr_free_pages 5\nnr_dirty 20\nnr_writeback 3\nnr_dirty_threshold 300\nnr_dirty_background_threshold 100\n"
    pages = parse_dirty(text)
    assert (pages.bound, pages.share) == (200, 0.1)
    with pytest.raises(ValueError, match="no counts of dirty pages"):
        parse_dirty("nr_dirty 20\n")


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, log_dirs="/a,/b", log_write_queues="slow", log_write_queue_max_requests=2)
    yield made
    made.close()


def test_only_appends_to_slow_disks_are_written_in_threads(paced: Parts) -> None:
    assert paced.disks is not None
    paced.create("t", partitions=2)
    first, second = (paced.partitions.by_name["t", index] for index in range(2))
    assert first.log.directory.split("/")[1] != second.log.directory.split("/")[1]
    writers = [paced.disks.at(one.log.directory).queue_of("t").writer for one in (first, second)]
    for writer in writers:
        assert isinstance(writer, HeldWorkers)
        writer.hold = True
    assert first not in paced.replicas.append_queues
    paced.replicas.append(first, batch(b"one"), False)
    paced.disks.wrote(first.log.directory, 0.5)
    assert first in paced.replicas.append_queues
    assert second not in paced.replicas.append_queues
    results: list[int] = []
    for _ in range(2):
        paced.replicas.append_in_turn(first, batch(b"two"), False).addCallback(
            lambda got: results.append(got.base_offset)
        )
    paced.replicas.append_in_turn(second, batch(b"two"), False).addCallback(lambda got: results.append(got.base_offset))
    assert results == [0], "the other disk's is written at once"
    set_pace(paced.disks, slow=False)
    assert first in paced.replicas.append_queues, "its appends have not been written yet"
    writers[0].release()  # type: ignore[attr-defined]
    assert results == [0, 1, 2]
    assert first not in paced.replicas.append_queues
    assert paced.replicas.append(first, batch(b"three"), False).base_offset == 3


def test_a_partition_stays_in_its_queue_while_a_refused_batch_is_missing(paced: Parts) -> None:
    """Else what was sent behind it would be written before it."""
    assert paced.disks is not None
    paced.create("t")
    partition = paced.partitions.by_name["t", 0]
    writer = paced.disks.at(partition.log.directory).queue_of("t").writer
    assert isinstance(writer, HeldWorkers)
    writer.hold = True
    set_pace(paced.disks, slow=True)
    for _ in range(2):
        paced.replicas.append_in_turn(partition, batch(b"v"), False)
    refused: list[Any] = []
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    for sequence in (0, 1):
        done = paced.replicas.append_in_turn(partition, batch(b"v", base_sequence=sequence, **fields), False)
        done.addErrback(refused.append)
    writer.release()
    set_pace(paced.disks, slow=False)
    paced.replicas.append_in_turn(partition, batch(b"v", base_sequence=2, **fields), False).addErrback(refused.append)
    assert len(refused) == 3
    assert partition in paced.replicas.append_queues
    paced.replicas.append_in_turn(partition, batch(b"v", base_sequence=0, **fields), False)
    writer.release()
    assert partition.log.log_end_offset == 3
    assert partition not in paced.replicas.append_queues


def test_a_directory_that_is_opened_again_begins_as_a_slow_one(paced: Parts) -> None:
    assert paced.disks is not None
    paced.disks.failed("/a", OSError("offline"))
    paced.disks.reopened("/a")
    assert [disk.queued for disk in paced.disks] == [True, False]
    assert paced.disks.any_queued


def test_a_broker_writes_as_long_as_one_of_its_disks_does(paced: Parts) -> None:
    """A write that hangs says nothing of the other disk, nor does one to a disk that was given up."""
    assert paced.disks is not None
    first, second = paced.disks
    for disk in (first, second):
        writer = disk.queues[0].writer
        assert isinstance(writer, HeldWorkers)
        writer.hold = True
        writer.run(lambda: None).addErrback(lambda _: None)
        writer.begin()
        assert not paced.disks.stand_still(1.0)
        paced.time.advance(0.5)
    paced.time.advance(0.4)
    assert not paced.disks.stand_still(1.0), "the second disk's is not so old"
    paced.time.advance(0.1)
    assert paced.disks.stand_still(1.0)
    second.queues[0].writer.release()  # type: ignore[attr-defined]
    assert not paced.disks.stand_still(1.0)
    paced.disks.failed(second.path, OSError("offline"))
    assert paced.disks.stand_still(1.0), "the other one is the only disk in use now"
    first.queues[0].writer.release()  # type: ignore[attr-defined]
    assert not paced.disks.stand_still(1.0)


def test_a_broker_is_still_if_a_write_hangs_and_every_call_to_its_other_disk(paced: Parts) -> None:
    """The other disk may get no appends for a while; but a call to it alone, such as a long flush, says nothing."""
    disks = paced.disks
    assert disks is not None
    first, second = disks
    for workers in (second.threads, first.queues[0].writer):
        assert isinstance(workers, HeldWorkers)
        workers.hold = True
        workers.run(lambda: None)
        workers.begin()
        paced.time.advance(0.9)
        assert not disks.stand_still(1.0)
    paced.time.advance(0.1)
    assert disks.stand_still(1.0)
    second.threads.release()  # type: ignore[attr-defined]
    assert not disks.stand_still(1.0)


def test_a_broker_is_still_if_one_disk_hangs_for_certain(paced: Parts) -> None:
    """Its device completes nothing, and a write does not return: only slow disks complete something now and then."""
    disks = paced.disks
    assert disks is not None
    first, _ = disks
    disks.start()
    readings = Readings()
    meter = DiskMeter(readings)
    meter.watch({first.path: Disk("sda", "stat")})

    def sample(writes: int) -> bool:
        readings.writes += writes
        paced.time.advance(1.0)
        meter.sample(paced.time.seconds())
        disks.observe(meter)
        return disks.stand_still(1.0)

    assert not any(sample(0) for _ in range(5)), "nothing is to be written"
    writer = first.queues[0].writer
    assert isinstance(writer, HeldWorkers)
    writer.hold = True
    writer.run(lambda: None)
    writer.begin()
    assert not any(sample(1) for _ in range(5)), "a slow disk"
    assert [sample(0) for _ in range(3)] == [False, True, True]
    assert not sample(1)
    assert [sample(0) for _ in range(2)] == [False, True]
    writer.release()
    assert not sample(0)
    disks.stop()


class Readings:
    """The kernel's files: the device has completed so many writes."""

    def __init__(self) -> None:
        self.writes = 0

    def __call__(self, path: str) -> str:
        if path != "stat":
            raise OSError(path)
        return f"0 0 0 0 {self.writes} 0 {self.writes * 8} 0 0 0 0"


class TakenSince:
    """A lock that another thread takes right after somebody has found it free."""

    def __init__(self) -> None:
        self.looks = 0

    def locked(self) -> bool:
        self.looks += 1
        return self.looks > 1

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        assert not blocking or timeout >= 0, "the reactor would wait for ever"
        return False

    def release(self) -> None:
        raise AssertionError("nobody has it")


@pytest.mark.parametrize("how", ["client", "fetched"])
def test_an_append_that_finds_the_log_taken_waits_its_turn(paced: Parts, how: str) -> None:
    """It can't wait for the lock: what is written in a thread is ended by the reactor."""
    name = "t"
    paced.create(name)
    partition = paced.partitions.by_name[name, 0]
    if how == "fetched":
        paced.set_state(name, leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))
    free = partition.log.writing
    partition.log._writing = TakenSince()  # type: ignore[assignment]
    assert paced.disks is not None
    disk = paced.disks.at(partition.log.directory)
    writers = [one for one in disk._workers() if isinstance(one, HeldWorkers)]
    for writer in writers:
        writer.hold = True
    if how == "client":
        topic = TopicProduceData(name, bytes(16), [PartitionProduceData(0, batch())])
        answer = paced.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
    else:
        answer = paced.replicas.append_fetched(partition, batch(leader_epoch=1), 0, 0)
    assert isinstance(answer, Deferred)
    assert not answer.called
    partition.log._writing = free
    for writer in writers:
        writer.hold = False
        writer.release()
    result_of(answer)
    assert partition.log.log_end_offset == 1
