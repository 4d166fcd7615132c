"""Translate offsets of a source partition to offsets of its copy.

Strategy: a *run* is a range of records with consecutive offsets at both ends. Between two runs there are offsets
without a record: transaction markers, records that compaction removed, records of aborted transactions. An offset
inside a run is translated exactly. An offset between runs becomes that of the next record, which a consumer at this
offset would read next.

Rules: pure. Runs ascend in source offsets. A run that begins before the end of the known runs replaces their
overlapping parts, because the source was truncated and its offsets were given again. Offsets of the copy only ascend.
If a run begins before the known end of the copy, the topic at the target was deleted and created again: the known runs
are dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """`length` records from offset `source` on, which have consecutive offsets from `target` on in the copy."""

    source: int
    target: int
    length: int


def runs_of(offsets: Sequence[int], target: int) -> list[Run]:
    """Return the runs of records with these offsets, whose copies have consecutive offsets from `target` on."""
    runs: list[Run] = []
    for index, offset in enumerate(offsets):
        if runs and offset == runs[-1].source + runs[-1].length:
            runs[-1] = runs[-1]._replace(length=runs[-1].length + 1)
        else:
            runs.append(Run(offset, target + index, 1))
    return runs


def joined(runs: Iterable[Run]) -> list[Run]:
    """Return ascending runs, in which runs that are adjacent in source and copy are merged."""
    found: list[Run] = []
    for run in runs:
        if found:
            source, target, length = found[-1]
            if run.source == source + length and run.target == target + length:
                found[-1] = Run(source, target, length + run.length)
                continue
        found.append(run)
    return found


class OffsetMap:
    """The runs of one partition, and its progress."""

    def __init__(self) -> None:
        """Nothing was copied."""
        self._starts: list[int] = []
        self._runs: list[Run] = []
        self._end: tuple[int, int] | None = None
        self._target_end = 0  # the end of the runs in the copy

    @property
    def runs(self) -> list[Run]:
        """The known runs, in order."""
        return list(self._runs)

    def add(self, runs: Iterable[Run]) -> None:
        """Add runs that were copied after the known ones."""
        for run in runs:
            if run.target < self._target_end:
                self._starts, self._runs = [], []
            self._target_end = run.target + run.length
            self._cut(run.source)
            if self._runs:
                tail = joined([self._runs[-1], run])
                if len(tail) == 1:
                    self._runs[-1] = tail[0]
                    continue
            self._runs.append(run)
            self._starts.append(run.source)

    def copied_to(self, source: int, target: int) -> None:
        """Record the checkpoint: all records before `source` are copied, and later records are appended from `target`
        on.
        """
        self._end = source, target

    def _cut(self, source: int) -> None:
        """Drop the runs at and after `source`."""
        while self._runs and self._starts[-1] >= source:
            self._runs.pop()
            self._starts.pop()
        if self._runs and self._runs[-1].source + self._runs[-1].length > source:
            self._runs[-1] = self._runs[-1]._replace(length=source - self._runs[-1].source)

    def translate(self, offset: int) -> int | None:
        """Return the offset at which a consumer at `offset` of the source continues in the copy.

        Return None if `offset` is before the map's beginning or after the checkpoint, where nothing is known yet.
        """
        index = bisect_right(self._starts, offset) - 1
        if index >= 0:
            run = self._runs[index]
            if offset < run.source + run.length:
                return run.target + offset - run.source
        if index + 1 < len(self._runs) and index >= 0:
            return self._runs[index + 1].target
        if self._end is not None and offset <= self._end[0] and (index >= 0 or offset == self._end[0]):
            return self._end[1]
        return None
