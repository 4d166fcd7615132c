"""Reading topics: where it begins, what a log that lost its beginning does, new partitions, and brokers that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.client.core.audit import Report
from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.state import Resume
from pylogd.services.audit.topics import ReportsReader, Since, TopicStage
from pylogd.wire.messages import ApiKey
from pylogd.wire.records import HEADER_SIZE, NewRecord, encode_batch
from tests.audits import SERVING, START, TOPIC, numbers, options, report
from tests.fakes import broker as fake
from tests.fakes.memory_broker import MemoryBroker, MemoryReactor
from tests.fakes.storage import fix_crc


class Reading:
    """A stage of a topic on a broker in memory."""

    def __init__(self) -> None:
        self.reactor = MemoryReactor()
        self.server = MemoryBroker(self.reactor, partitions=2)
        self.ledger = Ledger([SERVING], [TOPIC], options())
        self.stage: Any = None

    def start(self, positions: dict[tuple[str, int], int] | None = None, at_ms: int | None = None) -> None:
        self.stage = TopicStage(
            self.reactor, SERVING, self.server.address, self.ledger, Since(at_ms), lambda: START
        )  # fmt: skip
        self.reactor.result(self.stage.start(positions))

    def append(self, partition: int, headers: Iterable[tuple[str, bytes]]) -> None:
        records = [NewRecord(None, b"v", START + at, [each]) for at, each in enumerate(headers)]
        self.server.append(partition, encode_batch(records))

    def run(self, seconds: float = 3.0) -> None:
        self.reactor.run(seconds)

    def numbers(self) -> list[int]:
        window = self.ledger.windows.get((TOPIC, START))
        tallies = {} if window is None else window.stages["serving"].tallies
        return sorted(number for tally in tallies.values() for number in tally.numbers)

    def rows(self) -> int:
        return sum(tally.rows for tally in self.ledger.windows[TOPIC, START].stages["serving"].tallies.values())


@pytest.fixture
def reading() -> Iterator[Reading]:
    found = Reading()
    yield found
    if found.stage is not None:
        found.reactor.result(found.stage.stop())


@pytest.mark.parametrize(("at_ms", "seen"), [(None, [3]), (0, [0, 1, 2, 3]), (START + 1, [0, 1, 2, 3])])
def test_the_first_run_begins_where_it_was_told_to(reading: Reading, at_ms: int | None, seen: list[int]) -> None:
    reading.append(0, numbers("alice", [0, 1, 2]))
    reading.start(at_ms=at_ms)
    reading.append(1, numbers("alice", [3]))
    reading.run()
    assert reading.numbers() == seen
    assert reading.ledger.positions["serving"] == {(TOPIC, 0): 3, (TOPIC, 1): 1}


def test_a_later_run_goes_on_where_it_was(reading: Reading) -> None:
    reading.append(0, numbers("alice", [0, 1, 2]))
    reading.start({(TOPIC, 0): 2})
    reading.run()
    assert reading.numbers() == [2]
    assert reading.reactor.result(reading.stage.ends(TOPIC)) == {0: 3, 1: 0}


def test_messages_that_were_deleted_before_they_were_read_make_windows_unknown(reading: Reading) -> None:
    reading.append(0, numbers("alice", [0]))
    reading.append(0, numbers("alice", [1, 2]))
    del reading.server.logs[0][0]
    reading.server.starts[0] = 1
    reading.start({(TOPIC, 0): 0})
    reading.run()
    reading.ledger.report(report("alice", 0, 2), 0, 0)
    reading.ledger.reports_positions[0] = 1
    reading.ledger.bind("serving", TOPIC, [START], {0: 3, 1: 0}, {0: 1})
    (change,) = reading.ledger.judge(START + 10_000)
    assert (change.judgement.verdict, change.judgement.missing) == (Verdict.UNKNOWN, 1)


def test_a_log_that_is_shorter_than_what_was_read_is_read_from_its_beginning(reading: Reading) -> None:
    reading.append(0, numbers("alice", [0, 1]))
    reading.start({(TOPIC, 0): 7})
    reading.run()
    assert (reading.numbers(), reading.ledger.positions["serving"][TOPIC, 0]) == ([0, 1], 2)
    assert ("serving", TOPIC) in reading.ledger.trimmed


def test_a_topic_that_was_made_anew_while_the_audit_was_down_is_read_from_its_beginning(reading: Reading) -> None:
    """It may have more records than were read of the former one."""
    reading.append(0, numbers("alice", [0, 1]))
    reading.ledger.topic_ids["serving"] = {TOPIC: "0f" * 16}
    reading.start({(TOPIC, 0): 1})
    reading.run()
    assert (reading.numbers(), reading.ledger.positions["serving"][TOPIC, 0]) == ([0, 1], 2)
    assert ("serving", TOPIC) in reading.ledger.trimmed
    assert reading.ledger.topic_ids["serving"] == {TOPIC: reading.server.topic_id.hex()}


def test_a_topic_that_is_made_anew_while_it_is_read(reading: Reading) -> None:
    reading.append(0, numbers("alice", [0, 1]))
    reading.start()
    reading.run()
    assert reading.ledger.trimmed == {}
    reading.server.topic_id = b"\x0f" * 16
    del reading.server.logs[0][:]
    reading.append(0, numbers("alice", [2, 3, 4]))
    reading.reactor.result(reading.stage.ends(TOPIC))
    reading.run(6.0)
    assert 2 in reading.numbers()
    assert ("serving", TOPIC) in reading.ledger.trimmed


def test_the_offsets_are_looked_up_anew_after_an_error(reading: Reading) -> None:
    """A log may lose its beginning while it is read."""
    reading.append(0, numbers("alice", [0, 1]))
    reading.start({})
    reading.server.on(ApiKey.FETCH, *[fake.refuse_fetch(ErrorCode.OFFSET_OUT_OF_RANGE)] * 2)
    reading.run(6.0)
    reading.append(0, numbers("alice", [2]))
    reading.run(6.0)
    assert (reading.numbers(), reading.rows()) == ([0, 1, 2], 3)


def damaged(headers: Iterable[tuple[str, bytes]], *, has_crc: bool) -> bytes:
    """Return a batch whose first record has an impossible length. has_crc: whether its CRC is right."""
    batch = bytearray(encode_batch([NewRecord(None, b"v", START, [each]) for each in headers]))
    batch[HEADER_SIZE] = 1
    return fix_crc(bytes(batch)) if has_crc else bytes(batch)


@pytest.mark.parametrize("has_crc", [True, False])
def test_a_damaged_batch_keeps_nothing_else_from_being_counted_once(reading: Reading, has_crc: bool) -> None:
    """What is in front of it, and the other partitions."""
    reading.append(0, numbers("alice", [0, 1]))
    reading.server.append(0, damaged(numbers("alice", [2]), has_crc=has_crc))
    reading.append(1, numbers("alice", [7]))
    reading.start({})
    reading.run(6.0)
    assert (reading.numbers(), reading.rows()) == ([0, 1, 7], 3)
    assert reading.ledger.positions["serving"] == {(TOPIC, 0): 2, (TOPIC, 1): 1}
    assert reading.ledger.failures > 0


def test_other_work_has_its_turn_while_large_batches_are_counted(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pylogd.services.audit.topics._BYTES", 100)
    for number in range(5):
        reading.append(0, numbers("alice", [2 * number, 2 * number + 1]))
    reading.start({})
    reading.run()
    assert (reading.numbers(), reading.rows()) == ([*range(10)], 10)
    assert reading.ledger.positions["serving"][TOPIC, 0] == 10


def test_an_audit_of_clusters_starts_without_pyarrow() -> None:
    code = "import sys, pylogd.services.audit.process as _; sys.exit(bool({'pyarrow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_a_partition_that_is_added_is_read_from_its_beginning(reading: Reading) -> None:
    reading.start()
    reading.server.add_partition()
    reading.append(2, numbers("alice", [0]))
    assert reading.reactor.result(reading.stage.ends(TOPIC)) == {0: 0, 1: 0, 2: 1}
    reading.run()
    assert reading.numbers() == [0]


def test_reports_are_read_and_what_is_none_is_ignored() -> None:
    reading = Reading()
    reader = ReportsReader(reading.reactor, reading.server.address, TOPIC, reading.ledger, Since(0))
    values: list[Report] = [report("alice", 0, 2), report("bob", 0, 0)]
    records = [NewRecord(None, each.encode(), START) for each in values]
    reading.server.append(0, encode_batch([records[0], NewRecord(None, b"odd", START), records[1]]))
    reading.reactor.result(Deferred.fromCoroutine(reader.start(None)))
    reading.run()
    assert sorted(reading.ledger.windows[TOPIC, START].reports) == ["alice", "bob"]
    assert (reading.ledger.invalid, reading.ledger.reports_positions) == (1, {0: 3, 1: 0})
    reading.reactor.result(Deferred.fromCoroutine(reader.stop()))


def test_the_ids_of_topics_are_stored() -> None:
    resume = Resume(options(), topic_ids={"serving": {TOPIC: "0f" * 16}})
    stored = resume.encode()
    assert Resume.decode(stored, options()) == resume
    document = json.loads(stored)
    del document["topic_ids"]  # by an earlier release
    assert Resume.decode(json.dumps(document).encode(), options()) == Resume(options())
