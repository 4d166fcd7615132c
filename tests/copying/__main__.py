"""Run it: `python -m tests.copying --seconds 600 --seed 1 --results tests/copying/RESULTS.md`.

Exit status 1 if a record was not copied, or was copied twice. `run` says what is done.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from conformance import java_tools
from tests import preload
from tests.chaos import links
from tests.copying.run import Copying, Outcome
from tests.pages import circumstances, write_page

#: A longer run consists of rounds of this many seconds, each on a new cluster with the next seed.
ROUND_SECONDS = 300.0


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.copying", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="folder for data and logs, which is kept")
    parser.add_argument("--results", type=Path, help="a Markdown file for a table with a row for each round")
    options = parser.parse_args(arguments)
    why = "" if links.inside() else links.why_not()
    if not why and not links.inside():
        return links.enter("tests.copying", arguments)
    for what, missing in (("links and disks", why), ("power and clocks", preload.why_not())):
        if missing:
            print(f"without faults of {what}: {missing}", flush=True)
    outcomes: list[Outcome] = []
    left, seed = options.seconds, options.seed
    while left > 0:
        outcomes.append(_round(seed, min(left, ROUND_SECONDS), options.folder, inside=not why))
        left, seed = left - ROUND_SECONDS, seed + 1
        if options.results is not None:
            _write(options.results, outcomes)
    return 1 if any(outcome.faults for outcome in outcomes) else 0


def _round(seed: int, seconds: float, keep: Path | None, *, inside: bool) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="copying-") as temporary:
        folder = Path(temporary) if keep is None else keep / f"seed{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        print(f"seed {seed}, {seconds:.0f} s", flush=True)
        has_preload = not preload.why_not()
        run = Copying(
            folder, seed, seconds, links=inside, preload=has_preload, tell=lambda text: print(text, flush=True)
        )
        outcome = run.run()
    print(f"{outcome.acknowledged} acknowledged, {outcome.copied} copied, {outcome.aborted} offsets of markers and of "
          f"what was aborted, {sum(outcome.troubles.values())} troubles")  # fmt: skip
    for fault in outcome.faults:
        print(f"FAULT {fault}", flush=True)
    return outcome


def _write(path: Path, outcomes: list[Outcome]) -> None:
    """Write the results as Markdown."""
    troubles = sorted({name for outcome in outcomes for name in outcome.troubles})
    lines = [
        "# Copying in transactions, with faults", "",
        f"`make copying`, Python {platform.python_version()}, Apache Kafka {java_tools.version()}'s "
        "TransactionalMessageCopier, three copiers in a "
        "group, three brokers. What is committed in each partition of the target is compared with the source: each "
        "record once, in order.", "", circumstances(), "",
        "| seed | s | acknowledged | copied | offsets of markers and aborted records | faults | "
        + " | ".join(troubles) + " |",
        "| --- " * (6 + len(troubles)) + "|",
    ]  # fmt: skip
    for one in outcomes:
        counts = " | ".join(str(one.troubles[name]) for name in troubles)
        lines.append(
            f"| {one.seed} | {one.seconds:.0f} | {one.acknowledged} | {one.copied} | {one.aborted} | "
            f"{len(one.faults)} | {counts} |"
        )
    write_page(path, lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
