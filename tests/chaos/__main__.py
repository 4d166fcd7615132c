"""The checker by hand: `python -m tests.chaos --seconds 3600 --seed 1 --results tests/chaos/RESULTS.md`.

Exit code 1 if anything that must hold did not. See `checker` for what that is, and `links` for what it needs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests import preload
from tests.chaos import links
from tests.chaos.checker import Chaos, Outcome

#: A longer run is made of runs of so many seconds, each on a new cluster with the next seed.
ROUND_SECONDS = 300.0

#: So many brokers in each of them in turn, unless the command line says.
BROKERS = (3, 3, 5)


def main(arguments: list[str]) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the nemesis is about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, help="by default 3, 3 and 5 in turn")
    parser.add_argument("--folder", type=Path, help="where to keep data and logs, of a failed run too")
    parser.add_argument("--results", type=Path, help="a Markdown file that gets a line a round")
    parser.add_argument("--json", type=Path, help="a file that gets the outcomes")
    options = parser.parse_args(arguments)
    why = "" if links.inside() else links.why_not()
    if not why and not links.inside():
        return links.enter("tests.chaos", arguments)
    if why:
        print(f"links can't be cut, nor a disk be filled, here: {why}. The rest is done.", flush=True)
    if preload.why_not():
        print(f"no power can be lost, nor a clock step, here: {preload.why_not()}. The rest is done.", flush=True)
    outcomes: list[Outcome] = []
    left, seed = options.seconds, options.seed
    while left > 0:
        brokers = options.brokers or BROKERS[len(outcomes) % len(BROKERS)]
        outcomes.append(_round(options.folder, seed, brokers, min(left, ROUND_SECONDS), why))
        left -= ROUND_SECONDS
        seed += 1
        if options.results is not None:
            _write(options.results, outcomes)
    if options.json is not None:
        # A Counter is a dict that `asdict` makes anew from its items, which counts them.
        documents = [{**asdict(outcome), "troubles": dict(outcome.troubles)} for outcome in outcomes]
        options.json.write_text(json.dumps(documents))
    return 1 if any(outcome.faults for outcome in outcomes) else 0


def _round(keep: Path | None, seed: int, brokers: int, seconds: float, why: str) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = Path(temporary) if keep is None else keep / f"seed{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        print(f"seed {seed}, {brokers} brokers, {seconds:.0f} s", flush=True)
        without = preload.why_not()
        chaos = Chaos(folder, seed, brokers, seconds, not why, not without, lambda text: print(text, flush=True))
        outcome = chaos.run()
    outcome.without = "; ".join(filter(None, (why, without)))
    print(f"{outcome.acknowledged} acknowledged, {outcome.read} read, {sum(outcome.troubles.values())} troubles")
    for fault in outcome.faults:
        print(f"FAULT {fault}", flush=True)
    return outcome


def _write(path: Path, outcomes: list[Outcome]) -> None:
    """The results for people."""
    troubles = sorted({name for outcome in outcomes for name in outcome.troubles})
    lines = [
        f"# {sum(outcome.seconds for outcome in outcomes) / 60:.0f} minutes of chaos", "",
        f"`make chaos`, {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPUs.", "",
        "| seed | brokers | s | acknowledged | read and compared | leaders changed | faults | " +
        " | ".join(troubles) + " |",
        "| --- " * (7 + len(troubles)) + "|",
    ]  # fmt: skip
    for one in outcomes:
        counts = " | ".join(str(one.troubles[name]) for name in troubles)
        lines.append(
            f"| {one.seed} | {one.brokers} | {one.seconds:.0f} | {one.acknowledged} | {one.read} | {one.epochs} | "
            f"{len(one.faults)} | {counts} |"
        )
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
