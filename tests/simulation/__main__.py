"""Run simulated histories: `python -m tests.simulation --seeds 0-999`, or one of them, told: `--seeds 57 --tell`.

Exit code 1 if something that must hold did not; the seeds are named.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from twisted.logger import LogEvent, formatEvent, globalLogPublisher

from tests.simulation.history import History, Violation


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="one seed, or first-last")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="simulated time that the nemesis has")
    parser.add_argument("--tell", action="store_true", help="print what happened, with what was logged")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    logging.disable(logging.CRITICAL)
    bad, steps, began = 0, 0, time.monotonic()
    seeds = range(int(first), int(last or first) + 1)
    for seed in seeds:
        history = History(seed, arguments.brokers)
        if arguments.tell:
            globalLogPublisher.addObserver(lambda event, history=history: history.say(_text(event)))
        try:
            history.run(arguments.seconds)
        except Violation as violation:
            bad += 1
            print(f"seed {seed}: {violation}" if arguments.tell else f"seed {seed}: {str(violation)[:300]}")
        if arguments.tell:
            print("\n".join(history.events))
        steps += history.steps
    print(f"{len(seeds)} histories of {arguments.brokers} brokers, {steps} events, {bad} violations, "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return 1 if bad else 0


def _text(event: LogEvent) -> str:
    failure = event.get("log_failure")
    return f"    {formatEvent(event)}" + (f"\n{failure.getTraceback()}" if failure is not None else "")


if __name__ == "__main__":
    sys.exit(main())
