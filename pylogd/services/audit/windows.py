"""The windows of a ledger: the data that is kept of each in memory, and the data that is stored.

Must not know: who decides when a window can be judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pylogd.services.audit.counting import Origin, Tally
from pylogd.services.audit.judging import Judgement, Reported, Verdict

#: A window: its topic, and its start in milliseconds since 1970.
WindowKey = tuple[str, int]
#: The most reports of producers and tallies of rows that are kept.
MOST_COUNTS: Final = 500_000


@dataclass(frozen=True, slots=True)
class StageSpec:
    """The ledger's view of a stage.

    name: the unique name of the stage.
    source: the stage before it; "" for the first one.
    has_offsets: whether its rows have their own offsets, as in topics, or those of its source, as in tables.
    settle_ms: the time after its source at which it counts as complete, if it can't tell its committed offsets; None if
    it can.
    """

    name: str
    source: str = ""
    has_offsets: bool = True
    settle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Times are in milliseconds: the length of windows and of periods, and how long to wait (see `ledger`).

    from_ms: windows that began earlier are ignored, since their first messages were not read.
    """

    width_ms: int = 60_000
    period_ms: int = 3_600_000
    grace_ms: int = 60_000
    late_ms: int = 3_600_000
    from_ms: int = 0
    most_counts: int = MOST_COUNTS


@dataclass(slots=True)
class StageWindow:
    """A window at a stage.

    unstamped: the number of rows without stamps, by their time stamps.
    begins: the lowest offset of its rows that are not stored, by partition.
    ends: the offset after the last of its rows that was read in this run, by partition.
    touched: whether it has to be judged again.
    """

    tallies: dict[Origin, Tally] = field(default_factory=dict)
    unstamped: int = 0
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    bound: Mapping[int, int] | None = None
    passed_at_ms: int | None = None
    touched: bool = True
    unsaved: bool = False
    judgement: Judgement | None = None
    judged_at_ms: int = 0
    revision: int = 0

    @property
    def verdict(self) -> Verdict:
        """The verdict; OPEN if it was not judged yet."""
        return Verdict.OPEN if self.judgement is None else self.judgement.verdict


@dataclass(slots=True)
class Window:
    """A window of a topic at all stages.

    bound, begins: the same as in `StageWindow`, for the audit topic.
    """

    stages: dict[str, StageWindow]
    reports: dict[str, Reported] = field(default_factory=dict)
    bound: Mapping[int, int] | None = None
    begins: dict[int, int] = field(default_factory=dict)


class Saved(NamedTuple):
    """A stored window at a stage: the counts below the offsets `counted`, and the verdict.

    reports_bound: the window's bound in the audit topic.
    """

    stage: str
    topic: str
    start_ms: int
    window: StageWindow
    counted: Mapping[int, int]
    reports_bound: Mapping[int, int] | None = None


class SavedReports(NamedTuple):
    """The reports of a window, in the form for storage.

    begins: see `Window`.
    """

    topic: str
    start_ms: int
    reports: Mapping[str, Reported]
    begins: Mapping[int, int]


class Taken(NamedTuple):
    """The data to store, in this order.

    resume: the offsets to read from after a restart, by stage.
    resume_reports: the offsets of the audit topic to read from after a restart.
    trimmed: the time until which rows were deleted uncounted, by stage and topic.
    """

    windows: Sequence[Saved]
    reports: Sequence[SavedReports]
    resume: Mapping[str, Mapping[tuple[str, int], int]]
    resume_reports: Mapping[int, int]
    trimmed: Mapping[tuple[str, str], int]


class Change(NamedTuple):
    """A new or changed judgement."""

    stage: str
    topic: str
    start_ms: int
    judgement: Judgement
    before: Judgement | None
