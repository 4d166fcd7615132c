"""What the kernel's counters say about disks: texts to numbers, devices of directories, and samples on a clock."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.broker.isolation.disk_meter import (
    IO_PRESSURE,
    Disk,
    DiskMeter,
    DiskSampler,
    PressureCounters,
    device_number,
    disk_of,
    find_disk,
    find_disks,
    mount_source,
    parse_block_stat,
    parse_pressure,
    pressure_between,
    usage_between,
)

#: As Linux 6 writes it: with discards and flushes behind the eleven fields that are older.
STAT = " 1000  20 8000 4000  500  30 6000 2500  3  9000  12000  7 0 56 1  9 8\n"
PRESSURE = "some avg10=2.50 avg60=3.40 avg300=3.65 total=2000000\nfull avg10=1.00 avg60=2.04 avg300=1.99 total=500000\n"
MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 0:45 /@data /data rw,relatime shared:2 master:1 - btrfs /dev/sdb1 rw,space_cache
29 27 0:46 / /run rw - tmpfs tmpfs rw
"""


def stat(**changes: int) -> str:
    """Return a stat file with some counters increased."""
    fields = dict(zip(parse_block_stat(STAT)._fields, parse_block_stat(STAT), strict=True))
    for name, change in changes.items():
        fields[name] += change
    got = fields
    return (
        f"{got['reads']} 0 {got['read_sectors']} {got['read_ms']} {got['writes']} 0 {got['written_sectors']} "
        f"{got['write_ms']} {got['in_flight']} {got['busy_ms']} {got['weighted_ms']}"
    )


def test_a_stat_file_has_the_counters_that_matter() -> None:
    assert parse_block_stat(STAT) == (1000, 8000, 4000, 500, 6000, 2500, 3, 9000, 12000)


@pytest.mark.parametrize("text", ["", "1 2 3", "one 2 3 4 5 6 7 8 9 10 11"])
def test_another_text_is_no_stat_file(text: str) -> None:
    with pytest.raises(ValueError, match=r"not the stat file|invalid literal"):
        parse_block_stat(text)


def test_pressure_is_read_as_shares_and_microseconds() -> None:
    assert parse_pressure(PRESSURE) == PressureCounters(0.025, 0.01, 2_000_000, 500_000)
    with pytest.raises(ValueError, match="not a pressure file"):
        parse_pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")


def test_use_is_what_was_counted_between_two_samples() -> None:
    after = stat(
        reads=10, read_sectors=4096, read_ms=50, writes=4, written_sectors=2048, write_ms=80, busy_ms=1500,
        weighted_ms=3000,
    )  # fmt: skip
    usage = usage_between(parse_block_stat(STAT), parse_block_stat(after), 2.0)
    assert usage is not None
    assert usage.utilisation == 0.75
    assert (usage.read_rate, usage.write_rate) == (1024 * 1024, 512 * 1024)
    assert (usage.queue, usage.in_flight, usage.completed) == (1.5, 3, 7.0)
    assert (usage.read_latency, usage.write_latency) == (0.005, 0.02)
    assert not usage.stalled


def test_a_disk_that_completes_nothing_is_stalled() -> None:
    usage = usage_between(parse_block_stat(STAT), parse_block_stat(stat(busy_ms=1001, weighted_ms=3000)), 1.0)
    assert usage is not None
    assert usage.utilisation == 1.0  # the kernel's clock and ours differ by a millisecond
    assert usage.read_latency is usage.write_latency is None
    assert usage.stalled


def test_an_idle_disk_is_not_stalled() -> None:
    idle = parse_block_stat(STAT)._replace(in_flight=0)
    usage = usage_between(idle, idle, 1.0)
    assert usage is not None
    assert usage.utilisation == 0.0
    assert not usage.stalled


def test_counters_that_went_back_say_nothing() -> None:
    before, after = parse_block_stat(STAT), parse_block_stat(stat(reads=10, busy_ms=10))
    assert usage_between(after, before, 1.0) is None
    assert usage_between(before, after, 0.0) is None
    assert pressure_between(PressureCounters(0, 0, 5, 5), PressureCounters(0, 0, 4, 5), 1.0) is None


def test_pressure_between_two_samples() -> None:
    before, after = PressureCounters(0.0, 0.0, 1_000_000, 0), PressureCounters(0.3, 0.1, 1_600_000, 200_000)
    assert pressure_between(before, after, 2.0) == pytest.approx((0.3, 0.1, 0.3, 0.1))


def test_a_partition_counts_as_its_disk(tmp_path: Path) -> None:
    disk = tmp_path / "devices" / "sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "stat").write_text(STAT)
    (disk / "sda1" / "stat").write_text(STAT)
    (disk / "sda1" / "partition").write_text("1\n")
    numbers = tmp_path / "block"
    numbers.mkdir()
    (numbers / "8:0").symlink_to(disk)
    (numbers / "8:1").symlink_to(disk / "sda1")
    assert disk_of("8:0", str(numbers)) == disk_of("8:1", str(numbers)) == Disk("sda", str(disk / "stat"))
    assert disk_of("0:21", str(numbers)) is None


def test_a_file_system_with_a_number_of_its_own_is_found_by_its_mount() -> None:
    assert mount_source(MOUNTINFO, "0:45") == "/dev/sdb1"
    assert mount_source(MOUNTINFO, "0:46") is None
    assert mount_source(MOUNTINFO, "8:1") is None


def test_a_directory_is_looked_up_by_the_device_of_its_file_system(tmp_path: Path) -> None:
    numbers, mountinfo = tmp_path / "block", tmp_path / "mountinfo"
    device = numbers / device_number(os.stat(tmp_path).st_dev)
    device.mkdir(parents=True)
    mountinfo.write_text(MOUNTINFO)
    assert find_disk(str(tmp_path), str(numbers), str(mountinfo)) is None
    (device / "stat").write_text(STAT)
    found = find_disk(str(tmp_path), str(numbers), str(mountinfo))
    assert found is not None
    assert found.stat_path == str(device / "stat")


def test_a_directory_that_is_missing_has_no_known_disk(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert find_disks([missing]) == {missing: None}


class Kernel:
    """The kernel's files, as a test sets them."""

    def __init__(self) -> None:
        self.texts = {"/stat": STAT, IO_PRESSURE: PRESSURE}
        self.reads = 0

    def read(self, path: str) -> str:
        self.reads += 1
        try:
            return self.texts[path]
        except KeyError:
            raise FileNotFoundError(path) from None


def test_a_meter_knows_the_use_from_the_second_sample_on() -> None:
    kernel = Kernel()
    disk = Disk("sda", "/stat")
    meter = DiskMeter(kernel.read)
    meter.watch({"/data1": disk, "/data2": disk, "/tmpfs": None})
    meter.sample(100.0)
    assert meter.usage("/data1") is None
    assert meter.pressure is None
    kernel.texts["/stat"] = stat(busy_ms=970)
    kernel.texts[IO_PRESSURE] = PRESSURE.replace("total=2000000", "total=2400000")
    meter.sample(101.0)
    first = meter.usage("/data1")
    assert first is not None
    assert first.utilisation == 0.97
    assert meter.usage("/data2") == first
    assert meter.usage("/tmpfs") is meter.usage("/elsewhere") is None
    assert kernel.reads == 6  # a disk of two directories is looked at once
    assert meter.pressure is not None
    assert meter.pressure.some == pytest.approx(0.4)


def test_a_device_that_is_removed_and_comes_back_is_compared_with_itself_only() -> None:
    kernel = Kernel()
    meter = DiskMeter(kernel.read)
    meter.watch({"/data": Disk("sda", "/stat")})
    meter.sample(1.0)
    del kernel.texts["/stat"], kernel.texts[IO_PRESSURE]
    meter.sample(2.0)
    assert meter.usage("/data") is None
    assert meter.pressure is None
    kernel.texts["/stat"] = stat(busy_ms=500)
    meter.sample(3.0)
    assert meter.usage("/data") is None
    kernel.texts["/stat"] = stat(busy_ms=1000)
    meter.sample(4.0)
    usage = meter.usage("/data")
    assert usage is not None
    assert usage.utilisation == 0.5


class Broker:
    """What a sampler needs of a broker: a clock, and threads whose work is done when the test says so."""

    def __init__(self, disks: dict[str, Disk | None]) -> None:
        self.kernel, self.clock = Kernel(), Clock()
        self.disks = disks
        self.lookups: list[Deferred[dict[str, Disk | None]]] = []
        self.meter = DiskMeter(self.kernel.read)
        self.sampler = DiskSampler(self.meter, lambda: ["/data"], self.clock, self.in_thread)
        self.told: list[str] = []

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        assert (function, args) == (find_disks, (["/data"],))
        self.lookups.append(Deferred())
        return self.lookups[-1]

    def subscribe(self, name: str) -> Callable[[], None]:
        return self.sampler.subscribe(lambda meter: self.told.append(name))


@pytest.fixture
def broker() -> Broker:
    return Broker({"/data": Disk("sda", "/stat")})


def test_samples_are_taken_while_anybody_wants_them(broker: Broker) -> None:
    assert broker.lookups == []
    end_first, end_second = broker.subscribe("first"), broker.subscribe("second")
    assert broker.told == []
    (lookup,) = broker.lookups
    lookup.callback(broker.disks)
    assert broker.told == ["first", "second"]
    end_first()
    broker.clock.advance(1.0)
    assert broker.told[2:] == ["second"]
    assert broker.meter.usage("/data") is not None
    end_second()
    assert broker.clock.getDelayedCalls() == []
    end_third = broker.subscribe("third")
    assert broker.told[3:] == ["third"]
    assert len(broker.lookups) == 1  # disks are looked up once
    end_third()


def test_a_lookup_that_ends_when_nobody_wants_samples_any_more(broker: Broker) -> None:
    broker.subscribe("gone")()
    broker.lookups[0].callback(broker.disks)
    assert broker.told == []
    assert broker.clock.getDelayedCalls() == []
    broker.subscribe("later")
    assert broker.told == ["later"]


def test_a_lookup_that_fails_is_made_again_for_the_next_who_asks(broker: Broker) -> None:
    broker.subscribe("first")
    broker.lookups[0].errback(RuntimeError("no threads"))
    broker.subscribe("second")
    broker.lookups[1].callback(broker.disks)
    assert broker.told == ["first", "second"]


def test_a_listener_that_fails_keeps_nobody_else_from_being_told(broker: Broker) -> None:
    def fails(_meter: DiskMeter) -> None:
        raise RuntimeError("a defect")

    broker.sampler.subscribe(fails)
    broker.subscribe("second")
    broker.lookups[0].callback(broker.disks)
    assert broker.told == ["second"]
