"""Keep the reports and counts of each window, and decide when a stage can be judged.

Strategy: a window is *due* when it ended `grace_ms` ago. From then on its *bound* is looked up: the end offsets of the
audit topic, then those of the topic. All earlier reports are below it. A stage that has counted everything below the
bound has *passed* the window and is judged. A later stage has its own bound, which is looked up once the previous stage
has passed and this stage has committed all of the previous stage's messages. A table is judged by the bound of the
topics from which it was loaded. If a row or a report arrives beyond the bound, the bound is looked up again, and the
verdict may change.

Memory: windows of a period (usually an hour) are closed together, once the period ended `late_ms` ago and all stages
have their verdicts. Later rows are only counted as `late`. With more than `most_counts` tallies the oldest period is
closed early, and the verdicts of its unjudged windows are unknown.

Storage: `take` returns the present state of changed windows, and the offsets to resume from: the lowest offset of a row
that is in no stored window. A stored window has the offsets up to which its rows are counted, so that a restart, which
reads some rows again, counts each row once (`skip`).

Rules: nothing depends on the order of rows and reports. Must not know: who reads, topics' contents, the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pylogd.client.core.audit import Report
from pylogd.services.audit.counting import Counted, Skip, Tally
from pylogd.services.audit.judging import Counts, Reported, judge
from pylogd.services.audit.windows import (
    Change,
    LedgerOptions,
    Saved,
    SavedReports,
    StageSpec,
    StageWindow,
    Taken,
    Window,
    WindowKey,
)


class Ledger:
    """All windows.

    late, invalid: the number of rows and reports that came after their window was closed, or were invalid.
    failures: how often a stage could not be read.
    closed: by topic, the time before which windows are closed.
    trimmed: by stage and topic, the time until which rows were deleted uncounted.
    topic_ids: by stage and topic, the ids of the topics of the positions, in hexadecimal digits.
    restamped: the stages and topics whose rows lack the producers' time stamps.
    """

    def __init__(self, stages: Sequence[StageSpec], topics: Iterable[str], options: LedgerOptions) -> None:
        """`stages` come each after its source; the first one is the serving cluster."""
        self.stages = {stage.name: stage for stage in stages}
        self.topics = frozenset(topics)
        self.options = options
        self.windows: dict[WindowKey, Window] = {}
        self.positions: dict[str, dict[tuple[str, int], int]] = {stage: {} for stage in self.stages}
        self.topic_ids: dict[str, dict[str, str]] = {}
        self.restamped: set[tuple[str, str]] = set()
        self.committed: dict[str, Mapping[tuple[str, int], int]] = {}
        self.reports_positions: dict[int, int] = {}
        self.late = 0
        self.failures = 0
        self.invalid = 0
        self.counts = 0
        self._first = stages[0].name
        self._active: set[WindowKey] = set()
        self.closed: dict[str, int] = {}
        self._reporting: dict[str, dict[str, int]] = {topic: {} for topic in self.topics}
        self.trimmed: dict[tuple[str, str], int] = {}
        self._skip: dict[tuple[str, str], dict[int, Mapping[int, int]]] = {}

    # Rows and reports -------------------------------------------------------------------------------------------------

    def report(self, report: Report, partition: int, offset: int) -> None:
        """Add a report, which is at this offset of the audit topic. The reader moves `reports_positions`."""
        if report.topic not in self.topics:
            return
        if report.first < 0 or self.options.width_ms % report.window_ms:
            self.invalid += 1
            return
        start = report.window_start_ms - report.window_start_ms % self.options.width_ms
        window = self._window((report.topic, start))
        if window is None:
            return
        if report.producer not in self._reporting[report.topic]:
            self._touch_chains(report.topic)
        self._reporting[report.topic][report.producer] = start
        if report.producer not in window.reports:
            window.reports[report.producer] = Reported(report.server)
            self.counts += 1
        if not window.reports[report.producer].add(report):
            return
        window.begins[partition] = min(offset, window.begins.get(partition, offset))
        self._touch((report.topic, start), self._first)
        if window.bound is not None and offset >= window.bound.get(partition, 0):
            self._unbind(window, self._first)

    def add(self, stage: str, topic: str, counted: Counted, positions: Mapping[int, int]) -> None:
        """Add rows, and record the offsets up to which the stage is read."""
        self.invalid += counted.invalid
        if counted.restamped and (stage, topic) not in self.restamped:
            self.restamped.add((stage, topic))
            for key in [key for key in self.windows if key[0] == topic]:
                self._touch(key, stage)
        for start, rows in counted.windows.items():
            window = self._window((topic, start), sum(tally.rows for tally in rows.tallies.values()))
            if window is None:
                continue
            mine = window.stages[stage]
            for origin, tally in rows.tallies.items():
                if origin not in mine.tallies:
                    self.counts += 1
                    mine.tallies[origin] = Tally()
                mine.tallies[origin].add(tally.rows, tally.numbers)
            if rows.unstamped and not mine.unstamped:
                self.counts += 1
            mine.unstamped += rows.unstamped
            _lower(mine.begins, rows.begins)
            _raise(mine.ends, rows.ends)
            self._touch((topic, start), stage)
            if mine.bound is not None and any(end > mine.bound.get(each, 0) for each, end in rows.ends.items()):
                self._unbind(window, stage)
        known = self.positions[stage]
        for partition, offset in positions.items():
            known[topic, partition] = max(offset, known.get((topic, partition), 0))
        self._end_skip(stage, topic)

    def skip(self, stage: str, topic: str) -> Skip:
        """Return which rows are counted already, for `Counted.count`, since a restart reads some rows again."""
        return self._skip.get((stage, topic), {})

    def trim(self, stage: str, topic: str, now_ms: int) -> None:
        """Record that rows were deleted before they were counted, which may include missing messages of windows until
        now.
        """
        self.trimmed[stage, topic] = now_ms
        for key in [key for key in self.windows if key[0] == topic]:
            self._touch(key, stage)

    def rewind(self, stage: str, topic: str) -> None:
        """Record that a topic was created again: its offsets start at 0 again."""
        self.positions[stage] = {each: offset for each, offset in self.positions[stage].items() if each[0] != topic}
        for (name, _), window in self.windows.items():
            if name == topic:
                window.stages[stage].begins, window.stages[stage].ends = {}, {}
                self._unbind(window, stage)

    def ensure(self, topic: str, start: int) -> None:
        """Make a window, even if no row of it was read, so that it gets a verdict."""
        self._window((topic, start), 0)

    # Bounds --------------------------------------------------------------------------------------------------------

    def needs(self, now_ms: int) -> dict[tuple[str, str], list[int]]:
        """Return the windows whose bounds have to be looked up, by stage and topic.

        Look up the end of the audit topic first, then the end offsets of the stage's topic, and call `bind`.
        """
        found: dict[tuple[str, str], list[int]] = {}
        for key in self._active:
            window = self.windows[key]
            if not self._is_due(key, now_ms):
                continue
            for stage in self.stages.values():
                mine = window.stages[stage.name]
                if stage.has_offsets and mine.bound is None and self._is_ready(key, window, stage, now_ms):
                    found.setdefault((stage.name, key[0]), []).append(key[1])
        return found

    def bind(
        self, stage: str, topic: str, starts: Iterable[int], ends: Mapping[int, int], reports_ends: Mapping[int, int]
    ) -> None:
        """Set the bound of windows that `needs` returned."""
        for start in starts:
            window = self.windows.get((topic, start))
            if window is None:
                continue
            mine = window.stages[stage]
            mine.bound = dict(ends)
            _raise(mine.bound, mine.ends)  # include rows that were read meanwhile: a later stage must have them too
            if stage == self._first:
                window.bound = reports_ends

    def passed(self, key: WindowKey, stage: str) -> bool:
        """Return whether a stage has counted all rows of a window, except late ones."""
        window, spec = self.windows[key], self.stages[stage]
        if spec.source and not self.passed(key, spec.source):
            return False
        if not spec.source and not _reached(self.reports_positions, window.bound):
            return False
        bound = window.stages[stage if spec.has_offsets else spec.source].bound
        positions = self.positions[stage]
        return bound is not None and all(positions.get((key[0], each), 0) >= end for each, end in bound.items())

    # Verdicts ------------------------------------------------------------------------------------------------------

    def judge(self, now_ms: int) -> list[Change]:
        """Judge the windows that can be judged. Return the changes."""
        changes = []
        for key in sorted(self._active, key=lambda key: (key[1], key[0])):
            if self._is_due(key, now_ms):
                changes += [change for stage in self.stages if (change := self._judge(key, stage, now_ms))]
        self._active = {key for key in self._active if not self._is_settled(self.windows[key])}
        return changes

    def _judge(self, key: WindowKey, stage: str, now_ms: int, *, give_up: bool = False) -> Change | None:
        window = self.windows[key]
        mine = window.stages[stage]
        passed = give_up or self.passed(key, stage)
        if passed and mine.passed_at_ms is None:
            mine.passed_at_ms = now_ms
        elif not mine.touched:
            return None
        found = judge(
            window.reports, self._counts_at(key, stage), [self._counts_at(key, each) for each in self._before(stage)],
            reporting=self._reporting[key[0]], unstamped=mine.unstamped, passed=passed,
            trimmed=give_up or key[1] <= self.trimmed.get((stage, key[0]), -1),
        )  # fmt: skip
        mine.touched = False
        before = mine.judgement
        if found == before or (not found.verdict.is_final and mine.verdict.is_final):
            return None  # late data beyond the stage's position changes nothing yet
        mine.judgement, mine.judged_at_ms, mine.unsaved = found, now_ms, True
        mine.revision += before is not None and before.verdict.is_final
        return Change(stage, *key, found, before)

    def close(self, now_ms: int, published: Mapping[str, int]) -> list[Change]:
        """Close the windows of ended periods, and the oldest windows if there are too many counts.

        published: by topic, the end of the last period that all stages have published.

        Return the verdicts of windows that were closed early.
        """
        periods: dict[tuple[int, str], list[WindowKey]] = {}
        for key in self.windows:
            periods.setdefault((key[1] - key[1] % self.options.period_ms, key[0]), []).append(key)
        changes: list[Change] = []
        excess = self.counts - self.options.most_counts
        kept: set[str] = set()  # topics with an earlier period that stays: all before a time is closed
        for (begin, topic), keys in sorted(periods.items()):
            end = begin + self.options.period_ms
            is_over = now_ms >= end + self.options.late_ms and published.get(topic, 0) >= end
            if excess > 0:
                excess -= sum(self._counts_of(key) for key in keys)
                changes += [change for key in keys for change in self._give_up(key, now_ms)]
            elif not is_over:
                kept.add(topic)
            if topic in kept or any(key in self._active or self._is_unsaved(key) for key in keys):
                kept.add(topic)
            else:
                self._forget(topic, end, keys)
        return changes

    def _give_up(self, key: WindowKey, now_ms: int) -> Iterator[Change]:
        """Judge the stages without a verdict: their missing messages are unknown."""
        window = self.windows[key]
        for stage in self.stages:
            if window.stages[stage].passed_at_ms is None:
                window.stages[stage].touched = True
                change = self._judge(key, stage, now_ms, give_up=True)
                if change is not None:
                    yield change
        self._active.discard(key)

    def _forget(self, topic: str, end: int, keys: Iterable[WindowKey]) -> None:
        for key in keys:
            self.counts -= self._counts_of(key)
            del self.windows[key]
        self.closed[topic] = max(self.closed.get(topic, 0), end)
        reporting = self._reporting[topic]
        for producer in [producer for producer, last in reporting.items() if last < end]:
            del reporting[producer]

    # Storing -------------------------------------------------------------------------------------------------------

    def take(self) -> Taken:
        """Return the data to store, which counts as stored from now on. If storing fails, pass it to `put_back`."""
        windows: list[Saved] = []
        reports: list[SavedReports] = []
        for (topic, start), window in self.windows.items():
            for stage, mine in window.stages.items():
                if mine.unsaved or (mine.begins and mine.verdict.is_final and not mine.touched):
                    counted = self._counted(stage, topic, start)
                    windows.append(Saved(stage, topic, start, replace(mine), counted, window.bound))
                    mine.begins, mine.unsaved = {}, False
            if window.begins and window.stages[self._first].verdict.is_final:
                reports.append(SavedReports(topic, start, window.reports, window.begins))
                window.begins = {}
        resume = {stage: dict(offsets) for stage, offsets in self.positions.items()}
        for (topic, _), window in self.windows.items():
            for stage, mine in window.stages.items():
                for partition, begin in mine.begins.items():
                    resume[stage][topic, partition] = min(begin, resume[stage].get((topic, partition), begin))
        resume_reports = dict(self.reports_positions)
        for window in self.windows.values():
            _lower(resume_reports, window.begins)
        return Taken(windows, reports, resume, resume_reports, dict(self.trimmed))

    def put_back(self, taken: Taken) -> None:
        """Have `take` return data again that could not be stored."""
        for saved in taken.windows:
            window = self.windows.get((saved.topic, saved.start_ms))
            if window is not None:
                mine = window.stages[saved.stage]
                mine.unsaved = True
                _lower(mine.begins, saved.window.begins)
        for each in taken.reports:
            window = self.windows.get((each.topic, each.start_ms))
            if window is not None:
                _lower(window.begins, each.begins)

    def restore(self, saved: Saved) -> None:
        """Add a window that was stored."""
        window = self._window((saved.topic, saved.start_ms), 0)
        if window is None or saved.stage not in self.stages:
            return
        window.stages[saved.stage] = saved.window
        window.bound = saved.reports_bound if saved.stage == self._first else window.bound
        self.counts += _size(saved.window)
        self._skip.setdefault((saved.stage, saved.topic), {})[saved.start_ms] = saved.counted

    def restore_reports(self, saved: SavedReports) -> None:
        """Add the reports of a window that were stored."""
        window = self._window((saved.topic, saved.start_ms), 0)
        if window is not None:
            window.reports = dict(saved.reports)
            self.counts += len(window.reports)
            self._reporting[saved.topic].update(dict.fromkeys(saved.reports, saved.start_ms))

    # ---------------------------------------------------------------------------------------------------------------

    def _window(self, key: WindowKey, rows: int = 1) -> Window | None:
        """Return a window, which is made if it is missing; None if it is closed, or began before the first one."""
        found = self.windows.get(key)
        if found is not None:
            return found
        topic, start = key
        if start < self.options.from_ms or topic not in self.topics:
            return None
        if start < self.closed.get(topic, 0):
            self.late += rows
            return None
        window = self.windows[key] = Window({stage: StageWindow() for stage in self.stages})
        self._active.add(key)
        return window

    def _touch(self, key: WindowKey, stage: str) -> None:
        """Have a stage, and the stages after it, judged again."""
        self._active.add(key)
        for name in self._from(stage):
            self.windows[key].stages[name].touched = True

    def _touch_chains(self, topic: str) -> None:
        """Have windows judged again if a producer's reports may change which copies count in them."""
        for key, window in self.windows.items():
            if key[0] == topic:
                for stage, mine in window.stages.items():
                    if any(len(origin.producers) > 1 for origin in mine.tallies):
                        self._touch(key, stage)

    def _unbind(self, window: Window, stage: str) -> None:
        """Have the bounds of a stage, and of the stages after it, looked up again."""
        if stage == self._first:
            window.bound = None
        for name in self._from(stage):
            mine = window.stages[name]
            if self.stages[name].has_offsets:
                mine.bound = None
            mine.passed_at_ms, mine.touched = None, True

    def _from(self, stage: str) -> Iterator[str]:
        """Yield a stage and the stages that are fed from it."""
        found = {stage}
        for spec in self.stages.values():  # each stage comes after its source
            if spec.name in found or spec.source in found:
                found.add(spec.name)
                yield spec.name

    def _before(self, stage: str) -> list[str]:
        """Return the stages that a stage is fed from, the first stage first."""
        found: list[str] = []
        while stage := self.stages[stage].source:
            found.insert(0, stage)
        return found

    def _counts_at(self, key: WindowKey, stage: str) -> Counts:
        mine = self.windows[key].stages[stage]
        return Counts(mine.tallies, None if (stage, key[0]) in self.restamped else mine.unstamped)

    def _is_due(self, key: WindowKey, now_ms: int) -> bool:
        return now_ms >= key[1] + self.options.width_ms + self.options.grace_ms

    def _is_ready(self, key: WindowKey, window: Window, stage: StageSpec, now_ms: int) -> bool:
        """Return whether a stage has committed all rows of a window that its source has, so that its end is a bound."""
        if not stage.source:
            return True
        source = window.stages[stage.source]
        if not self.passed(key, stage.source) or source.bound is None or source.passed_at_ms is None:
            return False
        if stage.settle_ms is not None:
            return now_ms >= source.passed_at_ms + stage.settle_ms
        committed = self.committed.get(stage.name, {})
        return all(committed.get((key[0], each), 0) >= offset for each, offset in source.bound.items())

    def _is_settled(self, window: Window) -> bool:
        return all(mine.passed_at_ms is not None and not mine.touched for mine in window.stages.values())

    def _is_unsaved(self, key: WindowKey) -> bool:
        window = self.windows[key]
        return bool(window.begins) or any(mine.unsaved or mine.begins for mine in window.stages.values())

    def _counts_of(self, key: WindowKey) -> int:
        window = self.windows[key]
        return len(window.reports) + sum(_size(mine) for mine in window.stages.values())

    def _counted(self, stage: str, topic: str, start: int) -> dict[int, int]:
        """Return the offsets below which all rows of a window are counted."""
        counted = {each[1]: offset for each, offset in self.positions[stage].items() if each[0] == topic}
        _raise(counted, self.skip(stage, topic).get(start, {}))
        return counted

    def _end_skip(self, stage: str, topic: str) -> None:
        """Drop the result of `skip` once all rows were read again."""
        skip = self._skip.get((stage, topic))
        positions = self.positions[stage]
        if skip and all(
            positions.get((topic, partition), 0) >= offset
            for counted in skip.values()
            for partition, offset in counted.items()
        ):
            del self._skip[stage, topic]


def _size(mine: StageWindow) -> int:
    """Return the number of counts that are kept of a window at a stage."""
    return len(mine.tallies) + bool(mine.unstamped)


def _reached(positions: Mapping[int, int], bound: Mapping[int, int] | None) -> bool:
    return bound is not None and all(positions.get(partition, 0) >= end for partition, end in bound.items())


def _raise(offsets: dict[int, int], others: Mapping[int, int]) -> None:
    """Set each offset to the higher of the two."""
    for partition, offset in others.items():
        offsets[partition] = max(offset, offsets.get(partition, offset))


def _lower(offsets: dict[int, int], others: Mapping[int, int]) -> None:
    """Set each offset to the lower of the two."""
    for partition, offset in others.items():
        offsets[partition] = min(offset, offsets.get(partition, offset))
