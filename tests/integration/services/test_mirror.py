"""`pylogd mirror` between real brokers: what is copied, how, and what becomes of it when processes are killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pylogd.client import Admin, Consumer, Producer
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.wire.records import NewRecord
from tests.integration.conftest import StartBroker
from tests.mirrors import MirrorProcess, committed, stored_records, until, write_file
from tests.zookeeper import ZooKeeper

THERE = {"source": "a", "target": "b"}
ROUTES: list[dict[str, Any]] = [
    {**THERE, "topics": ["events.*"]},
    {**THERE, "name": "renamed", "topics": ["renamed.*"], "rename": "from-{source}.{topic}"},
    {"source": "b", "target": "a", "topics": ["events.*"]},
]


class Mirror:
    """A mirror of a test: its file, its processes, and its command line."""

    def __init__(self, folder: Path, ends: dict[str, BrokerProcess], routes: list[dict[str, Any]], store: str) -> None:
        self.folder, self.ends = folder, ends
        self.processes: list[MirrorProcess] = []
        addresses = {name: broker.address for name, broker in ends.items()}
        self.file = write_file(folder / "mirror.toml", addresses, routes, store)

    def start(self) -> MirrorProcess:
        log = self.folder / f"mirror-{len(self.processes)}.log"
        process = MirrorProcess(self.file, log, "--listen", "127.0.0.1:0")
        self.processes.append(process)
        process.wait()
        return process

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def log(self) -> str:
        return "\n".join(process.log() for process in self.processes)

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


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    """Two clusters of one broker each, and one process that mirrors some topics of each to the other."""
    folder = tmp_path_factory.mktemp("mirror")
    settings = {"log.cleaner.backoff.ms": "100", "group.initial.rebalance.delay.ms": "0"}
    ends = {name: BrokerProcess(folder / name, folder / f"{name}.log", settings) for name in "ab"}
    found = Mirror(folder, ends, ROUTES, f'metadata.store = "{folder / "store"}"')
    try:
        found.start()
        yield found
        assert found.processes[0].stop() == 0, found.log()
    finally:
        found.kill()
        for broker in ends.values():
            broker.kill()


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


def test_batches_arrive_as_they_are_and_aborted_ones_are_left_out(mirror: Mirror) -> None:
    source, target = mirror.ends["a"].address, mirror.ends["b"].address
    create(source, "renamed", **{"retention.ms": "777777777"})
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        fill(source, "renamed", 300, compression=codec)
    with Producer(source, transactional_id="t") as producer:
        with producer.transaction():
            producer.send("renamed", b"committed", partition=0)
        producer.begin_transaction()
        producer.send("renamed", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    copy = mirror.wait_until_equal("renamed", "from-a.renamed")
    assert b"committed" in copy[0] and b"aborted" not in copy[0]
    before = stored_records(mirror.ends["a"].data, "renamed")
    after = stored_records(mirror.ends["b"].data, "from-a.renamed")
    assert len(after) == len(before) - 1 and set(after) < set(before)
    with Admin(target) as admin:
        settings = {entry.name: entry.value for entry in admin.describe_configs("topic", "from-a.renamed")}
    assert settings["retention.ms"] == "777777777"
    lags = until(lambda: _all_copied(mirror, "renamed"), "that the lag is 0", mirror.log)
    assert [(lag["topic"], lag["partition"], lag["target"]) for lag in lags] == [
        ("renamed", index, "from-a.renamed") for index in range(3)
    ]


def _all_copied(mirror: Mirror, route: str) -> Any:
    lags = mirror.command("describe", "--route", route)
    return lags if lags and all(lag["lag"] == 0 for lag in lags) else None


def test_metrics_follow_a_route_and_the_file(mirror: Mirror) -> None:
    source = mirror.ends["a"].address
    create(source, "events-measured")
    fill(source, "events-measured", 300)
    mirror.wait_until_equal("events-measured")
    process = mirror.processes[0]

    def equal(name: str, value: float) -> bool:
        return process.metric(f"pylogd_mirror_{name}") == value

    route = '{route="a-b"}'
    assert process.metric(f"pylogd_mirror_copied_records_total{route}") >= 300
    assert process.metric(f"pylogd_mirror_copied_bytes_total{route}") > 300
    until(lambda: equal(f"lag_records{route}", 0) and equal(f"lag_seconds{route}", 0), "no lag", mirror.log)
    assert equal('partitions{route="a-b",state="set_aside"}', 0)
    assert process.metric('pylogd_mirror_partitions{route="a-b",state="copied"}') >= 3
    assert process.metric('pylogd_mirror_commits_total{target="b"}') > 0
    assert equal("is_controller", 1) and equal("file_is_valid", 1)
    text = mirror.file.read_text()
    try:
        mirror.file.write_text(text + "\n[odd")
        until(lambda: equal("file_is_valid", 0), "that the error is noticed", mirror.log)
        fill(source, "events-measured", 30)
        mirror.wait_until_equal("events-measured")
    finally:
        mirror.file.write_text(text + "\n# of another size\n")
    until(lambda: equal("file_is_valid", 1), "that the file is used again", mirror.log)


def test_topics_are_followed_and_groups_move_over(mirror: Mirror) -> None:
    source, target = mirror.ends["a"].address, mirror.ends["b"].address
    create(source, "events-1")
    fill(source, "events-1", 30)
    mirror.wait_until_equal("events-1")
    fill(source, "events-1", 60, 30)
    with Admin(source) as admin:
        admin.create_partitions("events-1", 4)
    with Producer(source) as producer:
        producer.send("events-1", b"in the new partition", partition=3)
    mirror.wait_until_equal("events-1")
    with Consumer(source, group_id="billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe("events-1")
        seen: list[bytes] = []
        while len(seen) < 40:
            seen += [record.value or b"" for record in consumer.poll(1.0, 40 - len(seen))]
    moved = mirror.command("translate", "billing", "--route", "a-b", "--execute")
    assert moved and all(not row["note"] for row in moved)
    with Consumer(target, group_id="billing", auto_offset_reset="none") as consumer:
        consumer.subscribe("events-1")
        rest: list[bytes] = []
        while len(rest) < 91 - 40:
            rest += [record.value or b"" for record in consumer.poll(1.0)]
    everything = [value for values in committed(source, "events-1").values() for value in values]
    assert sorted(seen + rest) == sorted(everything)


def test_a_way_back_is_refused(mirror: Mirror) -> None:
    a, b = mirror.ends["a"].address, mirror.ends["b"].address
    create(b, "events-of-b")
    fill(b, "events-of-b", 30)
    until(lambda: _enough(a, "events-of-b", 30), "the other direction", mirror.log)
    create(a, "events-of-a")
    fill(a, "events-of-a", 30)
    mirror.wait_until_equal("events-of-a")
    refused = "topic events-of-a is not copied: its records come from a"
    until(lambda: refused in mirror.log(), "that the loop is refused", mirror.log)
    fill(a, "events-of-a", 30, 30)
    mirror.wait_until_equal("events-of-a")
    assert sum(map(len, committed(a, "events-of-a").values())) == 60


def test_a_recreated_topic_is_copied_behind_the_former(mirror: Mirror) -> None:
    source = mirror.ends["a"].address
    create(source, "events-again")
    fill(source, "events-again", 30)
    mirror.wait_until_equal("events-again")
    with Admin(source) as admin:
        admin.delete_topic("events-again")
        admin.create_topic("events-again", 3)
    fill(source, "events-again", 60, 1000)
    found = until(lambda: _enough(mirror.ends["b"].address, "events-again", 90), "both topics' records", mirror.log)
    numbers = [*range(30), *range(1000, 1060)]
    assert found == {index: [b"%d" % number for number in numbers if number % 3 == index] for index in range(3)}


def test_what_compaction_has_left_is_copied(mirror: Mirror) -> None:
    """Its batches have holes, which no broker takes from a producer: they are encoded anew."""
    a, b = mirror.ends["a"].address, mirror.ends["b"].address
    configs = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    create(a, "compacted", **configs)
    with Producer(a, compression="lz4") as producer:
        for turn in range(3):
            for number in range(0, 3000, 10):
                keys = [b"k%d" % (number + i if i % 3 else turn * 100_000 + number + i) for i in range(10)]
                values = [Random(repr((turn, number, i))).randbytes(400) for i in range(10)]
                records = [NewRecord(key, value, 1) for key, value in zip(keys, values, strict=True)]
                producer.send_set("compacted", records, partition=0)
    until(lambda: len(committed(a, "compacted")[0]) < 8_500, "that the source is compacted")
    routes = [*ROUTES, {**THERE, "name": "compacted", "topics": ["compacted"], "sync.configs": False}]
    addresses = {name: broker.address for name, broker in mirror.ends.items()}
    write_file(mirror.file, addresses, routes, f'metadata.store = "{mirror.folder / "store"}"')  # read again at once
    until(lambda: _all_copied(mirror, "compacted"), "that everything is copied", mirror.log)
    source = committed(a, "compacted")[0]
    # The checkpoint and the copy end in one transaction, but each partition gets its marker at its own time.
    until(lambda: set(committed(b, "compacted")[0]) >= set(source), "that the copy is visible", mirror.log)
    assert len(committed(b, "compacted")[0]) >= len(source)
    assert "set aside" not in mirror.log()


def test_kills_of_workers_and_controller_lose_and_repeat_nothing(
    start_broker: StartBroker, tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    ends = {name: start_broker(name) for name in "ab"}
    source = ends["a"].address
    create(source, "events")
    store = f'zookeeper.connect = "{zookeeper.connect}"\nzookeeper.session.timeout.ms = 2000'
    mirror = Mirror(tmp_path, ends, ROUTES[:1], store)
    sent = 0

    def produce(count: int) -> None:
        nonlocal sent
        with Producer(source, linger_ms=1) as producer:
            for _ in range(count):
                producer.send("events", b"%d" % sent, partition=sent % 3)
                sent += 1

    try:
        for _ in range(2):
            mirror.start()
        produce(100)
        mirror.wait_until_equal("events")
        mirror.processes[0].kill()  # it was first, so it is the controller
        produce(100)
        mirror.start()
        mirror.wait_until_equal("events")
        produce(100)
        mirror.processes[1].kill()
        copy = mirror.wait_until_equal("events")
        assert sorted(int(value) for values in copy.values() for value in values) == list(range(sent))
        assert mirror.processes[2].stop() == 0
    finally:
        mirror.kill()
