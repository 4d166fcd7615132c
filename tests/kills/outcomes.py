"""The outcomes of rounds of kills: kept as JSON, so that an interrupted run goes on, and reported as tables."""

from __future__ import annotations

import datetime
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T", bound="RoundOutcome")


def tell(text: str) -> None:
    """Print a line of progress."""
    print(f"{datetime.datetime.now():%H:%M:%S}  {text}", flush=True)


@dataclass(slots=True)
class RoundOutcome:
    """What happened in a round.

    setting: a dataclass, what the round was to do. deaths: by victim and moment. ends: last lines of the program under
    test, of processes that ended after a kill. survived: kills after which the same process went on.
    """

    setting: Any
    deaths: Counter[tuple[Any, Any]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    survived: int = 0
    seconds: float = 0.0

    def as_json(self) -> str:
        """Return the outcome as JSON."""
        deaths = [[victim.name, moment.name, count] for (victim, moment), count in self.deaths.items()]
        return json.dumps({**asdict(self), "deaths": deaths, "ends": dict(self.ends)}, indent=1)


def from_json(
    text: str, kind: type[T], setting: Callable[..., Any], victims: type[StrEnum], moments: type[StrEnum]
) -> T:
    """Return the outcome that `as_json` has written."""
    document = json.loads(text)
    document["setting"] = setting(**document["setting"])
    document["deaths"] = Counter({(victims[who], moments[when]): n for who, when, n in document["deaths"]})
    document["ends"] = Counter(document["ends"])
    return kind(**document)


def outcome_of(number: int, setting: Any, folder: Path, read: Callable[[str], T], run: Callable[[Path], T]) -> T:
    """Return the outcome of a round: from the file of an earlier run with this setting, else `run` in a new folder.

    read: parses such a file. If the round fails its folder is kept, and the error is raised again.
    """
    place, done = folder / f"round-{number}", folder / f"round-{number}.json"
    if done.exists():
        outcome = read(done.read_text())
        if outcome.setting == setting:
            tell(f"round {number} is done")
            return outcome
    if place.exists():
        shutil.rmtree(place)
    begun = time.monotonic()
    try:
        outcome = run(place)
    except BaseException as error:
        tell(f"FAILED after {time.monotonic() - begun:.0f} s in round {number}, kept in {place}: {error}")
        raise
    shutil.rmtree(place)
    done.write_text(outcome.as_json())
    return outcome


def tables(outcomes: Iterable[RoundOutcome], victims: type[StrEnum], about_ends: str) -> Sequence[str]:
    """Return lines of Markdown: how often each victim was killed at each moment, and how processes ended."""
    deaths: Counter[tuple[Any, Any]] = Counter()
    ends: Counter[str] = Counter()
    for outcome in outcomes:
        deaths += outcome.deaths
        ends += outcome.ends
    lines = ["", "| killed | when | times |", "| --- | --- | --- |"]
    lines += [
        f"| {victim} | {moment} | {count} |"
        for victim in victims
        for (of, moment), count in sorted(deaths.items(), key=lambda each: each[0][1])
        if of is victim
    ]
    if ends:
        lines += ["", about_ends, "", *(f"* {count} x `{words[:160]}`" for words, count in ends.most_common())]
    return lines
