"""When windows are judged, what the verdicts are, what late data change, and what is kept."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from pylogd.services.audit.counting import Counted
from pylogd.services.audit.judging import Fault, ServerCounts, Verdict, runs
from pylogd.services.audit.state import records_of
from pylogd.services.audit.windows import StageSpec
from tests.audits import SERVING, START, TABLE, TOPIC, WIDTH, AuditedLedger, header, numbers, report

DUE = START + WIDTH + 100
COPY = StageSpec("copy", "serving", settle_ms=1)
TABLE_OF_COPY = StageSpec("table", "copy", has_offsets=False)


def test_a_window_is_judged_when_it_is_due_and_its_bound_has_been_read() -> None:
    audited = AuditedLedger()
    audited.rows("serving", *numbers("alice", range(10)))
    audited.report(report("alice", 0, 9))
    assert audited.judge(DUE - 1) == []
    audited.now = DUE
    audited.bind({"serving": 12})
    (pending,) = audited.ledger.judge(DUE)
    assert (pending.judgement.verdict, pending.judgement.reported) == (Verdict.PENDING, 10)
    audited.rows("serving", header("alice", 10, START + WIDTH), header("alice", 11, START + WIDTH))
    (change,) = audited.ledger.judge(DUE)
    assert (change.stage, change.topic, change.start_ms) == ("serving", TOPIC, START)
    found = change.judgement
    assert (found.verdict, found.reported, found.received, found.share) == (Verdict.COMPLETE, 10, 10, 1.0)
    assert found.servers == {"here": ServerCounts(10, 0)}
    assert audited.ledger.judge(DUE) == []


def test_missing_duplicate_and_unreported_messages() -> None:
    audited = AuditedLedger()
    audited.rows("serving", *numbers("alice", [0, 1, 1, 4]), *numbers("bob", [7]))
    audited.report(report("alice", 0, 5, failed=[(3, 4)]))
    audited.judge()
    found = audited.judgement()
    assert (found.reported, found.received, found.missing, found.duplicates, found.unreported) == (4, 5, 2, 1, 1)
    assert found.verdict is Verdict.INCOMPLETE
    assert found.faults == (
        Fault("missing", "here", "alice", 2, 2), Fault("missing", "here", "alice", 5, 5),
        Fault("unreported", "here", "bob", 7, 7),
    )  # fmt: skip
    assert found.share == 4 / 6


def test_what_a_dead_producer_did_not_deliver_is_lost_at_every_stage() -> None:
    """A job after any stage must not begin as if the hour were complete."""
    audited = AuditedLedger(COPY, TABLE_OF_COPY)
    audited.report(report("alice", 0, 9, recovered=True))
    audited.rows("serving", *numbers("alice", range(6)))
    audited.rows("copy", *numbers("alice", range(5)))
    audited.rows("table", *numbers("alice", range(5)))
    audited.judge()
    audited.judge(START + 5 * WIDTH)
    found = audited.judgement()
    assert (found.verdict, found.lost, found.missing, found.unreported) == (Verdict.INCOMPLETE, 4, 0, 0)
    assert (found.reported, found.recovered, found.received) == (0, 6, 6)
    assert found.faults == (Fault("lost", "here", "alice", 6, 9),)
    for stage in ("copy", "table"):
        there = audited.judgement(stage)
        assert (there.verdict, there.lost, there.missing, there.recovered) == (Verdict.INCOMPLETE, 4, 1, 5)
        assert there.faults == (Fault("missing", "here", "alice", 5, 5), Fault("lost", "here", "alice", 6, 9))


def test_a_journal_that_is_behind_what_arrived_decides_its_window() -> None:
    """A message may be delivered a moment before its number is in the journal. Numbers have no gaps."""
    audited = AuditedLedger(TABLE)
    audited.report(report("alice", 0, 9, recovered=True))
    audited.rows("serving", *numbers("alice", range(13)))
    audited.rows("table", *numbers("alice", range(13)))
    audited.judge()
    for stage in ("serving", "table"):
        found = audited.judgement(stage)
        assert (found.verdict, found.recovered, found.lost, found.unreported) == (Verdict.COMPLETE, 13, 0, 0)
    audited = AuditedLedger()
    audited.report(report("alice", 0, 9, recovered=True))
    audited.rows("serving", *numbers("alice", [*range(10), 12]), *numbers("bob", [0]))
    audited.judge()
    found = audited.judgement()
    assert (found.verdict, found.recovered, found.lost, found.unreported) == (Verdict.INCOMPLETE, 11, 2, 1)
    assert found.faults == (Fault("lost", "here", "alice", 10, 11), Fault("unreported", "here", "bob", 0, 0))


def test_a_producer_that_reported_after_all_lost_nothing() -> None:
    """A journal's report is about what the producer's own reports do not cover."""
    audited = AuditedLedger()
    audited.rows("serving", *numbers("alice", range(6)))
    audited.report(report("alice", 0, 9, 1 << 62, recovered=True), report("alice", 0, 9, failed=[(6, 9)]))
    audited.judge()
    assert (audited.judgement().verdict, audited.judgement().lost) == (Verdict.COMPLETE, 0)


def test_a_message_in_no_report_makes_the_window_unknown_until_its_report_comes() -> None:
    audited = AuditedLedger()
    audited.rows("serving", *numbers("alice", range(3)))
    audited.judge()
    assert (audited.judgement().verdict, audited.judgement().unreported) == (Verdict.UNKNOWN, 3)
    audited.report(report("alice", 0, 2))
    (change,) = audited.judge()
    assert change.before is not None
    assert (change.before.verdict, change.judgement.verdict) == (Verdict.UNKNOWN, Verdict.COMPLETE)
    assert audited.ledger.windows[TOPIC, START].stages["serving"].revision == 1


def test_late_data_keep_the_verdict_until_the_stage_has_passed_them() -> None:
    audited = AuditedLedger()
    audited.rows("serving", *numbers("alice", range(3)))
    audited.report(report("alice", 0, 2))
    audited.judge()
    audited.report(report("bob", 0, 4))
    audited.bind({"serving": 8})
    assert audited.ledger.judge(audited.now) == [], "bob's messages may be below the new bound"
    assert audited.judgement().verdict is Verdict.COMPLETE
    audited.rows("serving", *numbers("bob", range(5)))
    (change,) = audited.ledger.judge(audited.now)
    assert (change.judgement.verdict, change.judgement.reported) == (Verdict.COMPLETE, 8)
    audited.report(report("carol", 0, 0))
    (change,) = audited.judge()
    assert (change.judgement.verdict, change.judgement.missing) == (Verdict.INCOMPLETE, 1)


def test_a_later_stage_must_have_as_many_messages_without_stamps() -> None:
    """They are of clients that are not audited. What the first stage has of them is all that is known."""
    audited = AuditedLedger(COPY, TABLE_OF_COPY)
    audited.rows("serving", *numbers("alice", [0]))
    audited.report(report("alice", 0, 0))
    audited.unstamped("serving", 5)
    audited.judge()
    found = audited.judgement()
    assert (found.verdict, found.received, found.unstamped) == (Verdict.COMPLETE, 1, 5)
    audited.rows("copy", *numbers("alice", [0]))
    audited.unstamped("copy", 5)
    audited.unstamped("table", 3)
    audited.judge()
    assert (audited.judgement("table").verdict, audited.judgement("table").pending) == (Verdict.PENDING, 3)
    audited.rows("table", *numbers("alice", [0]))
    audited.log["table"] = 6
    audited.ledger.add("table", TOPIC, Counted(), {0: 6})
    audited.judge(START + 5 * WIDTH)
    assert (audited.judgement("copy").verdict, audited.judgement("copy").unstamped) == (Verdict.COMPLETE, 5)
    there = audited.judgement("table")
    assert (there.verdict, there.missing, there.unstamped) == (Verdict.INCOMPLETE, 2, 3)
    audited.ledger.add("copy", TOPIC, Counted(restamped=True), {})
    audited.ledger.add("serving", TOPIC, Counted(restamped=True), {})
    audited.judge(START + 6 * WIDTH)
    assert audited.judgement("table").verdict is Verdict.COMPLETE, "the windows of others can't be compared"


def test_a_table_is_judged_up_to_its_committed_offsets() -> None:
    audited = AuditedLedger(TABLE)
    audited.rows("serving", *numbers("alice", range(10)))
    audited.report(report("alice", 0, 9))
    audited.rows("table", *numbers("alice", range(7)))
    audited.judge()
    assert audited.judgement().verdict is Verdict.COMPLETE
    found = audited.judgement("table")
    assert (found.verdict, found.pending, found.missing, found.share) == (Verdict.PENDING, 3, 0, 0.7)
    audited.rows("table", *numbers("alice", [7, 8, 8]))
    audited.judge()
    found = audited.judgement("table")
    assert (found.verdict, found.missing, found.duplicates) == (Verdict.INCOMPLETE, 1, 1)


def test_a_duplicate_is_told_before_the_stage_has_passed() -> None:
    audited = AuditedLedger(TABLE)
    audited.rows("serving", *numbers("alice", range(10)))
    audited.report(report("alice", 0, 9))
    audited.rows("table", *numbers("alice", [0, 0]))
    audited.judge()
    found = audited.judgement("table")
    assert (found.verdict, found.duplicates, found.pending) == (Verdict.INCOMPLETE, 1, 9)


def test_a_later_stage_must_have_what_the_stage_before_it_has_though_nobody_reported_it() -> None:
    audited = AuditedLedger(TABLE)
    audited.rows("serving", *numbers("alice", range(3)))
    audited.rows("table", *numbers("alice", [0, 2]), ("other", b""))
    audited.judge()
    found = audited.judgement("table")
    assert (found.verdict, found.missing, found.unreported) == (Verdict.INCOMPLETE, 1, 2)


def test_a_mirror_is_bound_once_it_has_committed_what_its_source_had() -> None:
    audited = AuditedLedger(StageSpec("mirror", "serving"))
    audited.rows("serving", *numbers("alice", range(3)))
    audited.report(report("alice", 0, 2))
    audited.rows("mirror", *numbers("alice", [0, 1]))
    audited.judge()
    assert audited.judgement("mirror").verdict is Verdict.PENDING
    audited.ledger.committed["mirror"] = {(TOPIC, 0): 2}
    audited.judge()
    assert audited.judgement("mirror").verdict is Verdict.PENDING
    audited.rows("mirror", *numbers("alice", [2]))
    audited.ledger.committed["mirror"] = {(TOPIC, 0): 3}
    audited.judge()
    assert audited.judgement("mirror").verdict is Verdict.COMPLETE


def test_a_copy_that_tells_nothing_is_bound_some_time_after_its_source() -> None:
    audited = AuditedLedger(StageSpec("copy", "serving", settle_ms=5000))
    audited.rows("serving", *numbers("alice", range(3)))
    audited.report(report("alice", 0, 2))
    audited.judge(DUE)
    assert audited.judge(DUE + 4999) == []
    assert audited.judgement("copy").verdict is Verdict.PENDING
    (change,) = audited.judge(DUE + 5000)
    assert (change.stage, change.judgement.missing) == ("copy", 3)


def test_a_table_needs_what_was_read_while_the_bound_was_looked_up() -> None:
    audited = AuditedLedger(TABLE)
    audited.rows("serving", *numbers("alice", range(3)))
    audited.report(report("alice", 0, 2))
    audited.rows("table", *numbers("alice", range(3)))
    needs = audited.ledger.needs(DUE)
    audited.rows("serving", header("bob", 0))
    for (stage, topic), starts in needs.items():
        audited.ledger.bind(stage, topic, starts, {0: 3}, {0: 1})
    audited.ledger.judge(DUE)
    assert audited.judgement("table").verdict is Verdict.PENDING
    audited.rows("table", header("bob", 0))
    audited.judge()
    assert (audited.judgement("table").verdict, audited.judgement("table").missing) == (Verdict.UNKNOWN, 0)


def test_what_may_have_been_deleted_is_unknown() -> None:
    audited = AuditedLedger()
    audited.rows("serving", *numbers("alice", [3, 4]))
    audited.report(report("alice", 0, 4), report("alice", 5, 6, 2, start=START + WIDTH))
    audited.ledger.trim("serving", TOPIC, START + 500)
    audited.judge(START + 3 * WIDTH)
    assert (audited.judgement().verdict, audited.judgement().missing) == (Verdict.UNKNOWN, 3)
    assert audited.judgement(start=START + WIDTH).verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_a_copied_message_the_last_stamp_of_a_reporting_producer_counts(order: tuple[int, int]) -> None:
    """The copier reports on this topic; the first producer reported on another one."""
    audited = AuditedLedger()
    copies = [[header("alice", number), header("copier", number)] for number in range(3)]
    steps = [lambda: audited.rows("serving", *copies), lambda: audited.report(report("copier", 0, 2))]
    for step in order:
        steps[step]()
        audited.judge()
    found = audited.judgement()
    assert (found.verdict, found.received, found.reported) == (Verdict.COMPLETE, 3, 3)
    audited.report(report("alice", 0, 0, start=START + WIDTH))
    audited.judge(START + 3 * WIDTH)
    assert audited.judgement().received == 3, "the copier reports too, and is the last one"


def test_windows_before_the_first_one_and_other_topics_are_ignored() -> None:
    audited = AuditedLedger(from_ms=START)
    audited.rows("serving", header("alice", 0, START - 1), header("alice", 1))
    audited.report(report("alice", 0, 0, start=START - WIDTH))
    assert list(audited.ledger.windows) == [(TOPIC, START)]


def test_periods_are_closed_in_order_once_they_are_stored_published_and_late_data_are_over() -> None:
    audited = AuditedLedger()
    ledger = audited.ledger
    audited.rows("serving", *numbers("alice", range(3)))
    audited.report(report("alice", 0, 2))
    end = START + 10 * WIDTH
    over = end + 5 * WIDTH
    audited.judge(over)
    assert ledger.close(over, {TOPIC: end}) == [] and ledger.windows, "not stored yet"
    ledger.take()
    ledger.close(over, {})
    ledger.close(over - 1, {TOPIC: end})
    assert ledger.windows
    ledger.close(over, {TOPIC: end})
    assert (ledger.windows, ledger.counts, ledger.closed) == ({}, 0, {TOPIC: end})
    audited.rows("serving", *numbers("alice", range(3)))
    assert (ledger.windows, ledger.late) == ({}, 3)


def test_the_oldest_period_is_closed_as_unknown_if_there_are_too_many_counts() -> None:
    audited = AuditedLedger(TABLE, most_counts=4)
    for at in range(3):
        start = START + 10 * WIDTH * at
        audited.rows("serving", header("alice", at, start))
        audited.report(report("alice", at, at, at, start=start))
    ledger = audited.ledger
    audited.judge(START + 40 * WIDTH)
    assert ledger.counts == 6
    changes = ledger.close(audited.now, {})
    assert [(each.stage, each.start_ms, each.judgement.verdict) for each in changes] == [
        ("table", START, Verdict.UNKNOWN)
    ]
    ledger.take()
    ledger.close(audited.now, {})
    assert (ledger.counts, ledger.closed) == (4, {TOPIC: START + 10 * WIDTH})


def test_a_complete_window_is_small() -> None:
    audited = AuditedLedger()
    for begin in range(3):  # every third message, as from three partitions
        audited.rows("serving", *numbers("alice", range(begin, 60_000, 3)))
    audited.report(report("alice", 0, 59_999))
    audited.judge()
    sizes = [len(value) for _, value in records_of(audited.ledger.take())]
    assert len(sizes) == 2 and max(sizes) < 1000


def test_a_topic_made_anew_is_read_from_its_beginning() -> None:
    audited = AuditedLedger()
    audited.rows("serving", *numbers("alice", range(3)))
    audited.ledger.rewind("serving", TOPIC)
    audited.log["serving"] = 0
    audited.rows("serving", *numbers("alice", [3]))
    audited.report(report("alice", 0, 3))
    audited.judge()
    assert audited.judgement().verdict is Verdict.COMPLETE
    assert audited.ledger.positions["serving"] == {(TOPIC, 0): 1}


def test_reports_of_shorter_windows_are_added_and_of_others_refused() -> None:
    audited = AuditedLedger(width_ms=2 * WIDTH)
    audited.report(report("alice", 0, 0), report("alice", 1, 1, 2, start=START + WIDTH))
    assert [len(each.reports["alice"].settled) for each in audited.ledger.windows.values()] == [2]
    other = AuditedLedger(width_ms=1500)
    other.report(report("alice", 0, 0))
    assert (other.ledger.windows, other.ledger.invalid) == ({}, 1)


def test_runs_of_numbers() -> None:
    assert list(runs(BitMap64([5, 6, 7, 9, 1 << 40]), 10)) == [(5, 7), (9, 9), (1 << 40, 1 << 40)]
    assert list(runs(BitMap64(range(0, 100, 2)), 3)) == [(0, 0), (2, 2), (4, 4)]
    assert SERVING.name == "serving"
