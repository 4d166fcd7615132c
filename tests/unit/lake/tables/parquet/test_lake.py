"""The lake's commits on a file system in memory that can fail at any call, like a crash of the process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from pylogd.lake.tables.errors import CommitConflict, LayoutChanged, OffsetsMoved, TableError
from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.parquet import attempts
from pylogd.lake.tables.parquet.attempts import Claim
from pylogd.lake.tables.parquet.changes import Load
from pylogd.lake.tables.parquet.commits import Commit, DataFile, columns_of
from pylogd.lake.tables.parquet.expiry import expire
from pylogd.lake.tables.parquet.files import COMMITS, STAGING, numbered
from pylogd.lake.tables.parquet.lake import Lake, target_path
from pylogd.lake.tables.position import LoadRange, by_partition
from tests.unit.lake.tables.parquet.lakes import T0, compact_all, expected, load_once, records, stage
from tests.unit.lake.tables.parquet.memory import Crash, MemoryFiles

HOUR = Layout()


def put(files: MemoryFiles, loading: LoadRange, *, layout: Layout = HOUR, aside: int = 0) -> Lake:
    """Commit a load without data files, and with some in the quarantine."""
    lake = Lake(files)
    attempt = lake.attempt(Claim.of_load(lake.position, loading))
    kept = []
    for number in range(aside):
        path = f"{attempts.directory(attempt)}/aside/topic=t/part-{number}"
        files.create(path, b"bad")
        kept.append(DataFile(target_path(attempt, path, "aside", quarantine=True), path, 3, 1))
    lake.commit(Load(lake.position, loading, (), kept, 1, layout, None, "the lake"), [attempt])
    return Lake(files)


def leftovers(files: MemoryFiles) -> list[str]:
    """Return the files that a lake at rest should not have."""
    return [path for path in files.content if any(name in path for name in ("/staging/", "/attempts/", "/drafts/"))]


def test_the_history_of_a_lake() -> None:
    files = MemoryFiles()
    for until in (3, 5):
        load_once(files, until)
    assert load_once(files, 5) is None
    assert records(files.data()) == expected({T0: 5})
    lake = Lake(files)
    assert lake.position.offsets == {T0: 5}
    assert [commit.read for commit in lake.history()] == [{"t": {"0": 3}}, {"t": {"0": 2}}]
    assert sorted(lake.files()) == sorted(files.data())
    assert len(compact_all(files)) == 1
    assert records(files.data()) == expected({T0: 5})
    assert len(files.data()) == 1
    last = Lake(files).last
    assert last is not None and last.kind == "compaction" and Lake(files).position.offsets == {T0: 5}
    assert [(commit.kind, len(commit.removed)) for commit in Lake(files).history()] == [
        ("load", 0), ("load", 0), ("compaction", 5),
    ]  # fmt: skip
    assert not leftovers(files)
    assert compact_all(files) == []


def steps(action: str) -> Iterator[MemoryFiles]:
    """Do the same work and stop it at each of its calls in turn."""
    for stop in range(1, 1000):
        files = MemoryFiles()
        load_once(files, 4)
        if action == "expiry":
            compact_all(files)
        files.stop = files.calls + stop
        try:
            act(files, action)
        except Crash:
            files.stop = None
            yield files
        else:
            assert stop > 10
            return


def act(files: MemoryFiles, action: str) -> None:
    if action == "load":
        load_once(files, 9)
    elif action == "compaction":
        compact_all(files)
    else:
        expire(files, older_than_ms=10**6, keep=1)


@pytest.mark.parametrize("action", ["load", "compaction", "expiry"])
def test_a_crash_at_any_step_leaves_all_of_a_commit_or_nothing(action: str) -> None:
    outcomes = set()
    for files in steps(action):
        for again in range(60):  # the next process may die too
            files.stop = files.calls + again + 1
            try:
                Lake(files)
                break
            except Crash:
                continue
        files.stop = None
        lake = Lake(files)
        outcomes.add((len(records(files.data())), len(files.data()), lake.history().__next__().number))
        assert records(files.data()) == expected(lake.position.offsets), "what the offsets say, once"
        assert sorted(lake.files()) == sorted(files.data())
        for commit in lake.history():
            kept = {path: files.content[path] for path in lake.files(commit.number)}
            assert records(kept) == expected(by_partition(commit.offsets))
        load_once(files, 12)
        compact_all(files)
        expire(files, older_than_ms=10**6, keep=1)
        assert records(files.data()) == expected({T0: 12})
        assert not leftovers(files)
        assert not [path for path in files.content if "/replaced/" in path], "nothing is left of what has expired"
        assert len(files.names(COMMITS)) == 2
    assert len(outcomes) == 2


# Several processes


def test_of_two_loaders_of_a_partition_one_fails_and_adds_nothing() -> None:
    files = MemoryFiles()
    lakes = [Lake(files), Lake(files)]
    loading = LoadRange({T0: 0}, {T0: 1})
    claims = [lake.attempt(Claim.of_load(lake.position, loading)) for lake in lakes]
    staged = [stage(files, attempt, "topic=t", b"t0:0") for attempt in claims]
    planned = lakes[0].position
    lakes[0].commit(Load(planned, loading, staged[0], (), 1, HOUR), claims[:1])
    with pytest.raises(OffsetsMoved, match="the table has t-0 up to 1 now, and had it up to None"):
        lakes[1].commit(Load(planned, loading, staged[1], (), 2, HOUR), claims[1:])
    assert records(files.data()) == expected({T0: 1})
    Lake(files)
    assert not leftovers(files), "an attempt that can't be committed any more is deleted"


def test_loads_of_other_partitions_and_compactions_do_not_disturb_a_load() -> None:
    files = MemoryFiles()
    load_once(files, 3)
    lake = Lake(files)
    planned, loading = lake.position, LoadRange({T0: 3}, {T0: 5})
    attempt = lake.attempt(Claim.of_load(planned, loading))
    staged = stage(files, attempt, "topic=t", b"t0:3", b"t0:4")
    compact_all(files)
    load_once(files, 4, ("u", 0))
    done = lake.commit(Load(planned, loading, staged, (), 1, Layout("topic")), [attempt])
    assert done.number == 4
    assert Lake(files).position.offsets == {T0: 5, ("u", 0): 4}
    assert records(files.data()) == expected({T0: 5, ("u", 0): 4})


def test_a_commit_that_is_overtaken_each_time_ends_with_an_error() -> None:
    files = MemoryFiles()
    lake = Lake(files)

    class Busy(MemoryFiles):
        """Another process commits just before this one does."""

        def create(self, path: str, data: bytes) -> bool:
            if path.startswith(COMMITS):
                load_once(files, Lake(files).position.offsets.get(("u", 0), 0) + 1, ("u", 0))
            return super().create(path, data)

    busy = Busy()
    busy.content = files.content
    lake = Lake(busy)
    loading = LoadRange({T0: 0}, {T0: 1})
    attempt = lake.attempt(Claim.of_load(lake.position, loading))
    staged = stage(files, attempt, "topic=t", b"t0:0")
    with pytest.raises(CommitConflict, match="other processes were faster 20 times"):
        lake.commit(Load(lake.position, loading, staged, (), 1, Layout("topic")), [attempt])
    assert Lake(files).position.offsets == {("u", 0): 20}


def test_opening_a_lake_does_not_disturb_a_loader_at_work() -> None:
    files = MemoryFiles()
    load_once(files, 2)
    loader = Lake(files)
    planned, loading = loader.position, LoadRange({T0: 2}, {T0: 4})
    attempt = loader.attempt(Claim.of_load(planned, loading))
    staged = stage(files, attempt, "topic=t", b"t0:2", b"t0:3")
    assert Lake(files).position.offsets == {T0: 2}
    loader.commit(Load(planned, loading, staged, (), 1, Layout("topic")), [attempt])
    assert records(files.data()) == expected({T0: 4})


def test_files_of_a_killed_loader_are_not_part_of_the_next_commit() -> None:
    files = MemoryFiles()
    dead = Lake(files)
    attempt = dead.attempt(Claim.of_load(dead.position, LoadRange({T0: 0}, {T0: 2})))
    stage(files, attempt, "topic=t", b"t0:0", b"t0:1")
    load_once(files, 1)
    Lake(files)
    assert not leftovers(files)
    files.create(f"{attempts.directory(attempt)}/topic=t/part-late", b"t0:0")
    load_once(files, 2)
    assert records(files.data()) == expected({T0: 2})
    assert not leftovers(files)


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
    assert records(files.data()) == expected({T0: 3})


def test_a_slow_process_may_find_its_files_compacted() -> None:
    files = MemoryFiles()

    class Slow(MemoryFiles):
        """Others complete this process's commit, and compact its files, before it moves the first one."""

        def move(self, source: str, target: str) -> bool:
            if target.startswith("topic=") and "staging" in source:
                compact_all(files)
            return super().move(source, target)

    slow = Slow()
    slow.content = files.content
    load_once(slow, 3)
    assert records(files.data()) == expected({T0: 3})
    assert len(files.data()) == 1


@pytest.mark.parametrize("answer", ["error", "false"])
def test_a_commit_whose_answer_was_lost_is_known_by_its_writer(answer: str) -> None:
    class Unsure(MemoryFiles):
        """The file is made, but the caller is told otherwise: its connection broke, or a second try found the file."""

        def create(self, path: str, data: bytes) -> bool:
            made = super().create(path, data)
            if path.startswith(COMMITS) and path.endswith(".json"):
                if answer == "error":
                    raise TableError("the connection broke")
                return False
            return made

    files = Unsure()
    done = load_once(files, 3)
    assert done is not None and done.number == 1
    assert records(files.data()) == expected({T0: 3})


def test_a_commit_that_failed_is_an_error() -> None:
    class Broken(MemoryFiles):
        def create(self, path: str, data: bytes) -> bool:
            if path.startswith(COMMITS):
                raise TableError("the connection broke")
            return super().create(path, data)

    files = Broken()
    with pytest.raises(TableError, match="the connection broke"):
        load_once(files, 3)
    assert not files.data()


# Documents


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "added": [{}]}'])
def test_an_invalid_document_is_refused(garbage: bytes) -> None:
    files = MemoryFiles()
    load_once(files, 2)
    files.content[numbered(COMMITS, 2, ".json")] = garbage
    with pytest.raises(TableError, match="is not a commit"):
        Lake(files)


def test_a_file_missing_from_staging_is_reported() -> None:
    files = MemoryFiles()
    lake = Lake(files)
    loading = LoadRange({T0: 0}, {T0: 1})
    attempt = lake.attempt(Claim.of_load(lake.position, loading))
    added = stage(files, attempt, "topic=t", b"t0:0")
    files.delete(added[0].staged)
    with pytest.raises(TableError, match="part-0 of commit 1 is missing, in the lake and in staging"):
        lake.commit(Load(lake.position, loading, added, (), 1, HOUR), [attempt])


class Stalled(MemoryFiles):
    """The files of a process that stalls before its first listing of a directory, until `meanwhile` has returned."""

    def __init__(self, shared: MemoryFiles, directory: str, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.content = shared.content
        self._directory, self._meanwhile = directory, [meanwhile]

    def names(self, directory: str) -> list[str]:
        while directory == self._directory and self._meanwhile:
            self._meanwhile.pop()()
        return super().names(directory)


def test_a_process_that_stalled_deletes_no_attempt_that_is_newer_than_what_it_knows() -> None:
    files = MemoryFiles()
    load_once(files, 1)
    begun: list[tuple[Lake, Load, str]] = []

    def others() -> None:
        """Commit a load, and write the files of the next one."""
        load_once(files, 2)
        lake, loading = Lake(files), LoadRange({T0: 2}, {T0: 3})
        attempt = lake.attempt(Claim.of_load(lake.position, loading))
        added = stage(files, attempt, "topic=t", b"t0:2")
        begun.append((lake, Load(lake.position, loading, added, (), 1, Layout("topic")), attempt))

    Lake(Stalled(files, STAGING, others))
    ((lake, load, attempt),) = begun
    lake.commit(load, [attempt])
    assert Lake(files).position.offsets == {T0: 3}
    assert records(files.data()) == expected({T0: 3})


def test_a_process_that_stalled_while_commits_expired_opens_the_lake_as_it_is_then() -> None:
    files = MemoryFiles()
    lake = Lake(files)
    attempt = lake.attempt(Claim.of_load(lake.position, LoadRange({T0: 0}, {T0: 1})))
    added = stage(files, attempt, "topic=t", b"t0:0")
    load = Load(lake.position, LoadRange({T0: 0}, {T0: 1}), added, (), 1, Layout("topic"))
    files.stop = files.calls + 2  # decided, not applied
    with pytest.raises(Crash):
        lake.commit(load, [attempt])
    files.stop = None

    class Slow(MemoryFiles):
        """The files of a process that stalls before its first move."""

        slow = True

        def move(self, source: str, target: str) -> bool:
            if self.slow:
                self.slow = False
                for until in range(2, 8):
                    load_once(files, until)
                compact_all(files)
                load_once(files, 8)
                expire(files, older_than_ms=10**6, keep=1)
            return super().move(source, target)

    slow = Slow()
    slow.content = files.content
    opened = Lake(slow)
    assert not slow.slow
    assert opened.position.offsets == {T0: 8}
    assert records(files.data()) == expected({T0: 8})


def test_a_claim_of_a_later_version_stays() -> None:
    files = MemoryFiles()
    files.content["_pylogd/attempts/new.json"] = b'{"version": 2}'
    files.content["_pylogd/staging/new/part"] = b"x"
    Lake(files)
    assert leftovers(files) == ["_pylogd/attempts/new.json", "_pylogd/staging/new/part"]


def test_a_recreated_topic_replaces_the_old_one() -> None:
    files = MemoryFiles()
    t0, t1, u0 = T0, ("t", 1), ("u", 0)
    begin = {t0: 0, t1: 0, u0: 0}
    put(files, LoadRange(begin, {t0: 5, t1: 6, u0: 7}, {"t": "aa", "u": "bb"}, {t0: 1, t1: 2, u0: 3}))
    lake = put(files, LoadRange({t0: 0}, {t0: 2}, {"t": "cc"}, {t0: 9}))
    assert lake.position.offsets == {t0: 2, u0: 7}
    assert lake.position.leader_epochs == {t0: 9, u0: 3}
    assert lake.position.topic_ids == {"t": "cc", "u": "bb"}
    assert lake.last is not None and lake.last.read == {"t": {"0": 2}}
    lake = put(files, LoadRange({t0: 2, t1: 0}, {t0: 4, t1: 1}, {"t": "cc"}, {t1: 1}))
    assert (lake.position.offsets, lake.position.leader_epochs) == ({t0: 4, t1: 1, u0: 7}, {t1: 1, u0: 3})


@pytest.mark.parametrize("version", [1, 2])
def test_a_lake_of_an_earlier_version_is_continued(version: int) -> None:
    files = MemoryFiles()
    load_once(files, 3)
    path = numbered(COMMITS, 1, ".json")
    document = json.loads(files.content[path])
    assert document["version"] == 3
    later = ["schema_ids", "layout", "writer", "applied", "columns"]
    later += ["quarantined", "topic_ids", "leader_epochs"] if version == 1 else []
    old = {name: value for name, value in document.items() if name not in later} | {"version": version}
    files.content[path] = json.dumps(old).encode()
    files.content["_pylogd/staging/2/9f3c/part-0"] = b"of a loader of that version, at work on commit 2"
    lake = Lake(files)
    assert lake.position.offsets == {T0: 3}
    assert (lake.position.topic_ids, lake.position.leader_epochs, lake.quarantined(), lake.layout) == ({}, {}, [], None)
    assert leftovers(files)
    compact_all(files)
    load_once(files, 4)
    assert [commit.version for commit in Lake(files).history()] == [version, 3, 3]
    assert Lake(files).layout == Layout("topic")
    assert records(files.data()) == expected({T0: 4})
    assert not leftovers(files)
    files.content[path] = json.dumps(old | {"version": 4}).encode()
    with pytest.raises(TableError, match="version 4 is not supported, only up to 3"):
        list(Lake(files).history())


def test_a_commit_of_an_earlier_version_is_completed() -> None:
    files = MemoryFiles()
    load_once(files, 3)
    del files.content[numbered(COMMITS, 1, ".done")]
    path = next(iter(files.data()))
    commit = Lake(files).last
    assert commit is not None
    staged = next(file.staged for file in commit.added if file.path == path)
    files.content[staged] = files.content.pop(path)
    del files.content[numbered(COMMITS, 1, ".done")]
    files.content["_pylogd/attempts/" + staged.split("/")[2] + ".json"] = Claim(replaces=[]).as_bytes()
    Lake(files)
    assert records(files.data()) == expected({T0: 3})


def test_quarantined_files_are_committed_with_the_rest() -> None:
    files = MemoryFiles()
    lake = put(files, LoadRange({T0: 0}, {T0: 5}), aside=2)
    paths = [file.path for file in lake.quarantined()]
    assert all(path.startswith("_pylogd/quarantine/topic=t/") for path in paths) and len(paths) == 2
    assert all(files.content[path] == b"bad" for path in paths)
    assert (lake.files(), files.data()) == ({}, {})
    assert [sum(file.rows for file in commit.quarantined) for commit in lake.history()] == [2]


# Layout and columns


def test_a_lake_keeps_its_layout() -> None:
    files = MemoryFiles()
    lake = put(files, LoadRange({T0: 0}, {T0: 1}), layout=Layout("day", "string"))
    assert lake.layout == Layout("day", "string")
    for other, why in ((Layout("hour", "string"), "by=day"), (Layout("day"), "value=string")):
        with pytest.raises(LayoutChanged, match=f"the table the lake was made with {why}, which can't be changed to"):
            put(files, LoadRange({T0: 1}, {T0: 2}), layout=other)
    assert Lake(files).position.offsets == {T0: 1}
    lake = Lake(files)
    assert lake.layout == Layout("day", "string")


def test_of_two_loaders_that_make_a_lake_with_different_layouts_one_is_refused() -> None:
    files = MemoryFiles()
    lake = Lake(files)
    planned = lake.position
    put(files, LoadRange({("u", 0): 0}, {("u", 0): 1}), layout=Layout("day"))
    with pytest.raises(LayoutChanged):
        lake.commit(Load(planned, LoadRange({T0: 0}, {T0: 1}), (), (), 1, Layout("topic")), [])


def test_columns_that_can_not_be_read_are_an_error() -> None:
    damaged = Commit(1, "load", 1, {}, columns="AAAA")
    with pytest.raises(TableError, match="has columns that can't be read"):
        columns_of(damaged)
