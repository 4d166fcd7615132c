"""The page of results: a section for each kind of run, written by the run; the sections of others stay."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from tests.kills import pipeline, strikes
from tests.kills.harness import Outcome
from tests.kills.outcomes import tables
from tests.kills.plan import Moment, Victim
from tests.kills.processes import python_version
from tests.pages import NOTES, circumstances, write_page

_TITLE = "# Pipelines whose processes are killed"
_ENDS = "What loaders said that ended by an error, to be started again:"


class Section(StrEnum):
    """The headings, in order."""

    LOADERS = "## Loaders"
    LOADERS_S3 = "## Loaders, with the lake on S3"
    MIRROR = "## Mirror, loader and compactor together"
    MIRROR_S3 = "## Mirror, loader and compactor together, with the lake on S3"
    TYPED = "## Loaders of typed tables"


def section_of(*, mirror: bool, store: str) -> Section:
    """Return the section of a run."""
    if mirror:
        return Section.MIRROR if store == "local" else Section.MIRROR_S3
    return Section.LOADERS if store == "local" else Section.LOADERS_S3


def write_section(path: Path, section: Section, lines: Sequence[str]) -> None:
    """Write a section of the page."""
    found = _sections(path.read_text(encoding="utf-8").splitlines() if path.exists() else [])
    found[section] = ["", *lines]
    written = [line for each in Section if each in found for line in (each, *found[each], "")]
    write_page(path, [_TITLE, "", *written])


def _sections(page: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines below each heading of a page, without empty ones at their end."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []  # those before the first heading are written anew
    for line in page:
        if line == NOTES:
            break
        if line in set(Section):
            lines = found[line] = []
        else:
            lines.append(line)
    for lines in found.values():
        while lines and not lines[-1]:
            lines.pop()
    return found


def of_loaders(outcomes: Sequence[Outcome], seed: int) -> list[str]:
    """Return the results of kills of loaders."""
    kills = sum(outcome.setting.kills for outcome in outcomes)
    lines = [
        f"`make kills`, seed {seed}, Python {python_version()}. {circumstances()} {kills} kills, "
        f"{sum(outcome.compared for outcome in outcomes):,} messages; in the end each lake had "
        "each of its topic's offsets once, with the same key, value, headers and time stamp, in the directory of its "
        "hour, and no file that no commit names.",
        "",
        "| round | kills | the loader went on | messages | commits | s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {each.setting.name} | {each.setting.kills} | {each.survived} | {each.compared:,} | {each.commits} | "
        f"{each.seconds:.0f} |"
        for each in outcomes
    ]
    return [*lines, *tables(outcomes, Victim, Moment, _ENDS)]


def of_pipelines(outcomes: Sequence[pipeline.Outcome], seed: int) -> list[str]:
    """Return the results of strikes on pipelines."""
    times, processes = sum(each.setting.kills for each in outcomes), sum(each.killed for each in outcomes)
    rows = sum(each.compared for each in outcomes)
    lines = [
        f"`make kills-mirror`, seed {seed}, Python {python_version()}. {circumstances()} {times} times a part of the "
        f"mirror, a part of the loader and the whole compactor were killed together, every second time also a broker: "
        f"{processes} processes in all. {rows:,} messages were sent. In the end the log of the serving cluster had "
        "each of them once and in order, and the log of the analysis cluster (committed records) and the lake had the "
        "same rows: key, value, headers, time stamp and its type, and order in each partition, between the logs; the "
        "same and the offset between log and lake. *Longest*: from a strike until records that were copied after it "
        "were in the lake.",
        "",
        "| round | strikes | processes killed | rows compared | commits | compactions | longest (s) | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {number} | {each.setting.kills} | {each.killed} | {each.compared:,} | {each.commits} | "
        f"{each.compactions} | {each.longest:.0f} | {each.seconds:.0f} |"
        for number, each in enumerate(outcomes, 1)
    ]
    return [*lines, *tables(outcomes, strikes.Victim, strikes.Moment, _ENDS)]
