"""Steps of tests with lakes in memory, in which the value of record n of partition t-0 is the text `t0:n`."""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.parquet import attempts
from pylogd.lake.tables.parquet.attempts import Claim
from pylogd.lake.tables.parquet.changes import Load
from pylogd.lake.tables.parquet.commits import Commit, DataFile
from pylogd.lake.tables.parquet.compaction import compact
from pylogd.lake.tables.parquet.files import Files
from pylogd.lake.tables.parquet.lake import Lake, target_path
from pylogd.lake.tables.position import LoadRange

EVERY = 4
T0 = ("t", 0)


def stage(files: Files, attempt: str, directory: str, *texts: bytes) -> list[DataFile]:
    """Write files to staging, as Spark does."""
    found = []
    for at, text in enumerate(texts):
        path = f"{attempts.directory(attempt)}/{directory}/part-{at}"
        files.create(path, text)
        found.append(DataFile(target_path(attempt, path), path, len(text), text.count(b",") + 1))
    return found


def load_once(
    files: Files, until: int, partition: tuple[str, int] = T0, *, every: int = EVERY, at_ms: int | None = None,
) -> Commit | None:  # fmt: skip
    """Load the records up to `until`, one in each file. Return the commit; None if the lake has them."""
    lake = Lake(files, every=every)
    planned = lake.position
    start = planned.offsets.get(partition, 0)
    if start >= until:
        return None
    loading = LoadRange({partition: start}, {partition: until})
    attempt = lake.attempt(Claim.of_load(planned, loading))
    texts = [record(partition, number) for number in range(start, until)]
    added = stage(files, attempt, f"topic={partition[0]}", *texts)
    layout = Layout("topic")
    return lake.commit(Load(planned, loading, added, (), 1000 + until if at_ms is None else at_ms, layout), [attempt])


def record(partition: tuple[str, int], number: int) -> bytes:
    """Return the value of a record."""
    return b"%s%d:%d" % (partition[0].encode(), partition[1], number)


def compact_all(files: Files, target_bytes: int = 1000) -> list[Commit]:
    """Merge the small files of each directory into one."""

    def rewrite(attempt: str, directory: str, small: Sequence[DataFile]) -> list[DataFile]:
        return stage(files, attempt, directory, b",".join(files.read(file.path) for file in small))

    return list(compact(files, target_bytes, rewrite, now_ms=lambda: 5000))


def records(content: dict[str, bytes]) -> list[bytes]:
    """Return the records of some files, sorted."""
    return sorted(each for text in content.values() for each in text.split(b","))


def expected(offsets: dict[tuple[str, int], int]) -> list[bytes]:
    """Return the records that a lake with these offsets has."""
    return sorted(record(partition, number) for partition, end in offsets.items() for number in range(end))
