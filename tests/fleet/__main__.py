"""Run it: `python -m tests.fleet --results tests/fleet/RESULTS.md`. `run` says what is done.

Exit status 1 if a promise was broken: a partition is out of use for longer than the talk's 6 s, an acknowledged record
is lost, a replica is outside of its label, or a worker of a mirror disturbs partitions of others.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests import preload
from tests.fleet.faults import FAULTS
from tests.fleet.page import write
from tests.fleet.run import BOUND_SECONDS, FleetRun, Plan


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fleet", description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder for data and logs, which is kept")
    parser.add_argument("--results", type=Path, help="a Markdown file for the results")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault happens")
    parser.add_argument("--bound", type=float, default=BOUND_SECONDS, help="seconds until all is in use again")
    parser.add_argument("--only", metavar="TEXT", help="faults whose names have this text")
    parser.add_argument("--tick", type=int, default=500, metavar="MS", help="ZooKeeper's tickTime")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds in which each partition gets a record")
    parser.add_argument("--no-mirror", action="store_true")
    parser.add_argument("--no-expansion", action="store_true")
    options = parser.parse_args(arguments)
    if why := preload.why_not():
        parser.error(f"faults are not possible here: {why}")
    chosen = tuple(fault for fault in FAULTS if not options.only or options.only in fault.name)
    plan = Plan(
        options.partitions, options.rounds, options.interval, options.tick, options.bound, chosen,
        expands=not options.no_expansion, mirrors=not options.no_mirror,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fleet-") as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        outcome = FleetRun(folder, plan, lambda text: print(text, flush=True)).run()
    for fault in outcome.faults[:50]:
        print(f"FAULT {fault}", flush=True)
    if options.results is not None:
        write(options.results, outcome, plan)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
