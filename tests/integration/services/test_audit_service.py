"""`pylogd audit serve` with a real broker: a producer and the service that are killed, and what they leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pylogd.base.clock import wall_ms
from pylogd.cli.main import pylogd
from pylogd.client import Admin, AuditedProducer, Consumer, NewTopic, Producer, Record
from pylogd.local.broker import pylogd_command
from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.markers import Marker
from tests.audits import ServedAudit, sums, until
from tests.integration.conftest import Address, StartBroker
from tests.mirrors import MirrorProcess, write_file

pytestmark = pytest.mark.timeout(300)
#: Sends 100 messages, then 50 which stay in the buffer, and waits for its end.
DYING = """
import sys, time
from pathlib import Path
from pylogd.client import AuditedProducer, Producer
address, topic, journal = sys.argv[1:]
producer = Producer(address, linger_ms=3_600_000)
audited = AuditedProducer(producer, topic=f"{topic}-audit", window_ms=1000, journal=journal)
for number in range(100):
    audited.send(topic, b"%d" % number)
producer.flush()
for number in range(100, 150):
    audited.send(topic, b"%d" % number)
while " 149\\n" not in Path(journal).read_text():
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def audited_topic(broker: Address, topic: str) -> str:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
    return topic


@pytest.fixture
def service(broker: Address, audited_topic: str, tmp_path: Path) -> Iterator[ServedAudit]:
    # since a minute: a producer must not be faster than the begin of the first whole window
    options = ("--since", "1m", "--window", "1", "--period", "2", "--grace", "0.2")
    files = ("--marker-files", str(tmp_path / "markers"))
    with ServedAudit(broker.address, audited_topic, tmp_path, *options, *files) as found:
        yield found


def run(broker: Address, *arguments: str) -> Result:
    return CliRunner().invoke(pylogd, ["audit", *arguments, "-b", broker.address])


def test_a_killed_producer_s_messages_are_lost_and_said_to_be(
    broker: Address, audited_topic: str, service: ServedAudit, tmp_path: Path
) -> None:
    """Its successor reports them. Before that its windows are unknown. A killed service finds the same again."""
    journal = tmp_path / "journal"
    command = [sys.executable, "-c", DYING, broker.address, audited_topic, str(journal)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None and dying.stdout.readline() == "ready\n"
        dying.kill()
    until(lambda: sums(service.windows(), "unreported") == (100,), service.windows)
    assert service.end(signal.SIGKILL) == -signal.SIGKILL
    with Producer(broker.address) as producer, AuditedProducer(
        producer, topic=f"{audited_topic}-audit", window_ms=1000, journal=journal
    ) as heir:  # fmt: skip
        heir.send(audited_topic, b"alive")
    service.start()
    until(
        lambda: (
            sums(service.windows(), "reported", "received", "lost", "unreported", "duplicates") == (1, 101, 50, 0, 0)
        ),
        service.windows,
    )
    until(lambda: 'pylogd_audit_messages{kind="lost",stage="serving"' in service.get("metrics"), service.log)
    assert "lost: " in service.get("")
    assert service.end(signal.SIGTERM) == 0
    found = run(broker, "report", audited_topic, "--state", f"{audited_topic}-state", "--json")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert (found.exit_code, sums(rows, "lost")) == (1, (50,)), found.output


def test_complete_periods_have_markers_that_jobs_wait_for(
    broker: Address, audited_topic: str, service: ServedAudit, tmp_path: Path
) -> None:
    folder = tmp_path / "markers" / "serving" / audited_topic
    until(lambda: list(folder.glob("*.json")), service.log)  # of periods before anything was sent
    with Producer(broker.address) as producer, AuditedProducer(
        producer, topic=f"{audited_topic}-audit", window_ms=1000
    ) as audited:  # fmt: skip
        for number in range(300):
            audited.send(audited_topic, b"%d" % number, key=b"%d" % number)
    last = wall_ms() // 2000 * 2000

    def decided() -> bool:
        documents = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        return any(document["start_ms"] >= last for document in documents)

    until(decided, lambda: (list(folder.glob("*")), service.log()))
    documents = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert sums(documents, "reported", "received", "missing", "duplicates") == (300, 300, 0, 0)
    with Admin(broker.address) as admin:
        assert admin.describe_topic(f"{audited_topic}-complete").partitions
    period = documents[0]["period"]
    waited = run(broker, "wait", audited_topic, period, "--markers", f"{audited_topic}-complete")
    assert (waited.exit_code, "complete" in waited.stdout) == (0, True), waited.output
    stages = ("--stage", "serving", "--stage", "lake", "--markers", f"{audited_topic}-complete")
    chain = run(broker, "wait", audited_topic, period, *stages)
    assert (chain.exit_code, "is not decided at lake" in chain.stderr) == (3, True), chain.output
    start = documents[0]["start_ms"]
    counts: Any = dict.fromkeys(("reported", "received", "missing", "lost", "duplicates", "unreported"), 1)
    for verdict, code in ((Verdict.COMPLETE, 0), (Verdict.INCOMPLETE, 1), (Verdict.UNKNOWN, 3)):
        marker = Marker("lake", audited_topic, start, start + 2000, verdict, **counts)
        with Producer(broker.address) as producer:
            producer.send(f"{audited_topic}-complete", marker.encode(), key=marker.key)
        chain = run(broker, "wait", audited_topic, period, *stages)
        assert chain.exit_code == code, chain.output
        assert chain.stdout.splitlines()[-1] == f"{audited_topic} {period}: {verdict}"
    none = run(broker, "wait", audited_topic, "1999-01-01T00", "--markers", f"{audited_topic}-complete")
    assert (none.exit_code, "is not decided" in none.stderr) == (3, True), none.output
    page = tmp_path / "audit.html"
    assert service.end(signal.SIGTERM) == 0
    found = run(broker, "report", "--state", f"{audited_topic}-state", "--html", str(page), "--all")
    assert found.exit_code == 0, found.output
    assert "<svg" in page.read_text()


def test_each_stage_is_judged_up_to_what_it_has_committed(
    broker: Address, audited_topic: str, start_broker: StartBroker, tmp_path: Path
) -> None:
    """From producers to the serving cluster, by a mirror to another one, and from that to a table with markers."""
    copy, table = start_broker().address, tmp_path / "table"
    lake = f'[table.lake]\nlocation = "delta:{table}"\ncommit.interval.ms = 200'
    routes = [
        {"source": "a", "target": "b", "topics": [f"{audited_topic}"]},
        {"source": "b", "target": "lake", "topics": [f"{audited_topic}"]},
    ]
    store = f'metadata.store = "{tmp_path / "store"}"'
    file = write_file(tmp_path / "mirror.toml", {"a": broker.address, "b": copy}, routes, store, lake)
    mirrored, loaded = f"copy=cluster:{copy},via=mirror", f"lake=table:delta:{table},from=copy,markers=true"
    times = ("--since", "1m", "--window", "1", "--period", "2", "--grace", "0.2", "--interval", "0.2")
    names = ("reported", "received", "missing", "duplicates")
    with mirroring(file) as mirror:  # so that the topic is there
        await_topic(copy, audited_topic, mirror.log)
    with ServedAudit(
        broker.address, audited_topic, tmp_path, *times, "--stage", mirrored, "--stage", loaded
    ) as service:  # fmt: skip
        with Producer(broker.address) as producer, AuditedProducer(
            producer, topic=f"{audited_topic}-audit", window_ms=1000
        ) as audited:  # fmt: skip
            for number in range(200):
                audited.send(audited_topic, b"%d" % number, key=b"%d" % number)
        until(lambda: sums(service.windows(), *names) == (200, 200, 0, 0), service.log)
        for stage in ("copy", "lake"):
            pending = [row for row in service.windows(stage) if row["reported"]]
            assert {row["verdict"] for row in pending} == {"pending"}, "it has not passed the windows"
        with mirroring(file):
            until(lambda: sums(service.windows("copy"), *names) == (200, 200, 0, 0), service.log)
            until(lambda: sums(service.windows("lake"), *names) == (200, 200, 0, 0), service.log)
        until(lambda: sums(markers_of(table), *names) == (200, 200, 0, 0), service.log)
        assert {(each["stage"], each["complete"]) for each in markers_of(table)} == {("lake", True)}


def test_copies_in_aborted_transactions_are_none(
    broker: Address, audited_topic: str, start_broker: StartBroker, tmp_path: Path
) -> None:
    """A worker of a mirror that is killed leaves such copies. Those of an open transaction are not there yet."""
    copy = start_broker().address
    with Admin(copy) as admin:
        admin.create_topics([NewTopic(audited_topic, 1, 1)])
    times = ("--since", "1m", "--window", "1", "--period", "2", "--grace", "0.2")
    stage = ("--stage", f"copy=cluster:{copy},settle=0.2")
    names = ("reported", "received", "missing", "duplicates", "pending")
    with ServedAudit(broker.address, audited_topic, tmp_path, *times, *stage) as service:
        with Producer(broker.address) as producer, AuditedProducer(
            producer, topic=f"{audited_topic}-audit", window_ms=1000
        ) as audited:  # fmt: skip
            for number in range(50):
                audited.send(audited_topic, b"%d" % number)
        until(lambda: sums(service.windows(), *names) == (50, 50, 0, 0, 0), service.log)
        records = read_all(broker.address, audited_topic)
        with Producer(copy, transactional_id="copy") as copier:
            for attempt in range(2):
                copier.begin_transaction()
                for record in records:
                    copier.send(audited_topic, record.value, headers=record.headers, timestamp=record.timestamp)
                copier.flush()
                if not attempt:
                    copier.abort_transaction()
                    until(lambda: sums(service.windows("copy"), *names) == (50, 0, 50, 0, 0), service.log)
            copier.commit_transaction()
        until(lambda: sums(service.windows("copy"), *names) == (50, 50, 0, 0, 0), service.log)
        until(lambda: {row["verdict"] for row in service.windows("copy")} == {"complete"}, service.log)


def test_a_transactional_producer_can_be_audited(broker: Address, audited_topic: str, service: ServedAudit) -> None:
    """Reports are no part of its transactions, and no messages of its: aborted messages are not delivered."""
    names = ("reported", "received", "missing", "duplicates", "unreported")
    options: dict[str, Any] = {"transactional_id": audited_topic, "value_serializer": str.encode}
    with Producer(broker.address, **options) as producer, AuditedProducer(
        producer, topic=f"{audited_topic}-audit", window_ms=1000, report_interval=0.1
    ) as audited:  # fmt: skip
        for number, end in enumerate(["commit", "abort", "commit"]):
            producer.begin_transaction()
            for _ in range(30 + number):
                audited.send(audited_topic, "text")
            producer.flush()
            time.sleep(1.3)  # so that its window ends while the transaction is open
            getattr(producer, f"{end}_transaction")()
        until(lambda: sums(service.windows(), *names) == (62, 62, 0, 0, 0), service.windows)
        producer.begin_transaction()
        audited.send(audited_topic, "open")
        producer.flush()
    until(lambda: {row["verdict"] for row in service.windows()} == {"complete"}, service.windows)
    assert sums(service.windows(), *names) == (62, 62, 0, 0, 0)
    assert len(read_all(broker.address, audited_topic)) == 94, "those of aborted transactions are in the log"


def read_all(address: str, topic: str) -> list[Record]:
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        ends = consumer.end_offsets(consumer.partitions(topic))
        consumer.assign(consumer.beginning_offsets(list(ends)))
        found: list[Record] = []
        while any(consumer.position(each) < end for each, end in ends.items()):
            found += consumer.poll(1.0)
        return found


@contextmanager
def mirroring(file: Path) -> Iterator[MirrorProcess]:
    process = MirrorProcess(file, file.with_suffix(".log"))
    try:
        yield process
    finally:
        process.kill()


def await_topic(address: str, topic: str, log: Callable[[], str]) -> None:
    with Admin(address) as admin:
        until(lambda: topic in {found.name for found in admin.list_topics()}, log)


def markers_of(table: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in table.glob("_complete/*/*.json")]


def test_it_ends_although_its_brokers_are_gone(start_broker: StartBroker, topic: str, tmp_path: Path) -> None:
    broker = start_broker()
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    with ServedAudit(broker.address, topic, tmp_path, "--window", "1", "--period", "2") as service:
        broker.kill()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0, service.log()
        assert "Can't store the last verdicts" in service.log()


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--stage", "lake=/data"], 1, "neither NAME=cluster:HOST:PORT nor NAME=table:LOCATION"),
        (["--window", "7"], 2, "a period has to be a multiple of a window"),
        (["--since", "soon"], 2, "'soon' is neither now, beginning nor a time"),
        (["--period", "week"], 2, "'week' is neither hour, day nor a number of seconds"),
    ],
)
def test_wrong_usage_is_told_in_a_line(broker: Address, options: list[str], code: int, text: str) -> None:
    done = run(broker, "serve", "flights", *options)
    assert (done.exit_code, text in done.stderr.splitlines()[-1]) == (code, True), done.stderr


def test_a_topic_that_does_not_exist_is_told_in_a_line(broker: Address) -> None:
    command = [*pylogd_command(), "audit", "serve", "not-there", "-b", broker.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "not-there" in done.stderr.splitlines()[-1]) == (1, True), done.stderr
