"""The lake's commits on a file system in memory that can fail at any call, like a crash of the loader."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pylogd.tables.errors import CommitConflict, TableError
from pylogd.tables.parquet.lake import (
    Commit,
    DataFile,
    Lake,
    compaction_commit,
    load_commit,
    small_files,
)
from pylogd.tables.parquet.table import committed
from pylogd.tables.positions import LoadRange, Position


class Crash(BaseException):
    """The loader was killed."""


class MemoryFiles:
    """`lake.Files`: paths in a dict. Crashes before, or in the middle of, call number `stop`."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.calls = 0
        self.stop: int | None = None

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.stop:
            raise Crash

    def names(self, directory: str) -> list[str]:
        self._call()
        prefix = directory + "/"
        return sorted({path[len(prefix) :].split("/")[0] for path in self.content if path.startswith(prefix)})

    def read(self, path: str) -> bytes:
        self._call()
        try:
            return self.content[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, path: str, data: bytes) -> None:
        self.content[path] = data[: len(data) // 2]
        self._call()
        self.content[path] = data

    def move(self, source: str, target: str) -> bool:
        self._call()
        if target in self.content:
            return False
        if source not in self.content:
            raise FileNotFoundError(source)
        self.content[target] = self.content.pop(source)
        return True

    def exists(self, path: str) -> bool:
        self._call()
        return path in self.content or any(name.startswith(path + "/") for name in self.content)

    def delete(self, path: str) -> None:
        for name in [name for name in self.content if name == path or name.startswith(path + "/")]:
            self._call()
            del self.content[name]

    def data(self) -> dict[str, bytes]:
        """Return the files that a reader of directories finds."""
        return {path: data for path, data in self.content.items() if not path.startswith("_")}


def stage(files: MemoryFiles, lake: Lake, directory: str, *texts: bytes) -> list[DataFile]:
    """Write files to staging, as Spark does."""
    staging = lake.staging()
    found = []
    for at, text in enumerate(texts):
        path = f"{staging}/{directory}/part-{at}"
        files.write(path, text)
        found.append(DataFile(lake.target_path(path), path, len(text), 1))
    return found


def load_once(files: MemoryFiles, until: int) -> Commit | None:
    """Load records up to `until` of a topic in which the value of record n is the text n."""
    lake = Lake(files)
    start = lake.offsets.get(("t", 0), 0)
    if start >= until:
        return None
    added = stage(files, lake, "topic=t", *(b"%d" % n for n in range(start, until)))
    commit = load_commit(
        lake.last, lake.next_number, 1000 + until, LoadRange({("t", 0): start}, {("t", 0): until}), added
    )
    lake.commit(commit)
    return commit


def compact_once(files: MemoryFiles) -> None:
    lake = Lake(files)
    small = small_files(lake.files(), 100)
    assert lake.last is not None
    if small:
        (directory,) = small
        content = b",".join(files.read(file.path) for file in small[directory])
        added = stage(files, lake, directory, content)
        lake.commit(compaction_commit(lake.last, 5000, added, [file.path for file in small[directory]]))


def records(files: MemoryFiles) -> list[int]:
    return sorted(int(n) for text in files.data().values() for n in text.split(b","))


def test_the_history_of_a_lake() -> None:
    files = MemoryFiles()
    for until in (3, 5):
        load_once(files, until)
    assert load_once(files, 5) is None
    assert records(files) == [0, 1, 2, 3, 4]
    lake = Lake(files)
    assert lake.offsets == {("t", 0): 5}
    assert [commit.read for commit in lake.history()] == [{"t": {"0": 3}}, {"t": {"0": 2}}]
    assert sorted(lake.files()) == sorted(files.data())
    assert all(path.startswith("topic=t/00000") for path in files.data())
    compact_once(files)
    assert records(files) == [0, 1, 2, 3, 4]
    assert len(files.data()) == 1
    last = Lake(files).last
    assert last is not None and last.kind == "compaction" and Lake(files).offsets == {("t", 0): 5}
    rows = [committed(commit).as_row() for commit in Lake(files).history()]
    assert [row["kind"] for row in rows] == ["load", "load", "compaction"]
    assert [row["replaced"] for row in rows] == [0, 0, 5]
    assert not files.names("_pylogd/staging")


def test_a_long_history_is_not_read_to_add_to_it() -> None:
    files = MemoryFiles()
    for until in range(1, 50):
        load_once(files, until)
    before = files.calls
    assert Lake(files).next_number == 50
    assert files.calls - before < 10


def steps(action: str) -> Iterator[MemoryFiles]:
    """Do the same work and stop it at each of its calls in turn."""
    for stop in range(1, 1000):
        files = MemoryFiles()
        load_once(files, 4)
        files.stop = files.calls + stop
        try:
            load_once(files, 9) if action == "load" else compact_once(files)
        except Crash:
            files.stop = None
            yield files
        else:
            assert stop > 10
            return


@pytest.mark.parametrize("action", ["load", "compaction"])
def test_a_crash_at_any_step_leaves_all_of_a_commit_or_nothing(action: str) -> None:
    outcomes = set()
    for files in steps(action):
        for again in range(60):  # the next loader may die too
            files.stop = files.calls + again + 1
            try:
                Lake(files)
                break
            except Crash:
                continue
        files.stop = None
        lake = Lake(files)
        found = records(files)
        outcomes.add((len(found), len(files.data())))
        assert found == list(range(lake.offsets["t", 0])), "what the offsets say, once"
        assert sorted(lake.files()) == sorted(files.data())
        load_once(files, 12)
        compact_once(files)
        assert records(files) == list(range(12))
        assert not [path for path in files.content if "staging" in path or path.endswith(".draft")]
    assert len(outcomes) == 2


def test_of_two_loaders_one_fails_and_adds_nothing() -> None:
    files = MemoryFiles()
    first, second = Lake(files), Lake(files)
    mine = stage(files, first, "topic=t", b"0")
    first.commit(load_commit(None, 1, 1, LoadRange({("t", 0): 0}, {("t", 0): 1}), mine))
    with pytest.raises(CommitConflict):
        second.commit(load_commit(None, 1, 2, LoadRange({("t", 0): 0}, {("t", 0): 1}), mine))
    with pytest.raises(CommitConflict):
        first.commit(load_commit(None, 7, 2, LoadRange({("t", 0): 0}, {("t", 0): 1}), mine))
    assert records(files) == [0]


def test_opening_a_lake_does_not_disturb_a_loader_at_work() -> None:
    files = MemoryFiles()
    load_once(files, 2)
    loader = Lake(files)
    staged = stage(files, loader, "topic=t", b"2", b"3")
    assert Lake(files).offsets == {("t", 0): 2}
    loader.commit(load_commit(loader.last, 2, 1, LoadRange({("t", 0): 2}, {("t", 0): 4}), staged))
    assert records(files) == [0, 1, 2, 3]


def test_files_of_a_killed_loader_are_not_part_of_the_next_commit() -> None:
    files = MemoryFiles()
    dead = Lake(files)
    stage(files, dead, "topic=t", b"0", b"1")
    load_once(files, 1)
    files.write(f"{dead.staging()}/topic=t/part-late", b"0")
    load_once(files, 2)
    assert records(files) == [0, 1]
    assert not [path for path in files.content if "staging" in path]


def test_two_processes_may_complete_the_same_commit() -> None:
    files = MemoryFiles()

    class Faster(MemoryFiles):
        """Another process moves each file just before this one does."""

        def move(self, source: str, target: str) -> bool:
            if target.startswith("topic="):
                files.content[target] = files.content.pop(source)
            return files.move(source, target)

    faster = Faster()
    faster.content = files.content
    load_once(faster, 3)
    assert records(files) == [0, 1, 2]


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "added": [{}]}'])
def test_an_invalid_document_is_refused(garbage: bytes) -> None:
    files = MemoryFiles()
    load_once(files, 2)
    files.content["_pylogd/commits/" + "2".zfill(20) + ".json"] = garbage
    with pytest.raises(TableError, match="is not a commit"):
        Lake(files)


def test_a_file_missing_from_staging_is_reported() -> None:
    files = MemoryFiles()
    lake = Lake(files)
    added = stage(files, lake, "topic=t", b"0")
    files.delete(added[0].staged)
    with pytest.raises(TableError, match="is missing, and can't be moved from"):
        lake.commit(load_commit(None, 1, 1, LoadRange({("t", 0): 0}, {("t", 0): 1}), added))


# Topics, leader epochs, and what is put aside


def put(files: MemoryFiles, loading: LoadRange, aside: int = 0) -> Lake:
    lake = Lake(files)
    kept = []
    for number in range(aside):
        path = f"{lake.staging()}/aside/topic=t/part-{number}"
        files.write(path, b"bad")
        kept.append(DataFile(lake.target_path(path, "aside", quarantine=True), path, 3, 1))
    lake.commit(load_commit(lake.last, lake.next_number, 1, loading, (), kept))
    return Lake(files)


def test_a_recreated_topic_replaces_the_old_one() -> None:
    files = MemoryFiles()
    t0, t1, u0 = ("t", 0), ("t", 1), ("u", 0)
    begin = {t0: 0, t1: 0, u0: 0}
    put(files, LoadRange(begin, {t0: 5, t1: 6, u0: 7}, {"t": "aa", "u": "bb"}, {t0: 1, t1: 2, u0: 3}))
    lake = put(files, LoadRange({t0: 0}, {t0: 2}, {"t": "cc"}, {t0: 9}))
    assert lake.offsets == {t0: 2, u0: 7}
    assert lake.position.leader_epochs == {t0: 9, u0: 3}
    assert lake.position.topic_ids == {"t": "cc", "u": "bb"}
    assert lake.last is not None and lake.last.read == {"t": {"0": 2}}
    lake = put(files, LoadRange({t0: 2, t1: 0}, {t0: 4, t1: 1}, {"t": "cc"}, {t1: 1}))
    assert (lake.offsets, lake.position.leader_epochs) == ({t0: 4, t1: 1, u0: 7}, {t1: 1, u0: 3})


def test_a_commit_of_version_1_is_read() -> None:
    files = MemoryFiles()
    load_once(files, 3)
    path = f"_pylogd/commits/{1:020}.json"
    document = json.loads(files.content[path])
    assert document["version"] == 2
    for name in ("quarantined", "topic_ids", "leader_epochs"):
        del document[name]
    files.content[path] = json.dumps(document | {"version": 1}).encode()
    lake = Lake(files)
    assert (lake.position, lake.quarantined()) == (Position({("t", 0): 3}), [])
    compact_once(files)
    assert json.loads(files.content[f"_pylogd/commits/{2:020}.json"])["version"] == 2
    files.content[path] = json.dumps(document | {"version": 3}).encode()
    with pytest.raises(TableError, match="version 3 is not supported, only up to 2"):
        list(Lake(files).history())


def test_quarantined_files_are_committed_with_the_rest() -> None:
    files = MemoryFiles()
    lake = put(files, LoadRange({("t", 0): 0}, {("t", 0): 5}), aside=2)
    assert [file.path for file in lake.quarantined()] == [
        f"_pylogd/quarantine/topic=t/000001-part-{number}" for number in range(2)
    ]
    assert all(files.content[file.path] == b"bad" for file in lake.quarantined())
    assert (lake.files(), files.data()) == ({}, {})
    assert [row["quarantined"] for row in [committed(commit).as_row() for commit in lake.history()]] == [2]
    assert lake.last is not None
    again = compaction_commit(lake.last, 5, (), ())
    assert again.quarantined == ()
