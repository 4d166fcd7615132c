"""Who reads next from a busy disk, and how long the others have waited."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from pylogd.broker.isolation.disk_meter import Disk, DiskMeter, DiskSampler, DiskUsage
from pylogd.broker.isolation.laggards import (
    AHEAD_SECONDS,
    BUSY_SECONDS,
    BUSY_SHARE,
    KEPT_SECONDS,
    LEAST_READ,
    READ_AHEAD,
    DiskThrottle,
    LaggardThrottle,
)
from pylogd.broker.isolation.read_rate import Band
from pylogd.broker.isolation.throttled_clients import MOST_CLIENTS, Client, ThrottledClients
from pylogd.config import Settings

KIB, MIB = 1 << 10, 1 << 20
BAND = Band(0.55, 0.75)
DISK = Disk("sda", "/stat")


def usage(utilisation: float, read_rate: float = 8.0 * MIB) -> DiskUsage:
    return DiskUsage(utilisation, read_rate, 0.0, 1.0, 0, 10.0, None, None)


def client(name: str) -> Client:
    return Client(name, "ANONYMOUS", "10.0.0.1")


class Reader:
    """A connection that reads `size` bytes whenever it may, and waits otherwise."""

    def __init__(self, throttle: DiskThrottle, name: str, size: int = MIB) -> None:
        self.throttle = throttle
        self.client = client(name)
        self.size = size
        self.reads = 0
        self.goes_on = True

    def read(self) -> bool:
        if not self.throttle.take(self, self.client, "t-0"):
            self.throttle.wait(self, self.read)
            return False
        self.throttle.charge(None, self.size, 1)
        self.reads += 1
        if self.goes_on:
            self.throttle._clock.callLater(0, self.read)
        return True


class Lab:
    """A throttled disk on a clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.clients = ThrottledClients()
        self.throttle = DiskThrottle(DISK, "/data", self.clock, self.clients)
        for _ in range(3):
            self.throttle.observe(usage(1.0), BAND, MIB)
        assert self.throttle.rate.limit is not None

    def run(self, seconds: float, step: float = 0.01) -> None:
        self.clock.pump([step] * round(seconds / step))

    def limit(self, rate: float) -> None:
        """Have the rate stay at so many bytes a second."""
        self.throttle.rate.limit = rate


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_readers_take_turns_at_the_rate(lab: Lab) -> None:
    lab.limit(4 * MIB)
    readers = [Reader(lab.throttle, f"r{number}") for number in range(3)]
    for reader in readers:
        reader.read()
    lab.run(30)
    reads = [reader.reads for reader in readers]
    assert max(reads) - min(reads) <= 1
    assert 30 * 4 * 0.9 <= sum(reads) <= 30 * 4 + 2


def test_a_reader_that_is_seldom_there_keeps_its_place(lab: Lab) -> None:
    """It waits for 0.3 s of each second, and is answered without records then; the others always wait."""
    lab.limit(4 * MIB)
    for number in range(7):
        Reader(lab.throttle, f"r{number}").read()
    seldom = Reader(lab.throttle, "seldom")
    seldom.goes_on = False
    for _ in range(60):
        before = seldom.reads
        if not seldom.read():
            lab.run(0.3)
            if seldom.reads == before:
                lab.throttle.wait(seldom, lambda: None)  # its fetch has been answered: nobody is there to be woken
        lab.run(0.7)
    assert seldom.reads >= 60 * 4 / 8 * 0.5


def test_a_place_of_one_that_left_is_not_kept_for_long(lab: Lab) -> None:
    lab.limit(MIB)
    lab.throttle.charge(None, 10 * MIB, 1)
    assert not lab.throttle.take("gone", client("gone"), "t-0")
    assert len(lab.throttle) == 1
    lab.clock.advance(KEPT_SECONDS)
    lab.throttle.observe(usage(0.65), BAND, MIB)
    assert len(lab.throttle) == 0


def test_a_wait_is_counted_for_its_client(lab: Lab) -> None:
    lab.limit(MIB)
    lab.throttle.charge(None, 2 * MIB, 1)
    reader = Reader(lab.throttle, "late")
    reader.goes_on = False
    assert not reader.read()
    lab.run(3)
    assert reader.reads == 1
    (found,) = lab.clients.list(lab.clock.seconds())
    assert found.client == client("late")
    assert found.recent_seconds == pytest.approx(2.0, abs=0.05)
    assert (found.partition, found.directory, found.disk) == ("t-0", "/data", "sda")


def test_a_wait_counts_while_it_lasts(lab: Lab) -> None:
    lab.limit(MIB)
    lab.throttle.charge(None, 100 * MIB, 1)
    Reader(lab.throttle, "late").read()
    lab.clock.advance(7)
    lab.throttle.observe(usage(0.65), BAND, MIB)
    assert lab.clients.seconds == pytest.approx(7.0)


def test_one_read_takes_a_bounded_part_of_a_second(lab: Lab) -> None:
    lab.limit(100 * MIB)
    assert lab.throttle.most == 25 * MIB
    lab.limit(MIB // 8)
    assert lab.throttle.most == LEAST_READ


def test_an_idle_bucket_does_not_save_up(lab: Lab) -> None:
    lab.limit(4 * MIB)
    lab.clock.advance(1000)
    reader = Reader(lab.throttle, "r")
    reader.read()
    lab.run(1)
    assert reader.reads <= 6


def test_what_follows_a_miss_was_read_ahead(lab: Lab) -> None:
    """The kernel reads ahead for one who reads on: only the first of several reads finds its bytes missing."""
    stream = "connection", ("t", 0)
    assert not lab.throttle.reads_on(stream)
    lab.throttle.charge(stream, MIB, 4096)
    for _ in range(READ_AHEAD // MIB):
        assert lab.throttle.reads_on(stream)
        lab.throttle.charge(stream, MIB, 0)
    assert not lab.throttle.reads_on(stream)
    assert not lab.throttle.reads_on(("connection", ("t", 1)))


def test_what_was_read_ahead_is_forgotten_with_time(lab: Lab) -> None:
    lab.throttle.charge("stream", MIB, 4096)
    lab.clock.advance(AHEAD_SECONDS)
    lab.throttle.observe(usage(0.65), BAND, MIB)
    assert not lab.throttle.reads_on("stream")


def test_the_end_wakes_whoever_waits(lab: Lab) -> None:
    lab.throttle.charge(None, 1000 * MIB, 1)
    woken: list[str] = []
    lab.throttle.take("a", client("a"), "t-0")
    lab.throttle.wait("a", lambda: woken.append("a"))
    lab.throttle.end()
    assert woken == ["a"]
    assert lab.clock.getDelayedCalls() == []


def test_who_waits_after_the_end_is_woken_at_once(lab: Lab) -> None:
    """A request of many partitions lets others run between the answer that it has to wait and its wait."""
    reader, woken = Reader(lab.throttle, "a"), []
    lab.limit(1.0)
    while reader.throttle.take(reader, reader.client, "t-0"):
        lab.throttle.charge(None, MIB, 1)
    lab.throttle.end()
    lab.throttle.wait(reader, lambda: woken.append(True))
    assert woken == [True]


class TestClients:
    def test_only_the_last_minute_is_recent(self) -> None:
        clients = ThrottledClients()
        clients.add(client("a"), 4.0, 0.0, "t-0", "/data", "sda")
        clients.add(client("a"), 2.0, 30.0, "t-1", "/data", "sda")
        clients.add(client("b"), 9.0, 40.0, "t-0", "/data", "sda")
        assert [(one.client.client_id, one.recent_seconds) for one in clients.list(59.0)] == [("b", 9.0), ("a", 6.0)]
        assert [(one.client.client_id, one.recent_seconds) for one in clients.list(61.0)] == [("b", 9.0), ("a", 2.0)]
        assert clients.list(61.0)[1].total_seconds == 6.0
        assert clients.list(200.0) == []
        assert clients.seconds == 15.0

    def test_they_are_bounded_in_number_and_size(self) -> None:
        clients = ThrottledClients()
        for number in range(MOST_CLIENTS + 10):
            clients.add(client(f"{number}-" * 1000), 1.0, 0.0, "t-0", "/data", "sda")
        assert len(clients) == MOST_CLIENTS
        assert clients.waits == MOST_CLIENTS + 10
        assert all(len(one.client.client_id) <= 255 for one in clients.list(0.0))


class Broker:
    """A throttle of two directories on one disk and one whose disk is unknown; a test says how busy the disk is."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.settings = Settings({"node.id": 1, "lagging.consumer.throttle.enable": True, **settings})
        self.busy_ms = 0
        self.sampler = DiskSampler(DiskMeter(self.read), list, self.clock, self.find)
        self.throttle = LaggardThrottle(self.settings, self.sampler, self.clock)
        self.told: list[bool] = []
        self.throttle.subscribe(self.told.append)
        self.throttle.start()

    def find(self, *_: Any) -> Deferred[Any]:
        return succeed({"/data1": DISK, "/data2": DISK, "/memory": None})

    def read(self, path: str) -> str:
        if path != DISK.stat_path:
            raise FileNotFoundError(path)
        sectors = self.busy_ms * 100
        return f"{self.busy_ms} 0 {sectors} {self.busy_ms} 0 0 0 0 0 {self.busy_ms} {self.busy_ms}"

    def run(self, seconds: int, utilisation: float) -> None:
        for _ in range(seconds):
            self.busy_ms += round(1000 * utilisation)
            self.clock.advance(1.0)


def test_a_busy_disk_is_throttled_with_all_its_directories() -> None:
    broker = Broker()
    broker.run(5, 0.5)
    assert (broker.throttle.active, broker.told) == (False, [])
    broker.run(5, 1.0)
    assert broker.told == [True]
    throttle = broker.throttle.of("/data1")
    assert throttle is not None
    assert broker.throttle.of("/data2") is throttle
    assert broker.throttle.of("/memory") is None
    assert broker.throttle.utilisation("/data2") == 1.0
    broker.run(30, 0.1)
    assert broker.told == [True, False]
    assert broker.throttle.of("/data1") is None
    broker.throttle.stop()
    assert broker.clock.getDelayedCalls() == []


def test_who_follows_is_told_each_second_of_busy_disks_throttled_or_not() -> None:
    broker = Broker()
    told: list[list[str]] = []
    broker.throttle.on_sample = told.append
    broker.run(3, 0.1)
    assert told == [[]] * 3
    broker.run(1, BUSY_SHARE + 0.01)
    assert (told[-1], broker.throttle.active) == (["/data1", "/data2"], False)
    broker.run(BUSY_SECONDS - 1, 0.0)
    assert told[-1] == ["/data1", "/data2"]
    broker.run(1, 0.0)
    assert told[-1] == []
    broker.run(5, 1.0)
    assert broker.throttle.active
    broker.throttle.stop()
    assert told[-1] == [], "nothing is to be done any more"


def test_it_is_off_by_default_and_can_be_switched_at_run_time() -> None:
    broker = Broker(**{"lagging.consumer.throttle.enable": False})
    assert broker.clock.getDelayedCalls() == []
    broker.settings.set_dynamic({"lagging.consumer.throttle.enable": "true"}, {})
    broker.run(5, 1.0)
    assert broker.told == [True]
    broker.settings.set_dynamic({}, {})
    assert broker.told == [True, False]
    assert broker.clock.getDelayedCalls() == []
    broker.throttle.stop()


def test_who_waits_is_woken_when_the_disk_is_free_again() -> None:
    broker = Broker()
    broker.run(5, 1.0)
    throttle = broker.throttle.of("/data1")
    assert throttle is not None
    throttle.charge(None, 1 << 50, 1)
    woken: list[bool] = []
    assert not throttle.take("a", client("a"), "t-0")
    throttle.wait("a", lambda: woken.append(broker.throttle.active))
    broker.settings.set_dynamic({"lagging.consumer.throttle.enable": "false"}, {})
    assert woken == [False]
    broker.throttle.stop()


def test_a_disk_that_vanishes_is_throttled_no_more() -> None:
    broker = Broker()
    broker.run(5, 1.0)
    assert broker.throttle.active
    broker.read = broker.sampler.meter._read = lambda path: "gone"  # type: ignore[method-assign]
    broker.clock.advance(1.0)
    assert not broker.throttle.active
    broker.throttle.stop()
