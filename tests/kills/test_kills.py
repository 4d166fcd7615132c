"""The parts of `make kills`: plans are reproducible, and the comparison of lake and log finds faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pylogd.tables.parquet.lake import Commit, DataFile
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes.broker import FakeBroker
from tests.kills.__main__ import settings
from tests.kills.comparing import LakeFault, check_history, compare
from tests.kills.harness import CLUSTER, Outcome
from tests.kills.plan import Moment, Victim, plan

START_MS = 1_700_000_000_000
PLACE = "topic=t/date=2023-11-14/hour=22"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize("executors", [False, True])
def test_a_plan_is_determined_by_its_seed(executors: bool) -> None:
    first = plan(40, 7, executors=executors)
    assert first == plan(40, 7, executors=executors)
    assert first != plan(40, 8, executors=executors)
    assert {each.victim for each in plan(15, 7, executors=executors)} == set(Victim) - (
        set() if executors else {Victim.EXECUTOR}
    )


def test_rounds_divide_all_kills_and_messages() -> None:
    rounds = settings(50, 5_000_000, 1)
    assert (sum(each.kills for each in rounds), sum(each.messages for each in rounds)) == (50, 5_000_000)
    assert {each.streaming for each in rounds} == {True, False}
    assert CLUSTER in {each.master for each in rounds}


def test_an_outcome_is_restored_from_its_json() -> None:
    outcome = Outcome(settings(50, 1000, 1)[0], survived=3, compared=200)
    outcome.deaths[Victim.WORKER, Moment.WRITING] += 2
    outcome.ends["Error: no"] += 1
    assert Outcome.from_json(outcome.as_json()) == outcome


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker with one partition of six records in two batches."""
    with FakeBroker() as broker:
        for first in (0, 3):
            some = [NewRecord(b"k", b"%d" % number, START_MS + number, ()) for number in range(first, first + 3)]
            broker.append(0, bytes(encode_batch(some)))
        yield broker


def table(numbers: list[int]) -> pa.Table:
    """Return these records as a loader writes them."""
    count = len(numbers)
    return pa.table(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "timestamp": pa.array([(START_MS + number) * 1000 for number in numbers], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "headers": pa.array([None] * count, HEADERS),
        }
    )


def write(root: Path, *parts: pa.Table, place: str = PLACE) -> None:
    """Write a lake with a commit for each part, with the right offsets."""
    commits = root / "_pylogd/commits"
    commits.mkdir(parents=True)
    (root / place).mkdir(parents=True)
    for number, part in enumerate(parts, 1):
        path = f"{place}/{number:06d}.parquet"
        pq.write_table(part, root / path)
        file = DataFile(path, "staged", (root / path).stat().st_size, part.num_rows)
        commit = Commit(number, "load", 0, {"t": {"0": 3 * number}}, {"t": {"0": 3}}, (file,))
        (commits / f"{number:020}.json").write_bytes(commit.as_bytes())
        (commits / f"{number:020}.done").touch()


def test_a_correct_lake_has_no_faults(broker: FakeBroker, tmp_path: Path) -> None:
    write(tmp_path, table([2, 0, 1]), table([3, 4, 5]))
    assert compare(broker.address, "t", tmp_path) == 6
    assert check_history(tmp_path) == 2


def changed() -> pa.Table:
    good = table([3, 4, 5])
    return good.set_column(1, "value", pa.array([b"3", b"x", b"5"], pa.binary()))


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (lambda: table([3, 5]), r"1 offsets are not in the lake \(4\)"),
        (lambda: table([3, 4, 4, 5]), r"1 are there more than once \(4\)"),
        (lambda: table([3, 4, 5, 6]), r"1 are not in the log \(6\)"),
        (changed, "offset 4: value is b'x', not b'4'"),
    ],
)
def test_missing_repeated_and_changed_records_are_found(
    broker: FakeBroker, tmp_path: Path, second: Callable[[], pa.Table], text: str
) -> None:
    write(tmp_path, table([0, 1, 2]), second())
    with pytest.raises(LakeFault, match=text):
        compare(broker.address, "t", tmp_path)


def test_misplaced_files_are_found(broker: FakeBroker, tmp_path: Path) -> None:
    write(tmp_path / "hour", table([0, 1, 2]), table([3, 4, 5]), place=PLACE.replace("22", "23"))
    with pytest.raises(LakeFault, match="has a record of 2023-11-14 22"):
        compare(broker.address, "t", tmp_path / "hour")
    write(tmp_path / "stray", table([0, 1, 2]), table([3, 4, 5]))
    pq.write_table(table([9]), tmp_path / "stray" / PLACE / "stray.parquet")
    with pytest.raises(LakeFault, match=r"not of any commit: .*stray\.parquet"):
        compare(broker.address, "t", tmp_path / "stray")


def test_gaps_between_commits_are_found(tmp_path: Path) -> None:
    write(tmp_path, table([0, 1, 2]), table([3, 5]))
    with pytest.raises(LakeFault, match="commit 2: 2 rows for 3 offsets"):
        check_history(tmp_path)
    (tmp_path / f"_pylogd/commits/{1:020}.json").unlink()
    with pytest.raises(LakeFault, match="is commit 2; expected 1"):
        check_history(tmp_path)
