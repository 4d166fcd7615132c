"""Count the messages of a stage by window and producer, from their stamps.

Strategy: the numbers of a producer's messages are a set of integers, kept as a roaring bitmap: consecutive numbers take
a few bytes, others at most about a bit each. Sets do not depend on the order of the messages. The number of rows is
kept too, to find duplicates. Counting is a function of rows, so that it can run in any thread; `Ledger.add` adds the
result.

A message that audited producers copied has several stamps, and only the ledger can tell which one counts. So all of
them are counted, each in its own window, under the chain of producers that they form (`Origin`).

Rules: a header that is not a stamp is ignored, and so is a stamp whose time is more than a day after now; `invalid`
counts them. Must not know: what was reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyroaring import BitMap64

from pylogd.client.core.audit import HEADER, NotStamped, Stamp

#: The most stamps of a message that are counted; only the last ones are.
_MOST_STAMPS: Final = 8
#: The longest time after now that a stamp may have.
AHEAD_MS: Final = 86_400_000

#: Windows by start -> partition -> the offset below which rows are counted already.
Skip = Mapping[int, Mapping[int, int]]
#: A row: its offset, and its headers.
Row = tuple[int, Sequence[tuple[str, bytes | None]]]


class Origin(NamedTuple):
    """The origin of a tally's messages: producer `producers[at]`; the producers after it have sent them on.

    Most messages have one stamp: then `producers` has one entry.
    server: the machine of the producer `producers[at]`.
    """

    producers: tuple[str, ...]
    at: int
    server: str

    @property
    def producer(self) -> str:
        """The producer that gave the numbers."""
        return self.producers[self.at]


@dataclass(slots=True)
class Tally:
    """The messages of an origin in a window: the number of rows, and their distinct numbers."""

    rows: int = 0
    numbers: BitMap64 = field(default_factory=BitMap64)

    def add(self, rows: int, numbers: Iterable[int]) -> None:
        """Add rows and their numbers."""
        self.rows += rows
        self.numbers |= numbers if isinstance(numbers, BitMap64) else BitMap64(numbers)


@dataclass(slots=True)
class WindowRows:
    """The counts of a window.

    unstamped: rows without stamps.
    begins: the lowest offset of the rows, by partition.
    """

    tallies: dict[Origin, Tally] = field(default_factory=dict)
    unstamped: int = 0
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def note(self, partition: int, offset: int) -> None:
        """Include an offset in the range of offsets."""
        self.begins[partition] = min(self.begins.get(partition, offset), offset)
        self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)


@dataclass(slots=True)
class Counted:
    """Rows of a topic by the start of their window.

    invalid: the number of headers that are not stamps, and of impossible time stamps.
    restamped: whether rows lack the producers' time stamps, so that rows without stamps can't be compared by window.
    """

    windows: dict[int, WindowRows] = field(default_factory=dict)
    invalid: int = 0
    restamped: bool = False

    def count(self, partition: int, rows: Iterable[Row], width: int, now_ms: int, skip: Skip) -> None:
        """Add rows of a partition. Rows of a window below its offset in `skip` are left out.

        width: of a window in milliseconds.
        now_ms: the time, to recognize impossible stamps.
        """
        found: dict[tuple[int, tuple[str, ...], int, str], _Run] = {}
        latest = now_ms + AHEAD_MS
        for offset, headers in rows:
            stamps = [value for name, value in headers if name == HEADER]
            if not stamps:
                continue
            parsed = self._parsed(stamps[-_MOST_STAMPS:], latest)
            chain = tuple([stamp.producer for stamp in parsed])
            for index, stamp in enumerate(parsed):
                start = stamp.time_ms - stamp.time_ms % width
                if start in skip and offset < skip[start].get(partition, 0):
                    continue
                key = (start, chain, index, stamp.server)
                run = found.get(key)
                if run is None:
                    found[key] = run = _Run(offset, offset, [])
                elif offset > run.last:
                    run.last = offset
                elif offset < run.first:
                    run.first = offset
                run.numbers.append(stamp.number)
        for (start, chain, index, server), run in found.items():
            window = self.windows.setdefault(start, WindowRows())
            window.note(partition, run.first)
            window.note(partition, run.last)
            window.tallies.setdefault(Origin(chain, index, server), Tally()).add(len(run.numbers), run.numbers)

    def _parsed(self, values: Sequence[bytes | None], latest: int) -> list[Stamp]:
        """Return the stamps among headers, the first one first."""
        found = []
        for value in values:
            try:
                stamp = Stamp.decode(value or b"")
            except NotStamped:
                self.invalid += 1
                continue
            if stamp.time_ms > latest:
                self.invalid += 1
                continue
            found.append(stamp)
        return found


@dataclass(slots=True)
class _Run:
    """Rows of one key: their lowest and highest offset, and their numbers."""

    first: int
    last: int
    numbers: list[int]
