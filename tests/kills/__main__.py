"""Run the harness: `python -m tests.kills --kills 50 --messages 5000000 --seed 1 --results FILE`.

With `--mirror`, mirror, loader and compactor of a pipeline are killed together, instead of loaders alone. The exit code
is 1 if rows differ. Then the data and logs are kept, and the last line names the folder.
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

from tests.kills import pipeline
from tests.kills.harness import CLUSTER, Outcome, Round, Setting
from tests.kills.lakes import RoundLake, on_disk, on_s3
from tests.kills.loading import LOCAL
from tests.kills.outcomes import kept_outcome, outcome_of, tell
from tests.kills.page import of_loaders, of_pipelines, section_of, write_section
from tests.stores.filesystems import s3a_settings

#: (streaming, Spark master) of the rounds. Kills and messages are divided equally among them.
ROUNDS = ((True, LOCAL), (False, LOCAL), (True, LOCAL), (True, CLUSTER), (True, LOCAL))


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run the cleanup of `with` blocks
    options = _parser().parse_args(arguments)
    # loaders run in another folder
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="pylogd-kills-"))).resolve()
    (_run_pipelines if options.mirror else _run_loaders)(options, folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next ones have the next")
    parser.add_argument("--round", type=int, choices=range(1, len(ROUNDS) + 1), help="run only this one")
    parser.add_argument("--store", choices=["local", "s3"], default="local", help="where the lakes are")
    parser.add_argument("--compactor", action="store_true", help="compact beside loaders that follow")
    parser.add_argument("--mirror", action="store_true", help="kill mirror, loader and compactor together")
    parser.add_argument("--folder", type=Path, help="for lakes and logs; rounds that ended there are not run again")
    parser.add_argument("--results", type=Path, help="write what happened to its section of this page")
    return parser


def _run_loaders(options: argparse.Namespace, folder: Path) -> None:
    outcomes: list[Outcome] = []
    for number, each in enumerate(settings(options.kills, options.messages, options.seed), 1):
        setting = replace(each, store=options.store, compactor=options.compactor and each.streaming)
        found = (
            _outcome(number, setting, folder)
            if options.round in (None, number)
            else kept_outcome(number, setting, folder, Outcome.from_json)
        )
        if found is not None:
            outcomes.append(found)
        if outcomes and options.results is not None:
            section = section_of(mirror=False, store=options.store)
            write_section(options.results, section, of_loaders(outcomes, options.seed))


def _outcome(number: int, setting: Setting, folder: Path) -> Outcome:
    def run(place: Path) -> Outcome:
        tell(f"round {number}: {setting.name}, {setting.kills} kills, {setting.messages:,} messages")
        with lake_of(setting, place) as lake:
            outcome = Round(setting, lake, place, tell).run()
        tell(f"{outcome.compared:,} messages compared, {outcome.commits} commits, {outcome.seconds:.0f} s")
        return outcome

    return outcome_of(number, setting, folder, Outcome.from_json, run)


def _run_pipelines(options: argparse.Namespace, folder: Path) -> None:
    outcomes: list[pipeline.Outcome] = []
    for number, each in enumerate(settings(options.kills, options.messages, options.seed), 1):
        setting = pipeline.Setting(each.kills, each.messages, each.seed, options.store)
        place = folder / f"mirror-{options.store}"
        found = (
            _pipeline_outcome(number, setting, place)
            if options.round in (None, number)
            else kept_outcome(number, setting, place, pipeline.Outcome.from_json)
        )
        if found is not None:
            outcomes.append(found)
        if outcomes and options.results is not None:
            section = section_of(mirror=True, store=options.store)
            write_section(options.results, section, of_pipelines(outcomes, options.seed))


def _pipeline_outcome(number: int, setting: pipeline.Setting, folder: Path) -> pipeline.Outcome:
    def run(place: Path) -> pipeline.Outcome:
        tell(f"round {number}: {setting.store}, {setting.kills} strikes, {setting.messages:,} messages")
        with lake_of(setting, place) as lake:
            outcome = pipeline.Pipeline(setting, lake, place, tell).run()
        tell(
            f"{outcome.compared:,} rows compared, {outcome.killed} processes killed, {outcome.commits} commits, "
            f"{outcome.compactions} compactions, {outcome.seconds:.0f} s"
        )
        return outcome

    return outcome_of(number, setting, folder, pipeline.Outcome.from_json, run)


@contextmanager
def lake_of(setting: Setting | pipeline.Setting, place: Path) -> Iterator[RoundLake]:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
