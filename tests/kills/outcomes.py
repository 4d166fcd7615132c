"""The outcomes of rounds of kills: kept as JSON, so that an interrupted run goes on, and reported as tables."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T", bound="RoundOutcome")
_PORT: Final = re.compile(r"(?<=127\.0\.0\.1):\d+")


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
    kept = kept_outcome(number, setting, folder, read)
    if kept is not None:
        tell(f"round {number} is done")
        return kept
    place = folder / f"round-{number}"
    if place.exists():
        shutil.rmtree(place)
    begun = time.monotonic()
    try:
        outcome = run(place)
    except BaseException as error:
        tell(f"FAILED after {time.monotonic() - begun:.0f} s in round {number}, kept in {place}: {error}")
        raise
    shutil.rmtree(place)
    _file(folder, number).write_text(outcome.as_json())
    return outcome


def kept_outcome(number: int, setting: Any, folder: Path, read: Callable[[str], T]) -> T | None:
    """Return the outcome of a round from the file of an earlier run; None if there is none with this setting."""
    file = _file(folder, number)
    outcome = read(file.read_text()) if file.exists() else None
    return outcome if outcome is not None and outcome.setting == setting else None


def _file(folder: Path, number: int) -> Path:
    return folder / f"round-{number}.json"


def tables(
    outcomes: Iterable[RoundOutcome], victims: type[StrEnum], moments: type[StrEnum], about_ends: str
) -> Sequence[str]:
    """Return lines of Markdown: how often each victim was killed at each moment, and how processes ended."""
    deaths: Counter[tuple[Any, Any]] = Counter()
    ends: Counter[str] = Counter()
    for outcome in outcomes:
        deaths += outcome.deaths
        for words, count in outcome.ends.items():
            ends[_PORT.sub(":PORT", words)] += count
    found = [moment for moment in moments if any(when is moment for _, when in deaths)]
    lines = ["", f"| killed when ... | {' | '.join(found)} |", f"| --- |{' ---: |' * len(found)}"]
    lines += [
        f"| {victim} | {' | '.join(str(deaths[victim, moment] or '') for moment in found)} |"
        for victim in victims
        if any(who is victim for who, _ in deaths)
    ]
    if ends:
        lines += ["", about_ends, "", *(f"* {count} x `{words[:160]}`" for words, count in ends.most_common())]
    return lines
