"""Consumer groups on a real broker: pylogd's members beside librdkafka's, kills, and the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from pylogd.base.errors import ErrorCode
from pylogd.client import Admin, Cluster, Consumer, KafkaError, Producer, Record, TopicPartition
from pylogd.client.core.model import OffsetSpec
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.commands import run_command

SECONDS = 180.0
_WORKER = """
import sys
from pylogd.client import Consumer
address, group, topic, assignor, out = sys.argv[1:]
consumer = Consumer(address, group_id=group, assignors=[assignor], auto_commit_interval=0.2, session_timeout=6.0,
                    heartbeat_interval=0.3, max_poll_records=200)
consumer.subscribe(topic)
with open(out, "a") as file:
    while True:
        for record in consumer.poll(0.2):
            file.write(record.value.decode() + "\\n")
        file.flush()
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(folder / "data", folder / "log", {"group.initial.rebalance.delay.ms": "100"})
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.log()


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Cluster(broker.address) as cluster:
        yield Admin(cluster)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def produce(broker: BrokerProcess, topic: str, numbers: range) -> None:
    with Producer(broker.address) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def lines(files: list[Path]) -> Counter[str]:
    return Counter(line for file in files if file.exists() for line in file.read_text().split("\n")[:-1])


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_a_group_of_different_clients_survives_the_kill_of_a_member(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path, assignor: str
) -> None:
    """Two members of pylogd and one of librdkafka process every record, though one process is killed."""
    admin.create_topic(topic, 6)
    produce(broker, topic, range(3000))
    files = [tmp_path / "one", tmp_path / "two"]
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, broker.address, "g-" + topic, topic, assignor, str(file)])
        for file in files
    ]
    other = _Confluent(broker.address, "g-" + topic, topic, assignor)

    def owners() -> dict[str, int]:
        if "g-" + topic not in [group.group_id for group in admin.list_groups()]:
            return {}
        described = admin.describe_group("g-" + topic)
        return {m.member_id: len(m.assignment) for m in described.members} if described.state == "Stable" else {}

    try:
        wait_for(lambda: sorted(owners().values()) == [2, 2, 2], "the three members did not share the partitions")
        produce(broker, topic, range(3000, 6000))
        workers[0].kill()
        wait_for(lambda: sorted(owners().values()) == [3, 3], "the other members did not take over")
        produce(broker, topic, range(6000, 9000))
        wait_for(lambda: len(lines(files).keys() | set(other.seen)) == 9000, "some records were not processed")
        ends = {p: found.offset for p, found in admin.offsets(dict.fromkeys(_all(topic, 6), -1)).items()}
        wait_for(lambda: {p: o.offset for p, o in admin.group_offsets("g-" + topic).items()} == ends, "not committed")
    finally:
        other.stop()
        for worker in workers:
            worker.kill()
            worker.wait()


def _all(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(count)]


class _Confluent:
    """librdkafka's consumer, polled by a thread."""

    def __init__(self, address: str, group: str, topic: str, assignor: str) -> None:
        self.seen: list[str] = []
        self._stopped = threading.Event()
        self._consumer = ConfluentConsumer(
            {
                "bootstrap.servers": address, "group.id": group, "partition.assignment.strategy": assignor,
                "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200, "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
            }
        )  # fmt: skip
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.append((message.value() or b"").decode())
        self._consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(SECONDS)


@pytest.mark.parametrize("assignor", ["sticky", "cooperative-sticky"])
def test_no_record_is_lost_while_a_group_grows_and_shrinks(
    broker: BrokerProcess, admin: Admin, topic: str, assignor: str
) -> None:
    admin.create_topic(topic, 8)
    produce(broker, topic, range(400))
    seen: Counter[bytes | None] = Counter()
    consumers: list[Consumer] = []

    def share(count: int) -> None:
        while len(consumers) < count:
            consumers.append(
                Consumer(broker.address, group_id="g-" + topic, assignors=[assignor], heartbeat_interval=0.2)
            )
            consumers[-1].subscribe(topic)
        while len(consumers) > count:
            consumers.pop().close()
        deadline = time.monotonic() + SECONDS
        while True:
            for consumer in consumers:
                seen.update(record.value for record in consumer.poll(0.05))
            owned = [partition for consumer in consumers for partition in consumer.assignment]
            if sorted(owned) == _all(topic, 8) and all(len(c.assignment) == 8 // count for c in consumers):
                return
            assert time.monotonic() < deadline, [c.assignment for c in consumers]

    share(1)
    kept = set(consumers[0].assignment)
    share(2)
    assert set(consumers[0].assignment) < kept
    share(4)
    produce(broker, topic, range(400, 800))
    share(2)
    share(1)
    deadline = time.monotonic() + SECONDS
    while len(seen) < 800:
        assert time.monotonic() < deadline
        seen.update(record.value for record in consumers[0].poll(0.05))
    share(1)
    consumers.pop().close()
    if assignor == "cooperative-sticky":  # kept partitions were read on, and revoked ones were committed first
        assert set(seen.values()) == {1}


def test_offsets_committed_by_other_clients_are_used(broker: BrokerProcess, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 1)
    produce(broker, topic, range(10))
    other = ConfluentConsumer({"bootstrap.servers": broker.address, "group.id": topic, "enable.auto.commit": False})
    other.commit(offsets=[ConfluentPartition(topic, 0, 4, metadata="a note")], asynchronous=False)
    other.close()
    with Consumer(broker.address, group_id=topic) as consumer:
        found = consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]
        assert found is not None
        # confluent-kafka includes the terminating NUL of the C string
        assert (found.offset, found.metadata.rstrip("\0")) == (4, "a note")
        consumer.subscribe(topic)
        records: list[Record] = []
        deadline = time.monotonic() + SECONDS
        while len(records) < 6:
            assert time.monotonic() < deadline
            records += consumer.poll(0.1)
        assert [record.offset for record in records] == [4, 5, 6, 7, 8, 9]


def test_admin_describes_resets_and_deletes_groups(broker: BrokerProcess, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 2)
    with Producer(broker.address) as producer:
        for n in range(20):
            producer.send(topic, b"", partition=n % 2, timestamp=1_700_000_000_000 + n)
    both = _all(topic, 2)
    admin.alter_group_offsets(topic, dict.fromkeys(both, 5))
    assert {p: o.offset for p, o in admin.group_offsets(topic).items()} == dict.fromkeys(both, 5)
    plans = {
        OffsetSpec(earliest=True): (0, 0),
        OffsetSpec(): (10, 10),
        OffsetSpec(offset=99): (10, 10),
        OffsetSpec(shift=-3): (2, 2),
        OffsetSpec(timestamp=1_700_000_000_007): (4, 3),
        OffsetSpec(timestamp=1_800_000_000_000): (10, 10),
    }
    for spec, expected in plans.items():
        assert tuple(admin.plan_group_offsets(topic, both, spec).values()) == expected
    assert admin.plan_group_offsets(topic, both, OffsetSpec(offsets={both[0]: 99})) == {both[0]: 10}
    admin.delete_group_offsets(topic, both[:1])
    assert list(admin.group_offsets(topic)) == both[1:]
    with Consumer(broker.address, group_id=topic) as consumer:
        consumer.subscribe(topic)
        deadline = time.monotonic() + SECONDS
        while not consumer.assignment:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        described = admin.describe_group(topic)
        assert (described.state, described.protocol) == ("Stable", "range")
        [member] = described.members
        assert (member.topics, sorted(member.assignment)) == ((topic,), both)
        assert topic in [group.group_id for group in admin.list_groups(["stable"])]
        changes: list[Callable[[], object]] = [
            lambda: admin.delete_group(topic),
            lambda: admin.alter_group_offsets(topic, {both[0]: 0}),
        ]
        for refused in changes:
            with pytest.raises(KafkaError) as caught:
                refused()
            assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
    admin.delete_group(topic)
    with pytest.raises(KafkaError) as caught:
        admin.describe_group(topic)
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_group_commands_list_describe_move_and_delete(
    broker: BrokerProcess, admin: Admin, topic: str, tmp_path: Path
) -> None:
    def run(*words: str) -> str:
        done = run_command(*words, "--bootstrap-server", broker.address)
        assert done.returncode == 0, done.stderr
        return done.stdout

    admin.create_topic(topic, 1)
    produce(broker, topic, range(10))
    assert run("consume", topic, "--group", topic, "--count", "4").split() == ["0", "1", "2", "3"]
    assert run("consume", topic, "--group", topic, "--until-end").split() == ["4", "5", "6", "7", "8", "9"]
    assert topic in run("groups", "list")
    assert run("groups", "describe", topic).split() == [topic, topic, "0", "10", "10", "0", "-", "-", "-"]
    back = ["groups", "reset-offsets", topic, "--topic", topic, "--shift-by", "-3"]
    assert run(*back).split() == [topic, "0", "10", "7"]
    [described] = json.loads(run("groups", "describe", topic, "--json"))
    assert described["offsets"][0]["committed"] == 10  # a dry run
    run(*back, "--execute")
    assert run("consume", topic, "--group", topic, "--until-end").split() == ["7", "8", "9"]
    assert run("groups", "seek", topic, "--to", "-3", "--dry-run").split() == [topic, "0", "10", "7"]
    assert run("groups", "seek", topic, "--to", "-3").split() == [topic, "0", "10", "7"]
    assert run("groups", "seek", f"{topic}-copy", "--to-group", topic).split() == [topic, "0", "-", "7"]
    places = tmp_path / "offsets"
    places.write_text(f"{topic} 0 99\n\n")
    assert run("groups", "seek", topic, "--to-file", str(places)).split() == [topic, "0", "7", "10"]
    for text, mistake in ((f"{topic} 0 3\n{topic} 0 x\n", "line 2: not TOPIC"), (f"{topic} 0 3\n{topic} 9 0\n", "9")):
        places.write_text(text)
        refused = run_command("groups", "seek", topic, "--to-file", str(places), "-b", broker.address)
        assert refused.returncode and mistake in refused.stderr, refused.stderr
    [described] = json.loads(run("groups", "describe", topic, "--json"))
    assert described["offsets"][0]["committed"] == 10, "the good line before the bad one changed nothing"
    assert run("groups", "seek", topic, "--to", "start", "--topic", f"{topic}:0").split() == [topic, "0", "10", "0"]
    done = run_command("groups", "seek", topic, "--to", "1622505600", "-b", broker.address)
    assert done.returncode == 1 and "a time is written @1622505600" in done.stderr
    run("groups", "delete", topic, f"{topic}-copy")
    assert topic not in run("groups", "list")


@pytest.mark.parametrize("blocked", [False, True], ids=["waiting", "its output is not read"])
def test_a_terminated_consume_command_leaves_its_group(
    broker: BrokerProcess, admin: Admin, topic: str, blocked: bool
) -> None:
    count = 500 if blocked else 2
    admin.create_topic(topic, 1)
    with Producer(broker.address) as producer:
        producer.send(topic, b"0")
        for _ in range(count - 1):
            producer.send(topic, b"1" * (1000 if blocked else 1))  # more than the pipe's buffer
    process = subprocess.Popen(
        [*pylogd_command(), "consume", topic, "-b", broker.address, "--group", topic],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline() == b"0\n"
        process.send_signal(signal.SIGTERM)
        if not blocked:
            assert process.stdout.read() == b"1\n"
        assert process.wait(SECONDS) == 143
        assert process.stderr.read() == b""
    found = [group for group in admin.list_groups() if group.group_id == topic]
    assert not found or admin.describe_group(topic).members == ()
    committed = {key.partition: found.offset for key, found in admin.group_offsets(topic).items()}
    assert (committed.get(0, 0) < count) if blocked else (committed == {0: 2}), committed
