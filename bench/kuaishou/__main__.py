"""Kuaishou's experiments. Writes bench/KUAISHOU.md, bench/kuaishou.json and bench/plots/kuaishou-*.svg.

    python -m bench kuaishou [--only cache,expansion] [--rounds N] [--seconds S] [--quick] [--report] [--list]

Needs root, control groups with memory and disk limits, and loop devices; an experiment that this machine does not allow
is skipped, and the page says why. What a killed run left is removed at the next start.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import confluent_kafka

from bench.harness import say
from bench.kuaishou import cache, expansion, frozen_disk, laggards, report
from bench.kuaishou.experiment import Experiment, Scale
from bench.kuaishou.lab import IMAGES, Unavailable, laboratory, why_not
from bench.machine import machine
from conformance.checks import Missing

BENCH: Final = Path(__file__).parents[1]
QUICK: Final = BENCH.parent / ".cache" / "bench" / "kuaishou-quick"
ROUNDS: Final = 3
EXPERIMENTS: Final[Sequence[Experiment]] = (
    frozen_disk.EXPERIMENT,
    cache.EXPERIMENT,
    laggards.EXPERIMENT,
    laggards.EVEN_EXPERIMENT,
    expansion.EXPERIMENT,
)


def measure(
    experiment: Experiment, results: report.Results, rounds: int, scale: Scale, images: Path, chosen: Sequence[str]
) -> bool:
    """Run an experiment, its arms in turns, in an order that is reversed each round.

    Returns whether an arm failed; the others go on without it.
    """
    facts = machine(str(confluent_kafka.libversion()[0]))
    commit = facts.pop("commit")
    results.machine = facts
    how = {"Commit": commit, "date": time.strftime("%Y-%m-%d"), "rounds": rounds, "seconds": scale.seconds}
    results.begin(experiment.name, {**how, "load of the machine before": f"{os.getloadavg()[0]:.1f}"})
    arms, failed = [], False
    for arm in chosen or experiment.arms:
        if why := experiment.why_not(arm):
            results.skip(experiment.name, arm, why)
        else:
            arms.append(arm)
    for number in range(rounds):
        for arm in list(arms) if number % 2 == 0 else arms[::-1]:
            begun = time.monotonic()
            try:
                with laboratory(images) as lab:
                    one = experiment.run(lab, arm, scale)
            except (Unavailable, Missing) as error:
                results.skip(experiment.name, arm, str(error))
                arms.remove(arm)
                continue
            except Exception as error:
                traceback.print_exc()
                results.skip(experiment.name, arm, f"round {number + 1} failed: {str(error)[:300]!r}")
                arms.remove(arm)
                failed = True
                continue
            results.add(experiment.name, arm, one)
            figures = ", ".join(f"{name} {value:.4g}" for name, value in one.figures.items())
            say(f"{experiment.name}, round {number + 1}, {arm} ({time.monotonic() - begun:.0f} s): {figures}")
    return failed


def main() -> int:
    """Run what the command line says. Return the exit status: 1 if an experiment failed."""
    parser = argparse.ArgumentParser(prog="python -m bench kuaishou", description="Kuaishou's experiments")
    parser.add_argument("--only", default="", help="only these experiments: names with commas between")
    parser.add_argument("--arms", default="", help="only these arms: names with commas between; the others' are lost")
    parser.add_argument("--rounds", type=int, help=f"rounds of each arm ({ROUNDS})")
    parser.add_argument("--seconds", type=float, help="the main phase of a round (each experiment's own)")
    parser.add_argument("--quick", action="store_true", help="one short round, written to .cache/: an impression")
    parser.add_argument("--report", action="store_true", help="only write the page, from what was measured earlier")
    parser.add_argument("--list", action="store_true", help="list the experiments with their arms")
    parser.add_argument("--images", type=Path, default=IMAGES, help=f"where the disks' images are kept ({IMAGES})")
    options = parser.parse_args()
    if options.list:
        for one in EXPERIMENTS:
            print(f"{one.name}: {one.title} ({', '.join(one.arms)})")
        return 0
    if unknown := set(filter(None, options.only.split(","))) - {one.name for one in EXPERIMENTS}:
        parser.error(f"unknown experiments: {', '.join(sorted(unknown))}; see --list")
    target = QUICK if options.quick else BENCH
    target.mkdir(parents=True, exist_ok=True)
    results = report.Results.load(target / "kuaishou.json")
    failed = not options.report and _run(options, results)
    report.write(results, EXPERIMENTS, target / "KUAISHOU.md", target / "plots")
    say(f"wrote {target / 'KUAISHOU.md'}")
    return 1 if failed else 0


def _run(options: argparse.Namespace, results: report.Results) -> bool:
    """Run the experiments. Return whether one failed; the others run nevertheless."""
    failed = False
    impossible = why_not()
    chosen = [one for one in EXPERIMENTS if not options.only or one.name in options.only.split(",")]
    for one in chosen:
        seconds = options.seconds or (one.seconds / 2 if options.quick else one.seconds)
        rounds = options.rounds or (1 if options.quick else ROUNDS)
        if impossible:
            results.begin(one.name, {})
            for arm in one.arms:
                results.skip(one.name, arm, impossible)
            continue
        arms = [arm for arm in one.arms if arm in options.arms.split(",")]
        failed |= measure(one, results, rounds, Scale(seconds, options.quick), options.images, arms)
    return failed


if __name__ == "__main__":
    sys.exit(main())
