"""Compact a lake: replace small files by large ones, several directories at a time, beside loads.

Strategy: the files of a directory are a group, and each group is a separate attempt. Threads rewrite groups; the
calling thread commits finished groups, several at a time if they finish faster than commits are made. So finished
groups survive a crash, and a load waits for a commit at most, never for a rewrite.

If another compaction has replaced files of a group meanwhile, the group is planned again, a limited number of times.
Must not know: Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from typing import Final

from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.parquet.attempts import Claim
from pylogd.lake.tables.parquet.changes import Compaction, FileGroup, GroupsReplaced
from pylogd.lake.tables.parquet.commits import Commit, DataFile
from pylogd.lake.tables.parquet.files import Files
from pylogd.lake.tables.parquet.history import CommitExpired
from pylogd.lake.tables.parquet.lake import Lake

_TRIES: Final = 4

#: The function that rewrites a group: it takes the attempt's name, the directory and its files, and returns the new
#: files.
RewriteGroup = Callable[[str, str, Sequence[DataFile]], Sequence[DataFile]]


class CompactionConflict(CommitConflict):
    """Other processes compacted the same directories repeatedly. The commits that were made stay."""

    def __init__(self, directories: Iterable[str]) -> None:
        named = sorted(directories)
        super().__init__(
            f"other processes have compacted {len(named)} directories, such as {named[0]}, {_TRIES} times while "
            "this one did: run one compaction of a lake at a time"
        )


def compact(
    files: Files, target_bytes: int, rewrite: RewriteGroup, *, now_ms: Callable[[], int], threads: int = 1
) -> Iterator[Commit]:
    """Replace the small files of each directory. Yield the commits as they are made.

    rewrite: called in up to `threads` threads.

    Raises TableError, CompactionConflict, and the errors of `rewrite`.
    """
    refused: set[str] | None = None
    for _ in range(_TRIES):
        lake = Lake(files)  # completes other processes' commits, whose files may have to be rewritten
        small = small_files(lake.files(), target_bytes)
        rewriting = _Round(lake, files, rewrite, now_ms)
        yield from rewriting.run({name: small[name] for name in small if refused is None or name in refused}, threads)
        refused = rewriting.refused
        if not refused:
            return
    raise CompactionConflict(refused or ())


def small_files(files: Mapping[str, DataFile], target_bytes: int) -> dict[str, list[DataFile]]:
    """Return the files to compact by directory: several files that are smaller than half of `target_bytes`."""
    found: dict[str, list[DataFile]] = {}
    for path, file in sorted(files.items()):
        if file.bytes < target_bytes // 2:
            found.setdefault(path.rpartition("/")[0], []).append(file)
    return {directory: small for directory, small in found.items() if len(small) > 1}


class _Round:
    """One pass over groups that were planned on the same commit.

    refused: the directories that must be planned again.
    """

    def __init__(self, lake: Lake, files: Files, rewrite: RewriteGroup, now_ms: Callable[[], int]) -> None:
        self._lake, self._files, self._rewrite, self._now_ms = lake, files, rewrite, now_ms
        self._base = 0 if lake.last is None else lake.last.number
        self.refused: set[str] = set()

    def run(self, groups: Mapping[str, Sequence[DataFile]], threads: int) -> Iterator[Commit]:
        """Rewrite the groups and yield the commits."""
        finished = self._in_turn(groups) if threads == 1 else self._at_once(groups, threads)
        for batch in finished:
            commit = self._commit(batch)
            if commit is not None:
                yield commit

    def _in_turn(self, groups: Mapping[str, Sequence[DataFile]]) -> Iterator[list[FileGroup]]:
        for directory, small in sorted(groups.items()):
            yield self._write(directory, small)

    def _at_once(self, groups: Mapping[str, Sequence[DataFile]], threads: int) -> Iterator[list[FileGroup]]:
        with ThreadPoolExecutor(threads, thread_name_prefix="compaction") as pool:
            left = iter(sorted(groups.items()))
            running = {pool.submit(self._write, *item) for item in islice(left, threads)}
            try:
                while running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    running |= {pool.submit(self._write, *item) for item in islice(left, len(done))}
                    yield [group for future in done for group in future.result()]
            finally:
                for future in running:
                    future.cancel()

    def _write(self, directory: str, small: Sequence[DataFile]) -> list[FileGroup]:
        """Return the rewritten group in a list; an empty list if its files have been replaced meanwhile."""
        attempt = self._lake.attempt(Claim(replaces=[file.path for file in small]))
        try:
            added = self._rewrite(attempt, directory, small)
        except Exception:
            self._lake.abandon(attempt)
            if all(self._files.exists(file.path) for file in small):
                raise
            self.refused.add(directory)
            return []
        before, after = sum(file.rows for file in small), sum(file.rows for file in added)
        if before != after:
            self._lake.abandon(attempt)
            raise TableError(f"compacting {before} rows of {directory} wrote {after}: nothing was committed")
        return [FileGroup(attempt, added, small)]

    def _commit(self, groups: Sequence[FileGroup]) -> Commit | None:
        """Commit the groups, except groups that contradict other processes' commits.

        Return None if no group is left.
        """
        left = list(groups)
        while left:
            try:
                change = Compaction(left, self._now_ms())
                return self._lake.commit(change, [group.attempt for group in left], self._base)
            except GroupsReplaced as error:
                self._refuse(error.groups)
                left = [group for group in left if group not in error.groups]
            except (CommitConflict, CommitExpired):
                self._refuse(left)
                return None
        return None

    def _refuse(self, groups: Sequence[FileGroup]) -> None:
        for group in groups:
            self._lake.abandon(group.attempt)
            self.refused.add(group.removed[0].path.rpartition("/")[0])
