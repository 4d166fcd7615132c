"""The parts of `make kills`: plans are reproducible, and the comparisons of lake and logs find faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pylogd.lake.tables.parquet.commits import Commit, DataFile
from pylogd.wire.records import NewRecord, decode_batch, encode_batch
from tests.fakes.broker import FakeBroker
from tests.kills import pipeline, strikes
from tests.kills.__main__ import settings
from tests.kills.comparing import LakeFault, check_history, compare, compare_copy
from tests.kills.harness import CLUSTER, Outcome
from tests.kills.lakes import on_disk
from tests.kills.outcomes import kept_outcome, outcome_of, tables
from tests.kills.page import Section, write_section
from tests.kills.plan import Moment, Victim, plan
from tests.kills.writer import PARTITIONS, SET, Writer
from tests.pages import NOTES

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


def test_strikes_hit_mirror_loader_and_compactor_together() -> None:
    found = strikes.strikes(50, 7)
    assert found == strikes.strikes(50, 7) != strikes.strikes(50, 8)
    parts = [("MIRROR", "MIRROR_WORKER", "CONTROLLER"), ("LOADER", "DRIVER", "JVM", "PYTHON_WORKER"), ("COMPACTOR",)]
    for each in found:
        names = [victim.name for victim in each.victims]
        assert [sum(name in part for name in names) for part in parts] == [1, 1, 1]
    assert {victim for each in found for victim in each.victims} == set(strikes.Victim)
    assert {each.moment for each in found} == set(strikes.Moment)
    assert sum(each.compacts for each in found) == 10


def test_an_outcome_of_a_pipeline_is_restored_from_its_json() -> None:
    outcome = pipeline.Outcome(pipeline.Setting(10, 1000, 1, "s3"), killed=70, compactions=3, longest=12.5)
    outcome.deaths[strikes.Victim.MIRROR, strikes.Moment.PLACING] += 2
    assert pipeline.Outcome.from_json(outcome.as_json()) == outcome


def test_a_section_is_written_and_others_stay(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    write_section(page, Section.MIRROR, ["mirror"])
    with page.open("a") as file:
        file.write(f"\n{NOTES}\n\nby hand\n")
    write_section(page, Section.LOADERS, ["loaders", "", "| a |"])
    for _ in range(2):
        write_section(page, Section.MIRROR, ["again"])
    body, _, notes = page.read_text().partition(NOTES)
    assert body.split("\n", 2)[2].split("\n") == [
        *(Section.LOADERS, "", "loaders", "", "| a |", ""),
        *(Section.MIRROR, "", "again", "", ""),
    ]
    assert notes == "\n\nby hand\n"


def test_tables_count_what_was_killed_when_and_how_processes_ended() -> None:
    outcome = Outcome(settings(50, 1000, 1)[0])
    outcome.deaths[Victim.WORKER, Moment.WRITING] += 2
    outcome.deaths[Victim.BROKER, Moment.ANY] += 1
    outcome.ends["Error: 127.0.0.1:1234: no"] += 1
    outcome.ends["Error: 127.0.0.1:4321: no"] += 1
    assert list(tables([outcome], Victim, Moment, "Ends:"))[1:] == [
        "| killed when ... | any time | data files are being staged |",
        "| --- | ---: | ---: |",
        "| Python worker |  | 2 |",
        "| broker | 1 |  |",
        *("", "Ends:", "", "* 2 x `Error: 127.0.0.1:PORT: no`"),
    ]


def test_a_round_that_ended_is_not_run_again(tmp_path: Path) -> None:
    first, second = settings(50, 1000, 1)[:2]
    runs: list[Path] = []

    def run(place: Path) -> Outcome:
        runs.append(place)
        place.mkdir()
        return Outcome(first, compared=200)

    assert kept_outcome(1, first, tmp_path, Outcome.from_json) is None
    outcome = outcome_of(1, first, tmp_path, Outcome.from_json, run)
    assert kept_outcome(1, first, tmp_path, Outcome.from_json) == outcome
    assert kept_outcome(1, second, tmp_path, Outcome.from_json) is None
    assert outcome_of(1, first, tmp_path, Outcome.from_json, run) == outcome
    assert len(runs) == 1


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
    assert compare(broker.address, "t", on_disk(tmp_path)) == 6
    assert check_history(on_disk(tmp_path)) == 2


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
        compare(broker.address, "t", on_disk(tmp_path))


MESSAGES = 3 * PARTITIONS * SET


@pytest.fixture
def clusters() -> Iterator[tuple[FakeBroker, FakeBroker]]:
    """A cluster with a writer's messages, three batches in each partition, and an empty one."""
    with FakeBroker(partitions=PARTITIONS) as source, FakeBroker(partitions=PARTITIONS) as target:
        writer = Writer(source.address, "t", MESSAGES, 1)
        writer.allow(MESSAGES)
        writer.start()
        writer.join(60)
        assert writer.error is None
        yield source, target


def records_of(batch: bytes) -> list[NewRecord]:
    """Return the records of a batch, to be encoded again."""
    return [NewRecord(each.key, each.value, each.timestamp, each.headers) for each in decode_batch(batch)]


def copied(source: FakeBroker, target: FakeBroker, edit: Callable[[list[bytes]], list[bytes]] = list) -> None:
    """Copy all batches, the last partition edited. Before each batch is an offset without a record, as of a marker."""
    for partition, log in enumerate(source.logs):
        for batch in edit(log) if partition == PARTITIONS - 1 else log:
            target.ends[partition] += 1
            target.append(partition, bytes(encode_batch(records_of(batch))))


def test_a_copy_has_the_same_rows_at_other_offsets(clusters: tuple[FakeBroker, FakeBroker]) -> None:
    source, target = clusters
    copied(source, target)
    assert compare_copy(source.address, target.address, "t", MESSAGES) == MESSAGES


def with_another_value(log: list[bytes]) -> list[bytes]:
    """Return a log in which one record has another value."""
    new = records_of(log[0])
    new[7] = NewRecord(new[7].key, b"other", new[7].timestamp, new[7].headers)
    return [bytes(encode_batch(new)), *log[1:]]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda log: log[:-1], "1500 rows and 1000 in the copy; row 1000 "),
        (lambda log: [*log, log[-1]], "1500 rows and 2000 in the copy; row 1500 "),
        (lambda log: [log[1], log[0], *log[2:]], "row 0 is "),
        (with_another_value, "row 7 is "),
    ],
)
def test_faults_of_a_copy_are_found(
    clusters: tuple[FakeBroker, FakeBroker], edit: Callable[[list[bytes]], list[bytes]], text: str
) -> None:
    source, target = clusters
    copied(source, target, edit)
    with pytest.raises(LakeFault, match=text):
        compare_copy(source.address, target.address, "t", MESSAGES)


def test_messages_that_the_first_cluster_lost_are_found(clusters: tuple[FakeBroker, FakeBroker]) -> None:
    source, target = clusters
    copied(source, target)
    with pytest.raises(LakeFault, match="2000 messages were sent, 1500 are there; row 1500 is the first wrong"):
        compare_copy(source.address, target.address, "t", MESSAGES + PARTITIONS * SET)


def test_misplaced_files_are_found(broker: FakeBroker, tmp_path: Path) -> None:
    write(tmp_path / "hour", table([0, 1, 2]), table([3, 4, 5]), place=PLACE.replace("22", "23"))
    with pytest.raises(LakeFault, match="has a record of 2023-11-14 22"):
        compare(broker.address, "t", on_disk(tmp_path / "hour"))
    write(tmp_path / "stray", table([0, 1, 2]), table([3, 4, 5]))
    pq.write_table(table([9]), tmp_path / "stray" / PLACE / "stray.parquet")
    with pytest.raises(LakeFault, match=r"not of any commit: .*stray\.parquet"):
        compare(broker.address, "t", on_disk(tmp_path / "stray"))


def test_gaps_between_commits_are_found(tmp_path: Path) -> None:
    write(tmp_path, table([0, 1, 2]), table([3, 5]))
    with pytest.raises(LakeFault, match="commit 2: 2 rows for 3 offsets"):
        check_history(on_disk(tmp_path))
    assert check_history(on_disk(tmp_path), gaps=True) == 2
    (tmp_path / f"_pylogd/commits/{1:020}.json").unlink()
    with pytest.raises(LakeFault, match="is commit 2; expected 1"):
        check_history(on_disk(tmp_path))
