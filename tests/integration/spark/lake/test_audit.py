"""`pylogd audit` with a real Spark and real brokers finds missing and duplicate messages in topics and lakes."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pylogd.cli.main import pylogd
from pylogd.client import Admin, AuditedProducer, Consumer, NewTopic, Producer, Record, TopicPartition
from pylogd.client.core.audit import HEADER, Report, Stamp
from pylogd.services.audit.counting import Counted
from pylogd.services.audit.judging import Judgement, Verdict
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.opening import open_table
from pylogd.services.audit.report import Row
from pylogd.services.audit.tables import TableReader, count_columns
from pylogd.services.audit.windows import LedgerOptions, StageSpec
from tests.audits import ServedAudit, sums, until
from tests.integration.conftest import Address, StartBroker

pytestmark = pytest.mark.timeout(600)
START_MS = 1_700_000_040_000
WINDOW_MS = 60_000
KEEP = {"retention.ms": "-1"}


@pytest.fixture
def audit(spark: Any, broker: Address, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("pylogd.cli.spark.session", lambda *_: spark)
    monkeypatch.setenv("PYLOGD_BOOTSTRAP_SERVER", broker.address)
    yield lambda command, *arguments: CliRunner().invoke(pylogd, [command, *(str(each) for each in arguments)])


@pytest.fixture
def sent(broker: Address, topic: str) -> str:
    """A topic with two audit windows of 30 messages, and one message of a producer that does not report."""
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, KEEP), NewTopic(f"{topic}-audit", 1, 1, KEEP)])
    times = itertools.count(START_MS, 2000)
    with Producer(broker.address) as producer:
        with AuditedProducer(
            producer, topic=f"{topic}-audit", window_ms=WINDOW_MS, server="here", now_ms=lambda: next(times)
        ) as audited:
            for number in range(60):
                audited.send(topic, b"%d" % number, partition=number % 2)
        producer.send(topic, b"not stamped")
        producer.send(topic, b"not stamped", headers=[("other", b"x")])
        producer.send(topic, b"not a stamp", headers=[(HEADER, b"99999999999999999999/p/0/here")])
    return topic


def counts(result: Result) -> list[tuple[int, ...]]:
    """Return (reported, received, missing, duplicates, unreported), summed over windows, as the last may be split."""
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    return [tuple(sum(int(row[at]) for row in rows) for at in range(2, 7))]


def test_complete_messages_pass_the_audit(audit: Any, sent: str, tmp_path: Path) -> None:
    done = audit("audit", sent, "--reports", f"{sent}-audit")
    assert done.exit_code == 0, done.output
    assert counts(done) == [(60, 60, 0, 0, 0)]
    assert audit("load", sent, "--to", tmp_path).exit_code == 0
    done = audit("audit", sent, "--reports", f"{sent}-audit", "--lake", tmp_path)
    assert (done.exit_code, counts(done)) == (0, [(60, 60, 0, 0, 0)]), done.output


def test_a_loss_and_a_duplicate_are_found_on_another_cluster_and_in_its_lake(
    audit: Any, broker: Address, start_broker: StartBroker, sent: str, tmp_path: Path
) -> None:
    other = start_broker()
    with Admin(other.address) as admin:
        admin.create_topics([NewTopic(sent, 1, 1, KEEP)])
    with Producer(other.address) as producer:
        for record in records(broker.address, sent):
            if record.value != b"17":
                for _ in range(2 if record.value == b"42" else 1):
                    producer.send(sent, record.value, headers=record.headers, timestamp=record.timestamp)
    drawn = [tmp_path / "completeness.svg", tmp_path / "completeness.png"]
    assert audit("load", sent, "--to", tmp_path / "lake", "-b", other.address).exit_code == 0
    there = ("--received", other.address)
    unsure = audit("audit", sent, "--reports", f"{sent}-audit", "--lake", tmp_path / "lake")
    assert (unsure.exit_code, counts(unsure)) == (1, [(60, 60, 1, 1, 0)]), "a duplicate is an error at once"
    assert "the lake was loaded from another topic" in unsure.stderr
    for where, picture in zip((there, ("--lake", tmp_path / "lake", *there)), drawn, strict=True):
        found = audit("audit", sent, "--reports", f"{sent}-audit", *where, "--plot", picture)
        assert found.exit_code == 1, found.output
        assert counts(found) == [(60, 60, 1, 1, 0)]
    assert b"<svg" in drawn[0].read_bytes()
    assert drawn[1].read_bytes().startswith(b"\x89PNG")


def test_unreported_messages_do_not_compensate_for_a_loss(audit: Any, broker: Address, sent: str) -> None:
    lost, dead = f"{sent}-lost", Stamp(START_MS, "here", "dead", 0).encode()
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(lost, 1, 1, KEEP)])
    with Producer(broker.address) as producer:
        for number in range(2):
            report = Report("alive", "here", lost, START_MS - START_MS % WINDOW_MS, WINDOW_MS, 1, number)
            producer.send(f"{sent}-audit", report.encode())
        producer.send(lost, b"0", headers=[(HEADER, Stamp(START_MS, "here", "alive", 0).encode())])
        producer.send(lost, b"0", headers=[(HEADER, dead)])
    found = audit("audit", lost, "--reports", f"{sent}-audit")
    assert (found.exit_code, counts(found)) == (1, [(2, 2, 1, 0, 1)]), found.output


def test_an_audit_without_ended_windows_fails(audit: Any, sent: str, tmp_path: Path) -> None:
    none = audit("audit", sent, "--reports", f"{sent}-audit", "--grace", "99999999999")
    assert (none.exit_code, none.stdout) == (3, "")
    assert "no window has ended" in none.stderr
    empty = audit("audit", sent, "--reports", f"{sent}-audit", "--lake", tmp_path / "empty")
    assert empty.exit_code == 1
    assert "is empty" in empty.stderr


def verdicts(result: Result) -> list[str]:
    return sorted({line.split("\t")[-1] for line in result.stdout.splitlines()})


def send_stamped(address: str, topic: str, producer: str, numbers: Iterable[int]) -> None:
    with Producer(address) as plain:
        for number in numbers:
            stamp = Stamp(START_MS + 100 * number, "here", producer, number).encode()
            plain.send(topic, b"%d" % number, partition=number % 2, headers=[(HEADER, stamp)])


def test_messages_of_a_producer_that_died_before_its_report_are_counted(audit: Any, broker: Address, sent: str) -> None:
    """40 of its 100 messages are missing: the gap is reported, though it is unknown whether they were delivered."""
    topic = f"{sent}-died"
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, KEEP)])
    send_stamped(broker.address, topic, "dead", [n for n in range(100) if not 30 <= n < 70])
    found = audit("audit", topic, "--reports", f"{sent}-audit")
    assert (found.exit_code, verdicts(found), counts(found)) == (3, ["unknown"], [(0, 60, 0, 0, 60)]), found.output
    assert found.stdout.split("\t")[8] == "40"


def test_a_lake_is_audited_up_to_its_offsets(audit: Any, broker: Address, sent: str, tmp_path: Path) -> None:
    """Later messages of the topic are not loaded yet and do not count as missing."""
    load = ("load", sent, "--to", tmp_path, "--max-offsets", "31")
    assert audit(*load).exit_code == 0
    found = audit("audit", sent, "--reports", f"{sent}-audit", "--lake", tmp_path)
    reported, received, missing, duplicates, unreported = counts(found)[0]
    assert (reported, missing, duplicates, unreported) == (60, 0, 0, 0), found.output
    assert 0 < received < 60
    assert sum(int(line.split("\t")[7]) for line in found.stdout.splitlines()) == 60 - received
    assert (found.exit_code, "incomplete" in verdicts(found)) == (3, False)
    while "nothing to do" not in audit(*load).stderr:
        pass
    found = audit("audit", sent, "--reports", f"{sent}-audit", "--lake", tmp_path)
    assert (found.exit_code, verdicts(found)) == (0, ["complete"]), found.output


def test_messages_deleted_by_retention_are_not_missing(audit: Any, broker: Address, sent: str) -> None:
    """Only windows older than the first record of the log may have lost messages to retention."""
    with Admin(broker.address) as admin:
        admin.delete_records({TopicPartition(sent, 0): 3})
    found = audit("audit", sent, "--reports", f"{sent}-audit")
    assert counts(found) == [(60, 57, 3, 0, 0)]
    lines = [line.split("\t") for line in found.stdout.splitlines()]
    assert [(line[4], line[-1]) for line in lines] == [("3", "unknown")] + [("0", "complete")] * (len(lines) - 1)
    assert found.exit_code == 3


def test_messages_copied_by_an_audited_producer_count_for_it(audit: Any, broker: Address, sent: str) -> None:
    """A copy has the stamps of two producers. The second one counts, which reported on the copy's topic."""
    copy = f"{sent}-copy"
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(copy, 1, 1, KEEP)])
    times = itertools.count(START_MS, 2000)
    with Producer(broker.address) as producer, AuditedProducer(
        producer, topic=f"{sent}-audit", window_ms=WINDOW_MS, server="there", now_ms=lambda: next(times)
    ) as audited:  # fmt: skip
        for record in records(broker.address, sent):
            if any(name == HEADER for name, _ in record.headers) and record.value != b"not a stamp":
                audited.send(copy, record.value, headers=record.headers, timestamp=record.timestamp)
    found = audit("audit", copy, "--reports", f"{sent}-audit")
    assert (found.exit_code, counts(found), verdicts(found)) == (0, [(60, 60, 0, 0, 0)], ["complete"]), found.output


def test_failed_deliveries_are_not_missing(audit: Any, broker: Address, sent: str) -> None:
    """A message reported as failed may be in the topic, if only its acknowledgement was lost."""
    topic = f"{sent}-failed"
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, KEEP)])
    send_stamped(broker.address, topic, "alive", [0, 1, 2, 3, 4, 6, 8, 9])
    start = START_MS - START_MS % WINDOW_MS
    with Producer(broker.address) as producer:
        report = Report("alive", "here", topic, start, WINDOW_MS, 7, 1, 0, 9, ((5, 7),))
        producer.send(f"{sent}-audit", report.encode())
    found = audit("audit", topic, "--reports", f"{sent}-audit")
    assert (found.exit_code, counts(found), verdicts(found)) == (0, [(7, 8, 0, 0, 0)], ["complete"]), found.output


def test_the_service_judges_a_lake_up_to_its_commits(audit: Any, broker: Address, sent: str, tmp_path: Path) -> None:
    """Its windows are pending until they are loaded, and a compaction doubles nothing."""
    lake = str(tmp_path / "lake")
    load = ("load", sent, "--to", lake)
    assert audit(*load, "--max-offsets", "31").exit_code == 0
    # late data for ever: the windows are years old, and would be closed as soon as they have a verdict
    options = ("--stage", f"lake=table:{lake}", "--since", "beginning", "--grace", "0")
    with ServedAudit(broker.address, sent, tmp_path, *options, "--late", "1e9", "--interval", "0.2") as service:
        names = ("reported", "received", "missing", "duplicates")
        until(lambda: sums(service.windows(), *names) == (60, 60, 0, 0), service.windows)
        until(lambda: sum(row["received"] for row in service.windows("lake")), service.log)
        until(lambda: sum(sums(service.windows("lake"), "received", "pending")) == 60, service.log)
        assert 0 < sum(row["received"] for row in service.windows("lake")) < 60
        while "nothing to do" not in audit(*load).stderr:
            pass
        until(lambda: sums(service.windows("lake"), *names, "pending") == (60, 60, 0, 0, 0), service.log)
        assert audit("load", "--to", lake, "--compact").exit_code == 0
        assert audit("load", sent, "--to", lake).exit_code == 0
        service.end(signal.SIGKILL)
        service.start()
        until(lambda: sums(service.windows("lake"), *names) == (60, 60, 0, 0), service.windows)
        assert {row["verdict"] for row in service.windows("lake")} == {"complete"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["not-there", "--reports", "SENT"], "there is no topic 'not-there'"),
        (["SENT", "--reports", "not-there"], "there is no topic 'not-there'"),
        (["SENT", "--reports", "SENT", "--received", "127.0.0.1:1"], "127.0.0.1:1: can't connect"),
        (["SENT", "-b", "127.0.0.1:1"], "127.0.0.1:1: can't connect"),
        (["SENT", "--reports", "SENT", "--lake", "FILE"], "is a file, where a lake is a directory"),
    ],
)
def test_errors_are_one_line(audit: Any, sent: str, tmp_path: Path, arguments: list[str], text: str) -> None:
    (tmp_path / "FILE").write_text("a file")
    names = {"SENT": sent, "FILE": str(tmp_path / "FILE")}
    done = audit("audit", *(names.get(each, each) for each in arguments))
    assert done.exit_code == 1, done.output
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def records(address: str, topic: str) -> list[Record]:
    found: list[Record] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions(topic)
        consumer.assign(partitions)
        wanted = sum(consumer.end_offsets(partitions).values())
        while len(found) < wanted:
            found += consumer.poll(1.0)
    return found


def test_records_of_open_transactions_are_pending_and_those_of_aborted_ones_are_none(
    audit: Any, broker: Address, sent: str, tmp_path: Path
) -> None:
    """Both in the topic itself and in a lake that was loaded from it."""
    copies = f"{sent}-copies"
    found = records(broker.address, sent)
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(copies, 1, 1, KEEP)])
    with Producer(broker.address) as producer:
        for record in records(broker.address, f"{sent}-audit"):
            told = Report.decode(record.value)
            producer.send(f"{sent}-audit", replace(told, topic=copies, number=told.number + 1000).encode())
    reports, lake = ("--reports", f"{sent}-audit"), ("--lake", tmp_path)
    with Producer(broker.address, transactional_id=copies, transaction_timeout=900) as producer:
        for end in ("abort_transaction", None):
            producer.begin_transaction()
            for record in found:
                producer.send(copies, record.value, headers=record.headers)
            producer.flush()
            if end:
                getattr(producer, end)()
        done = audit("audit", copies, *reports)
        assert (done.exit_code, counts(done), pending(done)) == (3, [(60, 0, 0, 0, 0)], 60), done.output
        producer.commit_transaction()
    assert audit("load", copies, "--to", tmp_path).exit_code == 0
    for where in ((), lake):
        done = audit("audit", copies, *reports, *where)
        assert (done.exit_code, counts(done)) == (0, [(60, 60, 0, 0, 0)]), done.output


def pending(result: Result) -> int:
    return sum(int(line.split("\t")[7]) for line in result.stdout.splitlines())


#: Values of a stamp that no audited producer gives, and a row without a stamp.
NO_STAMP, UNSTAMPED = -1, -2
#: The rows that are in a topic, by numbers of one producer, and the reports on it: (first, last, failed, recovered).
CASES: dict[str, tuple[list[int], list[tuple[int, int, list[tuple[int, int]], bool]]]] = {
    "complete": ([*range(10)], [(0, 9, [], False)]),
    "in-parts": ([*range(10)], [(0, 4, [], False), (5, 9, [], False)]),
    "failed": ([0, 1, 4], [(0, 4, [(2, 3)], False)]),
    "missing": ([0, 1, 2], [(0, 4, [], False)]),
    "doubled": ([0, 1, 1, 2], [(0, 2, [], False)]),
    "unreported": ([0, 1, 2], []),
    "recovered": ([*range(6)], [(0, 5, [], True)]),
    "lost": ([*range(6)], [(0, 9, [(9, 9)], True)]),
    "journal-behind": ([*range(8)], [(0, 5, [], True)]),
    "journal-behind-and-lost": ([*range(6), 8], [(0, 5, [], True)]),
    "nothing-arrived": ([], [(0, 3, [], True)]),
    "reported-after-all": ([*range(6)], [(0, 9, [(6, 9)], False), (0, 9, [], True)]),
    "unstamped": ([UNSTAMPED] * 5, []),
    "unstamped-beside-others": ([UNSTAMPED, 0, UNSTAMPED, 1, 2, UNSTAMPED], [(0, 2, [], False)]),
    "unstamped-beside-missing": ([0, UNSTAMPED], [(0, 2, [], False)]),
    "no-stamps": ([0, NO_STAMP, 1, NO_STAMP, UNSTAMPED], [(0, 1, [], False)]),
}
COUNTS = ("reported", "recovered", "received", "missing", "lost", "duplicates", "unreported", "unstamped", "pending")


def headers_of(number: int, start: int, producer: str) -> list[tuple[str, bytes]]:
    """Return the headers of a row of `CASES`."""
    if number == UNSTAMPED:
        return [("other", b"x")]
    stamp = Stamp(start, "here", producer, number).encode()
    return [(HEADER, b"x/p/0/here" if number == NO_STAMP else stamp)]


def test_the_service_and_spark_come_to_the_same_verdicts_and_counts(
    audit: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    """Of topics, and of a lake that was loaded from them."""
    reports, start = f"{topic}-audit", START_MS - START_MS % WINDOW_MS
    topics = {f"{topic}-{name}": case for name, case in CASES.items()}
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(name, 1, 1, KEEP) for name in (reports, *topics)])
    stages = [StageSpec("serving"), StageSpec("lake", "serving", has_offsets=False)]
    ledger = Ledger(stages, topics, LedgerOptions(WINDOW_MS))
    with Producer(broker.address) as producer:
        for name, (numbers, told) in topics.items():
            for number in numbers:
                producer.send(name, b"", headers=headers_of(number, start, name), timestamp=start)
            for at, (first, last, failed, recovered) in enumerate(told):
                count = 0 if recovered else last - first + 1 - sum(end - begin + 1 for begin, end in failed)
                each = Report(name, "here", name, start, WINDOW_MS, count, at, first, last, failed, recovered)
                producer.send(reports, each.encode())
    assert audit("load", *topics, "--to", tmp_path).exit_code == 0
    ends = count_topics(ledger, broker.address, reports)
    look = TableReader(open_table(str(tmp_path)), topics, WINDOW_MS).look({}, {}, START_MS)
    for name in topics:
        reached = {each[1]: offset for each, offset in look.reached.items() if each[0] == name}
        ledger.add("lake", name, look.counted.get(name, Counted()), reached)
    for (stage, name), starts in ledger.needs(START_MS * 2).items():
        ledger.bind(stage, name, starts, {0: ends[TopicPartition(name, 0)]}, ledger.reports_positions)
    ledger.judge(START_MS * 2)
    for stage, where in (("serving", ()), ("lake", ("--lake", tmp_path))):
        found = audit("audit", *topics, "--reports", reports, "--json", *where)
        rows = [Row(stage, name, at, window.stages[stage].judgement or Judgement(Verdict.OPEN))
                for (name, at), window in ledger.windows.items()]  # fmt: skip
        of_service = {row.topic: [row.as_document()[name] for name in (*COUNTS, "verdict")] for row in rows}
        of_spark = {
            row["topic"]: [int(row[name]) for name in COUNTS] + [row["verdict"]]
            for row in map(json.loads, found.stdout.splitlines())
        }
        assert of_spark == of_service, (stage, found.output)
        assert len(of_service) == len(CASES)


def count_topics(ledger: Ledger, address: str, reports: str) -> dict[TopicPartition, int]:
    """Have a ledger count the first partition of each of its topics, and of the audit topic. Return their ends."""
    partitions = [(name, 0) for name in (reports, *ledger.topics)]
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < end for each, end in ends.items()):
            for partition, columns in consumer.poll_columns(1.0, headers=True):
                if partition.topic != reports:
                    counted = Counted()
                    count_columns(counted, 0, columns, WINDOW_MS, START_MS, {})
                    ledger.add("serving", partition.topic, counted, {0: columns.column("offset")[-1].as_py() + 1})
                    continue
                for offset, value in zip(
                    columns.column("offset").to_pylist(), columns.column("value").to_pylist(), strict=True
                ):
                    ledger.report(Report.decode(value), 0, offset)
                    ledger.reports_positions[0] = offset + 1
    return ends
