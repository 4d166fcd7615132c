"""Run the harness: `python -m tests.exactly_once --kills 50 --seed 1 --results FILE`.

The exit code is 1 if counts are wrong. Then the data and logs are kept, and the last line names the folder.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.exactly_once.harness import Outcome, Round, Setting
from tests.exactly_once.plan import Moment, Victim
from tests.kills.outcomes import outcome_of, tables, tell
from tests.kills.processes import python_version
from tests.pages import circumstances, write_page

#: The number of brokers in each round. Kills are divided equally among the rounds.
ROUNDS = (1, 3) * 5


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run the cleanup of `with` blocks
    parser = argparse.ArgumentParser(prog="python -m tests.exactly_once", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next ones have the next")
    parser.add_argument("--round", type=int, choices=range(1, len(ROUNDS) + 1), help="only this one, to replay it")
    parser.add_argument("--folder", type=Path, help="for data and logs; rounds that ended there are not run again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no kill of a round later than this")
    parser.add_argument("--results", type=Path, help="write what happened to this file")
    options = parser.parse_args(arguments)
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="pylogd-exactly-once-"))).resolve()
    outcomes: list[Outcome] = []
    for number, setting in enumerate(settings(options.kills, options.seed), 1):
        if options.round in (None, number):
            outcomes.append(_outcome(number, setting, folder, options.seconds))
            if options.results is not None:
                write_page(options.results, [report(outcomes, options.seed)])
    return 0


def _outcome(number: int, setting: Setting, folder: Path, longest: float) -> Outcome:
    def run(place: Path) -> Outcome:
        tell(f"round {number}: {setting.name}, {setting.kills} kills")
        outcome = Round(setting, place, tell, longest).run()
        tell(f"{outcome.events:,} events, {outcome.counts:,} counts, {outcome.epochs} epochs, {outcome.seconds:.0f} s")
        return outcome

    return outcome_of(number, setting, folder, Outcome.from_json, run)


def settings(kills: int, seed: int) -> Sequence[Setting]:
    """The rounds."""
    count = len(ROUNDS)
    return [
        Setting(kills * (at + 1) // count - kills * at // count, seed + at, brokers)
        for at, brokers in enumerate(ROUNDS)
    ]


def report(outcomes: Sequence[Outcome], seed: int) -> str:
    """Return the results as Markdown."""
    kills = sum(outcome.kills for outcome in outcomes)
    lines = [
        f"# A windowed count killed {kills} times, exactly once",
        "",
        f"`make exactly-once`, seed {seed}, Python {python_version()}. {circumstances()} "
        f"`examples/counts_exactly_once.py` counted the committed events of two topics in "
        "windows of a minute, and wrote the counts to a third topic, each epoch in one transaction. In the end a "
        f"consumer of committed records read {sum(each.counts for each in outcomes):,} counts, compared with a loop "
        f"over the {sum(each.events for each in outcomes):,} committed events: each window's count was there "
        "once, and right.",
        "",
        "| round | kills | the query went on | epochs | committed epochs given again | events | counts | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {each.setting.name} | {each.kills} | {each.survived} | {each.epochs} | {each.repeated} | "
        f"{each.events:,} | {each.counts:,} | {each.seconds:.0f} |"
        for each in outcomes
    ]
    lines += tables(outcomes, Victim, Moment, "Last lines of queries that ended by an error, to be started again:")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
