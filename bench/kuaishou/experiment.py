"""What an experiment declares, and what one round of one of its arms gives.

A new experiment is a module with an `Experiment`, named in `__main__.EXPERIMENTS`. Its `run` is called once for each
arm and round, arms in turns, each time with an empty laboratory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.kuaishou.lab import Laboratory

#: Values over time: pairs of seconds and value.
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How long things take: seconds of the main phase. quick: an impression, with smaller data."""

    seconds: float
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """The result of an arm: a figure for each measure, values over time for each chart, and notes for the page.

    A measure or chart that the arm does not have is left out.
    """

    figures: Mapping[str, float]
    curves: Mapping[str, Points] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of each arm. `digits`: how many behind the point."""

    name: str
    unit: str
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of values over time, with a line for each arm."""

    name: str
    unit: str
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for an arm's measure, or, with `beside`, for its ratio to another arm's in the same round.

    talk: what the talk's authors state for theirs. beside_measure: the other arm's measure, if it is a different one.
    """

    measure: str
    arm: str
    at_most: float | None = None
    at_least: float | None = None
    beside: str = ""
    talk: str = ""
    beside_measure: str = ""

    def met(self, values: Sequence[float]) -> bool:
        """Return whether the median is within the bounds."""
        median = statistics.median(values)
        return (self.at_most is None or median <= self.at_most) and (self.at_least is None or median >= self.at_least)

    @property
    def bound(self) -> str:
        """The bounds as text."""
        bounds = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        bounds += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return ", ".join(bounds)


def available(_: str) -> str:
    """Return that an arm can run."""
    return ""


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment.

    talk: what the talk's authors did and saw. method: what is done here. arms: each with an explanation. run: does one
    round of an arm; raises Unavailable. why_not: returns why an arm can't run here, or the empty string.
    """

    name: str
    title: str
    talk: str
    method: str
    arms: Mapping[str, str]
    measures: Sequence[Measure]
    run: Callable[[Laboratory, str, Scale], Round]
    targets: Sequence[Target] = ()
    charts: Sequence[Chart] = ()
    why_not: Callable[[str], str] = available
    #: Seconds of the main phase.
    seconds: float = 30.0
