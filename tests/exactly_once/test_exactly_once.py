"""The parts of `make exactly-once`: plans are reproducible, and the comparison finds faults."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.exactly_once.__main__ import report, settings
from tests.exactly_once.events import CountFault, check
from tests.exactly_once.harness import Outcome
from tests.exactly_once.plan import Moment, Victim, plan
from tests.exactly_once.query import Checkpoint

WANTED = Counter({"0/a/k": 3, "60000/a/k": 2})


def test_a_plan_is_determined_by_its_seed() -> None:
    assert plan(40, 7) == plan(40, 7)
    assert plan(40, 7) != plan(40, 8)
    assert {each.victim for each in plan(10, 7)} == set(Victim)
    assert {each.moment for each in plan(4, 7)} == set(Moment)


def test_rounds_divide_all_kills() -> None:
    rounds = settings(50, 1)
    assert sum(each.kills for each in rounds) == 50
    assert {each.brokers for each in rounds} == {1, 3}


def test_an_outcome_is_restored_from_its_json_and_reported() -> None:
    outcome = Outcome(settings(50, 1)[0], survived=3, repeated=2, events=12345)
    outcome.deaths[Victim.WORKER, Moment.OPEN] += 2
    outcome.ends["Error: no"] += 1
    assert Outcome.from_json(outcome.as_json()) == outcome
    assert f"| killed when ... | {Moment.OPEN} |\n| --- | ---: |\n| {Victim.WORKER} | 2 |\n" in report([outcome], 1)
    assert "12,345 committed events" in report([outcome], 1)


def test_right_counts_have_no_faults() -> None:
    assert check(WANTED, [("60000/a/k", 2), ("0/a/k", 3)]) == 2


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([("0/a/k", 3)], "60000/a/k: 2 is missing"),
        ([("0/a/k", 3), ("60000/a/k", 2), ("0/a/k", 3)], "0/a/k was written 2 times"),
        ([("0/a/k", 3), ("60000/a/k", 1)], "60000/a/k: 1, not 2"),
        ([("0/a/k", 3), ("60000/a/k", 2), ("0/b/k", 1)], "0/b/k: 1, not 0"),
    ],
)
def test_missing_repeated_and_wrong_counts_are_found(found: list[tuple[str, int]], text: str) -> None:
    with pytest.raises(CountFault, match=text):
        check(WANTED, found)


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert (checkpoint.planned(), checkpoint.committed(), checkpoint.events(), checkpoint.query_id()) == (
        -1,
        -1,
        0,
        None,
    )
    (tmp_path / "metadata").write_text('{"id":"some-id"}')
    (tmp_path / "offsets").mkdir()
    offsets = {"a": {"0": 5, "1": 6}, "b": {"0": 7}, "pylogd:topicIds": {"a": "00"}}
    (tmp_path / "offsets/2").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offsets)}')
    (tmp_path / "offsets/.3.tmp").write_text("")
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits/1").write_text("v1\n{}")
    assert (checkpoint.planned(), checkpoint.committed(), checkpoint.events(), checkpoint.query_id()) == (
        2,
        1,
        18,
        "some-id",
    )
