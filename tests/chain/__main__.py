"""Act out the paper's chain: `python -m tests.chain --events 300000 --seed 1 --results FILE`.

The exit status is 1 if anything differs from the producers' journals. Then data and logs are kept, and the last line
names the folder.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chain.page import write
from tests.chain.plan import QUICK, Setting
from tests.chain.run import Chain
from tests.kills.outcomes import tell


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # run the cleanup of `with` blocks
    parser = argparse.ArgumentParser(prog="python -m tests.chain", description=__doc__)
    default = Setting()
    parser.add_argument("--events", type=int, default=default.events)
    parser.add_argument("--rounds", type=int, default=default.rounds, help="how often each victim is struck")
    parser.add_argument("--rate", type=int, default=default.a_second, help="events a second")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--quick", action="store_true", help="what `make test-long` runs; other options are ignored")
    parser.add_argument("--folder", type=Path, help="for data and logs; by default a temporary one")
    parser.add_argument("--results", type=Path, help="write this page, and the plot beside it")
    options = parser.parse_args(arguments)
    setting = Setting(events=options.events, rounds=options.rounds, a_second=options.rate, seed=options.seed)
    if options.quick:
        setting = QUICK
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="pylogd-chain-"))).resolve()
    place = folder / "run"
    shutil.rmtree(place, ignore_errors=True)
    try:
        outcome = Chain(setting, place, tell).run()
    except BaseException as error:
        tell(f"FAILED, kept in {place}: {error}")
        raise
    if options.results is not None:
        write(options.results, outcome)
    shutil.rmtree(place)
    counts = f"{outcome.sent:,} sent, {outcome.received:,} arrived, {outcome.lost:,} lost with their producers"
    tell(f"{len(outcome.struck)} strikes, {counts}; windows {dict(outcome.windows)}, {outcome.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
