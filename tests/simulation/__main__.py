"""Run simulated histories: `python -m tests.simulation --seeds 0-999`, or one with its events: `--seeds 57 --tell`.

The exit code is 1 if an invariant was violated; the seeds are printed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, cast

from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher

from tests.simulation.expansion import SmoothHistory
from tests.simulation.groups import GroupHistory
from tests.simulation.history import History, Violation
from tests.simulation.labels import LabelledHistory
from tests.simulation.promptness import BOUND, BOUND_WITH_QUEUES, PromptGroupHistory, PromptHistory
from tests.simulation.transactions import TransactionHistory


def main() -> int:
    """Run as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="one seed, or first-last")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seconds", type=float, help="simulated time that the nemesis has (4; of groups 10)")
    parser.add_argument("--labels", action="store_true", help="five brokers with labels; the topic changes its label")
    parser.add_argument("--jobs", type=int, default=1, help="how many to run side by side, in processes of their own")
    parser.add_argument("--smooth", action="store_true", help="reassignments begin with the latest offset")
    parser.add_argument("--transactions", action="store_true", help="producers with transactions, and the coordinator")
    parser.add_argument("--prompt", action="store_true", help="no faults; nothing that is committed stays unseen")
    parser.add_argument("--groups", action="store_true", help="a consumer group, and its coordinator")
    parser.add_argument("--queues", nargs="?", const="always", help="brokers write behind queues: log.write.queues")
    parser.add_argument("--tell", action="store_true", help="print what happened, with what was logged")
    arguments = parser.parse_args()
    if arguments.smooth:
        arguments.brokers = max(arguments.brokers, 4)  # so that there is one to move to
    first, _, last = arguments.seeds.partition("-")
    bad, steps, began = 0, 0, time.monotonic()
    seeds = range(int(first), int(last or first) + 1)
    make = _maker(arguments)
    run = partial(_run, make=make, seconds=arguments.seconds, tell=arguments.tell)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        ended = pool.map(run, seeds, chunksize=20) if arguments.jobs > 1 else map(run, seeds)
        for number, (violation, taken) in enumerate(ended, 1):
            bad += violation is not None
            steps += taken
            if violation is not None:
                print(violation, flush=True)
            if number % 1000 == 0 and number < len(seeds):
                print(f"{number} histories, {bad} violations, {time.monotonic() - began:.0f} s", flush=True)
    brokers = "5 labelled" if arguments.labels else arguments.brokers
    print(f"{len(seeds)} histories of {brokers} brokers, {steps} events, {bad} violations, "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return 1 if bad else 0


def _maker(arguments: argparse.Namespace) -> Callable[[int], History]:
    """Return what makes the history of a seed, of the kind that the command line asks for."""
    settings: dict[str, Any] = {"log_write_queues": arguments.queues} if arguments.queues else {}
    if arguments.labels:
        return partial(LabelledHistory, **settings)
    if arguments.smooth:
        return partial(SmoothHistory, brokers=max(arguments.brokers, 4), **settings)
    if arguments.transactions:
        return partial(TransactionHistory, brokers=arguments.brokers, **settings)
    if arguments.prompt:
        bound = BOUND_WITH_QUEUES if arguments.queues else BOUND
        prompt = PromptGroupHistory if arguments.groups else PromptHistory
        return partial(prompt, brokers=arguments.brokers, bound=bound, **settings)
    if arguments.groups:
        return partial(GroupHistory, brokers=arguments.brokers, **settings)
    return partial(History, brokers=arguments.brokers, **settings)


def _run(seed: int, make: Callable[[int], History], seconds: float | None, tell: bool) -> tuple[str | None, int]:
    """Run a history. Return the violation, or None, and the number of events."""
    logging.disable(logging.CRITICAL)
    history = make(seed)
    if tell:
        globalLogPublisher.addObserver(cast(ILogObserver, lambda event: history.say(_text(event))))
    try:
        history.run(*(() if seconds is None else (seconds,)))
    except Violation as violation:
        return f"seed {seed}: {violation}" if tell else f"seed {seed}: {str(violation)[:300]}", history.steps
    finally:
        if tell:
            print("\n".join(history.events))
    return None, history.steps


def _text(event: LogEvent) -> str:
    failure = event.get("log_failure")
    return f"    {formatEvent(event)}" + (f"\n{failure.getTraceback()}" if failure is not None else "")


if __name__ == "__main__":
    sys.exit(main())
