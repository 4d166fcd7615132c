"""What rounds in pairs prove: ratios of brokers that were measured by turns, their intervals, and verdicts.

Strategy: round N of one broker is compared with round N of the other, which was measured moments before or after, so
that a change of the machine's speed touches both. The interval of the median is that of order statistics (the sign
test), which assumes nothing about how the values are distributed: of 10 sorted ratios, the 2nd and the 9th enclose the
true median with a probability of 97.9 %.

Rules: a target is met if the whole interval meets it. Two brokers whose interval includes 1 are a draw. A comparison is
void if the two had different numbers of messages, or if one had a round of less than a second.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

#: The shortest round that counts, in seconds: timers, caches and the collector need some time to matter.
LEAST_SECONDS = 1.0
_DOUBT = 0.05

Sample = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of some values, and the interval in which the true median is with a probability of 95 % or more."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return `1.31 (1.20 to 1.44)`."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def rank(count: int) -> int:
    """Return which of so many sorted values, from 1, is the interval's lower end; 0 if there are too few (under 6)."""
    found, tail = 0, 0
    for below in range(count // 2):
        tail += comb(count, below)
        if 2 * tail > _DOUBT * 2**count:
            break
        found = below + 1
    return found


def interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the median; None if there are too few values for one."""
    lower = rank(len(values))
    if not lower:
        return None
    ordered = sorted(values)
    return Interval(statistics.median(ordered), ordered[lower - 1], ordered[-lower])


def ratios(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return own value by the other's for each pair of rounds; none if the other has zeros, or not as many rounds."""
    if len(own) != len(other) or not all(other):
        return []
    return [mine / its for mine, its in zip(own, other, strict=True)]


def is_met(found: Interval, bound: float, more: bool) -> bool:
    """Return whether a target is met. more: the bound is the least, not the most."""
    return found.low >= bound if more else found.high <= bound


def compared(found: Interval, more: bool) -> str:
    """Return `ahead`, `behind` or `draw` for a ratio. more: more is better."""
    if found.low <= 1.0 <= found.high:
        return "draw"
    return "ahead" if (found.low > 1.0) == more else "behind"


def why_void(rounds: Mapping[str, Sequence[Sample]]) -> str:
    """Return why a comparison of brokers proves nothing, "" if it may. rounds: the samples by broker."""
    counts = {sample["messages"] for samples in rounds.values() for sample in samples if "messages" in sample}
    if len(counts) > 1:
        return f"rounds of {min(counts):,.0f} to {max(counts):,.0f} messages"
    timed = [(sample["seconds"], name) for name, samples in rounds.items() for sample in samples if "seconds" in sample]
    seconds, name = min(timed, default=(LEAST_SECONDS, ""))
    return f"a round of {name} took {seconds:.2f} s" if seconds < LEAST_SECONDS else ""
