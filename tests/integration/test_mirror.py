"""`pylogd mirror` between real brokers: what is copied, how, and what becomes of it when processes are killed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pylogd.client import Admin, Consumer, Producer
from pylogd.local.broker import BrokerProcess, free_ports, pylogd_command
from pylogd.wire.records import NewRecord
from tests.integration.conftest import StartBroker
from tests.mirrors import MirrorProcess, committed, stored_records, until, write_file
from tests.zookeeper import ZooKeeper

ROUTE = {"source": "a", "target": "b", "topics": ["events.*"]}


@pytest.fixture
def ends(start_broker: StartBroker) -> dict[str, BrokerProcess]:
    """Two clusters of one broker each, `a` and `b`."""
    return {name: start_broker(name) for name in "ab"}


@pytest.fixture
def running() -> Iterator[list[MirrorProcess]]:
    """Processes to be killed at the end of the test."""
    found: list[MirrorProcess] = []
    yield found
    for process in found:
        process.kill()


class Mirror:
    """A mirror of a test: its file, its processes, and its command line."""

    def __init__(
        self, folder: Path, ends: dict[str, BrokerProcess], running: list[MirrorProcess], store: str = "", **route: Any
    ) -> None:
        self.folder, self.ends, self.running = folder, ends, running
        self.store = store or f'metadata.store = "{folder / "store"}"'
        self.file = self.write([{**ROUTE, **route}])

    def write(self, routes: list[dict[str, Any]], more: str = "") -> Path:
        addresses = {name: broker.address for name, broker in self.ends.items()}
        return write_file(self.folder / "mirror.toml", addresses, routes, self.store, more)

    def start(self, *arguments: str) -> MirrorProcess:
        process = MirrorProcess(self.file, self.folder / f"mirror-{len(self.running)}.log", *arguments)
        self.running.append(process)
        process.wait()
        return process

    def log(self) -> str:
        return "\n".join(process.log() for process in self.running)

    def command(self, *arguments: str) -> Any:
        done = subprocess.run(
            [*pylogd_command(), "mirror", arguments[0], str(self.file), *arguments[1:], "--json"],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def wait_until_equal(self, topic: str, name: str = "") -> dict[int, list[bytes]]:
        """Wait until the copy has as many records as the source; return both, which must be the same."""
        source = committed(self.ends["a"].address, topic)
        count = sum(map(len, source.values()))
        copy = until(lambda: _enough(self.ends["b"].address, name or topic, count), f"{count} copies", self.log)
        assert copy == source
        return copy


def _enough(bootstrap: str, topic: str, count: int) -> dict[int, list[bytes]] | None:
    found = committed(bootstrap, topic)
    return found if sum(map(len, found.values())) >= count else None


def fill(bootstrap: str, topic: str, count: int, start: int = 0, **options: Any) -> None:
    with Producer(bootstrap, **options) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, key=b"k%d" % (number % 7), partition=number % 3)


def create(bootstrap: str, topic: str, **configs: str) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, 3, 1, configs)


def test_batches_arrive_as_they_are_with_topics_settings_and_aborted_ones_left_out(
    ends: dict[str, BrokerProcess], running: list[MirrorProcess], tmp_path: Path
) -> None:
    source, target = ends["a"].address, ends["b"].address
    create(source, "events", **{"retention.ms": "777777777"})
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        fill(source, "events", 300, compression=codec)
    with Producer(source, transactional_id="t") as producer:
        with producer.transaction():
            producer.send("events", b"committed", partition=0)
        producer.begin_transaction()
        producer.send("events", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    mirror = Mirror(tmp_path, ends, running, rename="from-{source}.{topic}")
    mirror.start()
    copy = mirror.wait_until_equal("events", "from-a.events")
    assert b"committed" in copy[0] and b"aborted" not in copy[0]
    before = stored_records(ends["a"].data, "events")
    after = stored_records(ends["b"].data, "from-a.events")
    assert len(after) == len(before) - 1 and set(after) < set(before)
    with Admin(target) as admin:
        settings = {entry.name: entry.value for entry in admin.describe_configs("topic", "from-a.events")}
    assert settings["retention.ms"] == "777777777"
    lags = until(lambda: _all_copied(mirror), "that the lag is 0", mirror.log)
    assert [(lag["topic"], lag["partition"], lag["target"]) for lag in lags] == [
        ("events", index, "from-a.events") for index in range(3)
    ]
    assert running[0].stop() == 0


def _all_copied(mirror: Mirror) -> Any:
    lags = mirror.command("describe")
    return lags if lags and all(lag["lag"] == 0 for lag in lags) else None


def test_topics_are_followed_and_groups_move_over(
    ends: dict[str, BrokerProcess], running: list[MirrorProcess], tmp_path: Path
) -> None:
    source, target = ends["a"].address, ends["b"].address
    create(source, "events")
    fill(source, "events", 30)
    mirror = Mirror(tmp_path, ends, running)
    mirror.start()
    mirror.wait_until_equal("events")
    fill(source, "events", 60, 30)
    create(source, "events-2")
    fill(source, "events-2", 9)
    with Admin(source) as admin:
        admin.create_partitions("events", 4)
    with Producer(source) as producer:
        producer.send("events", b"in the new partition", partition=3)
    mirror.wait_until_equal("events")
    mirror.wait_until_equal("events-2")
    with Consumer(source, group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe("events")
        seen: list[bytes] = []
        while len(seen) < 40:
            seen += [record.value or b"" for record in consumer.poll(1.0, 40 - len(seen))]
    moved = until(lambda: mirror.command("translate", "billing", "--execute"), "that the group is moved", mirror.log)
    assert all(not row["note"] for row in moved)
    with Consumer(target, group_id="billing", auto_offset_reset="none") as consumer:
        consumer.subscribe("events")
        rest: list[bytes] = []
        while len(rest) < 91 - 40:
            rest += [record.value or b"" for record in consumer.poll(1.0)]
    everything = [value for values in committed(source, "events").values() for value in values]
    assert sorted(seen + rest) == sorted(everything)


def test_a_way_back_is_refused(ends: dict[str, BrokerProcess], running: list[MirrorProcess], tmp_path: Path) -> None:
    create(ends["a"].address, "events")
    create(ends["b"].address, "events-of-b")
    fill(ends["a"].address, "events", 30)
    fill(ends["b"].address, "events-of-b", 30)
    mirror = Mirror(tmp_path, ends, running)
    mirror.write([ROUTE, {**ROUTE, "source": "b", "target": "a"}])
    mirror.start()
    mirror.wait_until_equal("events")
    until(lambda: _enough(ends["a"].address, "events-of-b", 30), "the other direction", mirror.log)
    until(lambda: "round for ever" in mirror.log(), "that the loop is refused", mirror.log)
    fill(ends["a"].address, "events", 30, 30)
    mirror.wait_until_equal("events")
    assert sum(map(len, committed(ends["a"].address, "events").values())) == 60


def test_a_recreated_topic_is_copied_behind_the_former(
    ends: dict[str, BrokerProcess], running: list[MirrorProcess], tmp_path: Path
) -> None:
    source = ends["a"].address
    create(source, "events")
    fill(source, "events", 30)
    mirror = Mirror(tmp_path, ends, running)
    mirror.start()
    mirror.wait_until_equal("events")
    with Admin(source) as admin:
        admin.delete_topic("events")
        admin.create_topic("events", 3)
    fill(source, "events", 60, 1000)
    found = until(lambda: _enough(ends["b"].address, "events", 90), "both topics' records", mirror.log)
    assert found == {
        index: [b"%d" % n for n in (*range(index, 30, 3), *range(1000, 1060)) if n < 30 or (n - index) % 3 == 0]
        for index in range(3)
    }


def test_workers_share_the_partitions_and_kills_lose_and_repeat_nothing(
    ends: dict[str, BrokerProcess], running: list[MirrorProcess], tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    source = ends["a"].address
    create(source, "events")
    store = f'zookeeper.connect = "{zookeeper.connect}"\nzookeeper.session.timeout.ms = 3000'
    mirror = Mirror(tmp_path, ends, running, store)
    processes = [mirror.start() for _ in range(3)]
    sent = 0
    with Producer(source, linger_ms=1) as producer:

        def produce(seconds: float) -> None:
            nonlocal sent
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for _ in range(20):
                    producer.send("events", b"%d" % sent, partition=sent % 3)
                    sent += 1
                time.sleep(0.01)

        produce(1.0)
        until(lambda: _enough(ends["b"].address, "events", 1), "the first records", mirror.log)
        processes[0].kill()  # it was first, so it is the controller
        produce(2.0)
        processes.append(mirror.start())
        processes[1].kill()
        produce(2.0)
    copy = mirror.wait_until_equal("events")
    assert sorted(int(value) for values in copy.values() for value in values) == list(range(sent))
    assert [process.stop() for process in processes[2:]] == [0, 0]


def test_a_target_that_comes_back_goes_on_without_loss_or_repetition(
    start_broker: StartBroker, running: list[MirrorProcess], tmp_path: Path
) -> None:
    ports = dict(zip("ab", free_ports(2), strict=True))
    ends = {name: start_broker(name, port=ports[name]) for name in "ab"}
    create(ends["a"].address, "events")
    mirror = Mirror(tmp_path, ends, running)
    mirror.start()
    for number, victim in enumerate("ba"):
        fill(ends["a"].address, "events", 300, 300 * number)
        ends[victim].kill()
        ends[victim] = start_broker(victim, port=ports[victim])
    mirror.wait_until_equal("events")


def test_what_compaction_has_left_is_copied(
    start_broker: StartBroker, running: list[MirrorProcess], tmp_path: Path
) -> None:
    """Its batches have holes, which no broker takes from a producer: they are encoded anew."""
    ends = {"a": start_broker("a", {"log.cleaner.backoff.ms": "100"}), "b": start_broker("b")}
    source = ends["a"].address
    configs = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    create(source, "events", **configs)
    with Producer(source, compression="lz4") as producer:
        for turn in range(3):
            for number in range(0, 6000, 10):
                keys = [b"k%d" % (number + i if i % 3 else turn * 100_000 + number + i) for i in range(10)]
                values = [random_bytes(200, turn, number + i) for i in range(10)]
                records = [NewRecord(key, value, 1) for key, value in zip(keys, values, strict=True)]
                producer.send_set("events", records, partition=0)
    until(lambda: len(committed(source, "events")[0]) < 17_000, "that the source is compacted")
    mirror = Mirror(tmp_path, ends, running)
    mirror.start()
    until(lambda: _all_copied(mirror), "that everything is copied", mirror.log)
    with Consumer(source, auto_offset_reset="earliest") as one, Consumer(
        ends["b"].address, auto_offset_reset="earliest", isolation="committed"
    ) as other:
        assert latest(one) == latest(other)


def random_bytes(size: int, *seed: int) -> bytes:
    return Random(repr(seed)).randbytes(size)


def latest(consumer: Consumer) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key in partition 0."""
    consumer.assign([("events", 0)])
    consumer.seek_to_beginning()
    [end] = consumer.end_offsets([("events", 0)]).values()
    found: dict[bytes | None, bytes | None] = {}
    while consumer.position(("events", 0)) < end:
        found.update((record.key, record.value) for record in consumer.poll(0.2, 100_000))
    return found
