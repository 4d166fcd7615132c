"""Run the harness: `python -m tests.kills --kills 50 --messages 5000000 --seed 1 --results FILE`.

The exit code is 1 if a lake differs from its log. Then the data and logs are kept, and the last line names the folder.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.kills.harness import CLUSTER, LOCAL, Outcome, Round, Setting
from tests.kills.lakes import RoundLake, on_disk, on_s3
from tests.kills.outcomes import outcome_of, tables, tell
from tests.kills.plan import Victim
from tests.kills.processes import python_version
from tests.pages import circumstances, write_page
from tests.stores.filesystems import s3a_settings

#: (streaming, Spark master) of the rounds. Kills and messages are divided equally among them.
ROUNDS = ((True, LOCAL), (False, LOCAL), (True, LOCAL), (True, CLUSTER), (True, LOCAL))


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run the cleanup of `with` blocks
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next ones have the next")
    parser.add_argument("--round", type=int, choices=range(1, len(ROUNDS) + 1), help="only this one, to replay it")
    parser.add_argument("--store", choices=["local", "s3"], default="local", help="where the lakes are")
    parser.add_argument("--compactor", action="store_true", help="compact beside loaders that follow")
    parser.add_argument("--folder", type=Path, help="for lakes and logs; rounds that ended there are not run again")
    parser.add_argument("--results", type=Path, help="write what happened to this file")
    options = parser.parse_args(arguments)
    # loaders run in another folder
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="pylogd-kills-"))).resolve()
    outcomes: list[Outcome] = []
    rounds = settings(options.kills, options.messages, options.seed)
    for number, each in enumerate(rounds, 1):
        setting = replace(each, store=options.store, compactor=options.compactor and each.streaming)
        if options.round in (None, number):
            outcomes.append(_outcome(number, setting, folder))
            if options.results is not None:
                write_page(options.results, [report(outcomes, options.seed)])
    return 0


def _outcome(number: int, setting: Setting, folder: Path) -> Outcome:
    def run(place: Path) -> Outcome:
        tell(f"round {number}: {setting.name}, {setting.kills} kills, {setting.messages:,} messages")
        with lake_of(setting, place) as lake:
            outcome = Round(setting, lake, place, tell).run()
        tell(f"{outcome.compared:,} messages compared, {outcome.commits} commits, {outcome.seconds:.0f} s")
        return outcome

    return outcome_of(number, setting, folder, Outcome.from_json, run)


@contextmanager
def lake_of(setting: Setting, place: Path) -> Iterator[RoundLake]:
    """Yield the lake of a round."""
    if setting.store == "local":
        yield on_disk(place / "lake")
        return
    with on_s3(f"kills-{setting.seed}", s3a_settings) as lake:
        yield lake


def settings(kills: int, messages: int, seed: int) -> Sequence[Setting]:
    """The rounds."""
    count = len(ROUNDS)
    return [
        Setting(
            kills * (at + 1) // count - kills * at // count, messages * (at + 1) // count - messages * at // count,
            seed + at, streaming, master,
        )
        for at, (streaming, master) in enumerate(ROUNDS)
    ]  # fmt: skip


def report(outcomes: Sequence[Outcome], seed: int) -> str:
    """Return the results as Markdown."""
    kills = sum(outcome.setting.kills for outcome in outcomes)
    lines = [
        f"# Loaders killed {kills} times",
        "",
        f"`make kills`, seed {seed}, Python {python_version()}. {circumstances()} "
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
    lines += tables(outcomes, Victim, "What loaders said that ended by an error, to be started again:")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
