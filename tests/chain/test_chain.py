"""The chain of `make chain`: a short run of it, and the parts that compare find faults."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pylogd.client.core.audit import HEADER, Stamp
from tests.chain.journals import Event, Handed, Sent, Window, check_group, check_log, windows
from tests.chain.page import drawn, lines
from tests.chain.plan import QUICK, Setting, Victim, strikes
from tests.chain.run import Chain, Outcome
from tests.kills.comparing import LakeFault
from tests.kills.outcomes import tell

START_MS = 1_700_000_000_000
WIDTH_MS = 1000


def test_a_plan_strikes_every_victim_in_each_round() -> None:
    plan = strikes(Setting(rounds=3, seed=7))
    assert plan == strikes(Setting(rounds=3, seed=7)) != strikes(Setting(rounds=3, seed=8))
    for at in range(0, len(plan), len(Victim)):
        assert {each.victim for each in plan[at : at + len(Victim)]} == set(Victim)


def test_a_journal_is_read_without_its_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "p.journal"
    path.write_text("S 0 100\nS 1 101\nA 0 2 17\nF 1 it failed\nS 2")
    found = Sent.read(path)
    assert (found.sent, found.acked, found.failed) == ({0: 100, 1: 101}, {0: (2, 17)}, {1: "it failed"})


def log_of(*events: tuple[int, int]) -> pa.Table:
    """Return a log of a producer's events: number and time in milliseconds after the start."""
    stamps = [[{"key": HEADER, "value": Stamp(START_MS + ms, "here", "p", number).encode()}] for number, ms in events]
    return pa.table(
        {
            "offset": list(range(len(events))),
            "value": [b"p %d %d ..." % (number, START_MS + ms) for number, ms in events],
            "headers": pa.array(stamps, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
    )


def sent(acked: dict[int, tuple[int, int]], *times: int) -> Sent:
    return Sent({number: START_MS + ms for number, ms in enumerate(times)}, acked)


def test_a_log_that_agrees_with_the_journals_has_no_faults() -> None:
    journals = {"p": sent({0: (0, 0)}, 10, 20)}
    assert check_log({0: log_of((0, 10), (1, 20))}, journals) == {Event("p", 0), Event("p", 1)}


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (log_of((1, 20)), "1 acknowledged events of p are not where they were: 0"),
        (log_of((1, 20), (0, 10)), "1 acknowledged events of p are not where they were: 0"),
        (log_of((0, 10), (0, 10)), "is in the log twice"),
        (log_of((0, 10), (7, 20)), "nobody sent"),
    ],
)
def test_lost_doubled_and_foreign_events_are_found(log: pa.Table, text: str) -> None:
    with pytest.raises(LakeFault, match=text):
        check_log({0: log}, {"p": sent({0: (0, 0)}, 10, 20)})


def test_what_a_killed_producer_lost_is_known_by_window() -> None:
    journals = {"p": sent({}, 300, 400, 1300, 1310, 2700)}
    found = windows([log_of((0, 300))], journals, {"p": [4]}, WIDTH_MS)
    first, second, third = (found[START_MS + at * WIDTH_MS] for at in range(3))
    assert first == Window(received=1, lost=1) and first.verdicts() == {"incomplete"}
    assert second == Window(lost=2)
    assert third == Window(lost=1, unsure=1), "it was sent just before the producer was killed"
    assert third.verdicts() == {"complete", "incomplete"}
    assert Window(received=5).verdicts() == {"complete"}
    with pytest.raises(LakeFault, match="p was not killed after it sent 4"):
        windows([log_of((0, 300))], journals, {"p": [3]}, WIDTH_MS)


def assigned(at: float, member: str) -> Handed:
    return Handed(at, member, 0, 0, -1)


def test_reads_of_a_group_are_complete_if_members_read_in_turns() -> None:
    log = [assigned(1, "a"), Handed(2, "a", 0, 0, 4), assigned(3, "b"), Handed(4, "b", 0, 3, 9)]
    assert check_group("g", log, {0: 10}) == 12
    with pytest.raises(LakeFault, match="nobody was handed 1 offsets of partition 0: 10"):
        check_group("g", log, {0: 11})


def test_a_frozen_member_that_hands_out_what_others_read_is_found() -> None:
    log = [assigned(1, "a"), Handed(2, "a", 0, 0, 4), assigned(3, "b"), Handed(4, "b", 0, 5, 9)]
    assert check_group("g", [*log, assigned(5, "a"), Handed(6, "a", 0, 9, 9)], {0: 10}) == 11
    with pytest.raises(LakeFault, match=r"a was handed .* after b"):
        check_group("g", [*log, Handed(5, "a", 0, 5, 9)], {0: 10})


def test_the_page_counts_and_the_plot_marks_strikes() -> None:
    outcome = Outcome(QUICK, [(START_MS + 3000, Victim.AUDIT)], START_MS, reads={"steady": 5, "late1": 7})
    outcome.latencies = [(START_MS + at * 500, 1000 + at) for at in range(20)]
    outcome.windows["complete"] = 3
    page = "\n".join(lines(outcome))
    assert "| the audit service | 1 |" in page and "3 times *complete*" in page and "1.0 s on average" in page
    assert ">audit</text>" in drawn(outcome)


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_and_the_audit_says_so(tmp_path: Path) -> None:
    outcome = Chain(QUICK, tmp_path / "run", tell).run()
    assert outcome.sent == QUICK.events
    assert outcome.received == outcome.sent - outcome.lost
    assert outcome.lost, "a producer was killed with a full buffer"
    assert outcome.windows["incomplete"], "and the audit says so"
    assert {victim for _, victim in outcome.struck} == set(Victim)
