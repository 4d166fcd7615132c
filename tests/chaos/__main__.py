"""Run the checker: `python -m tests.chaos --seconds 3600 --seed 1 --results tests/chaos/RESULTS.md`.

The exit code is 1 if a guarantee was violated. `checker` lists the guarantees, `links` the requirements.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from pylogd.config.source import parse_assignments
from tests import preload
from tests.chaos import everything, links
from tests.chaos.checker import Chaos, Outcome
from tests.pages import circumstances, write_page

#: A longer run consists of rounds of this many seconds, each on a new cluster with the next seed.
ROUND_SECONDS = 300.0

#: The number of brokers of the rounds, in turn, without `--brokers`.
BROKERS = (3, 3, 5)


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, help="by default 3, 3 and 5 in turn")
    parser.add_argument("--folder", type=Path, help="folder for data and logs, which a failed run keeps")
    parser.add_argument("--results", type=Path, help="a Markdown file for a table with a row per round")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all brokers")
    parser.add_argument(
        "--everything", action="store_true", help="with block cache, throttled laggards, write queues and labels"
    )
    parser.add_argument("--json", type=Path, help="a JSON file for the outcomes")
    options = parser.parse_args(arguments)
    why = "" if links.inside() else links.why_not()
    if not why and not links.inside():
        return links.enter("tests.chaos", arguments)
    if why:
        print(
            f"link and disk faults are not possible: {why}. Running without them.",
            flush=True,
        )
    if preload.why_not():
        print(
            f"power and clock faults are not possible: {preload.why_not()}. Running without them.",
            flush=True,
        )
    outcomes: list[Outcome] = []
    left, seed = options.seconds, options.seed
    while left > 0:
        brokers = options.brokers or BROKERS[len(outcomes) % len(BROKERS)]
        outcomes.append(_round(options, seed, brokers, min(left, ROUND_SECONDS), why))
        left -= ROUND_SECONDS
        seed += 1
        if options.results is not None:
            _write(options.results, outcomes, options.everything)
    if options.json is not None:
        # `asdict` would rebuild a Counter from its items, and count them.
        documents = [{**asdict(outcome), "troubles": dict(outcome.troubles)} for outcome in outcomes]
        options.json.write_text(json.dumps(documents))
    return 1 if any(outcome.faults for outcome in outcomes) else 0


def _round(options: argparse.Namespace, seed: int, brokers: int, seconds: float, why: str) -> Outcome:
    keep: Path | None = options.folder
    settings = {**(everything.SETTINGS if options.everything else {}), **parse_assignments(options.set)}
    labels = everything.labels_of(brokers) if options.everything else ()
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = Path(temporary) if keep is None else keep / f"seed{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        print(f"seed {seed}, {brokers} brokers, {seconds:.0f} s", flush=True)
        without = preload.why_not()
        chaos = Chaos(
            folder, seed, brokers, seconds, not why, not without, lambda text: print(text, flush=True),
            settings=settings, labels=labels,
        )  # fmt: skip
        outcome = chaos.run()
    outcome.without = "; ".join(filter(None, (why, without)))
    print(f"{outcome.acknowledged} acknowledged, {outcome.read} read, {sum(outcome.troubles.values())} troubles")
    for fault in outcome.faults:
        print(f"FAULT {fault}", flush=True)
    return outcome


def _write(path: Path, outcomes: list[Outcome], everything_on: bool) -> None:
    """Write the results as Markdown."""
    switch = " --everything" if everything_on else ""
    troubles = sorted({name for outcome in outcomes for name in outcome.troubles})
    lines = [
        f"# {sum(outcome.seconds for outcome in outcomes) / 60:.0f} minutes of chaos", "",
        f"`python -m tests.chaos --seconds {sum(outcome.seconds for outcome in outcomes):.0f} --seed {outcomes[0].seed}"
        f"{switch}`, Python {platform.python_version()}. {circumstances()}", "",
        "| seed | brokers | s | acknowledged | read and compared | leaders changed | topics recreated | faults | " +
        " | ".join(troubles) + " |",
        "| --- " * (8 + len(troubles)) + "|",
    ]  # fmt: skip
    for one in outcomes:
        counts = " | ".join(str(one.troubles[name]) for name in troubles)
        lines.append(
            f"| {one.seed} | {one.brokers} | {one.seconds:.0f} | {one.acknowledged} | {one.read} | {one.epochs} | "
            f"{one.recreated} | "
            f"{len(one.faults)} | {counts} |"
        )
    write_page(path, lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
