"""Run the checker: `python -m tests.transactions_check --seconds 600 --seed 1`.

Exit status 1 if an anomaly was found. `checker` says what is looked for.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from pylogd.local.zookeeper import LocalZooKeeper
from tests.clusters import BrokerCluster
from tests.transactions_check.history import Outcome
from tests.transactions_check.run import SETTINGS, Result, run

#: A longer run consists of rounds of this many seconds, each on a new cluster with the next seed.
ROUND_SECONDS = 120.0
PLANTED = Path(__file__).resolve().parent / "planted"


def plant(fault: str) -> None:
    """Have the brokers that this process starts begin with a fault."""
    os.environ["PYLOGD_PLANTED_FAULT"] = fault
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PLANTED), os.environ.get("PYTHONPATH")]))


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.transactions_check", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long brokers are killed; settling comes after")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--settle", type=float, default=120.0, help="seconds after which an open transaction hangs")
    parser.add_argument("--plant", help="a fault of tests/transactions_check/planted, which has to be found")
    parser.add_argument("--results", type=Path, help="a Markdown file for a table with a row for each round")
    options = parser.parse_args(arguments)
    if options.plant is not None:
        plant(options.plant)
    results: list[Result] = []
    left, seed = options.seconds, options.seed
    while left > 0:
        results.append(_round(seed, options.brokers, min(left, ROUND_SECONDS), options.settle))
        left, seed = left - ROUND_SECONDS, seed + 1
        if options.results is not None:
            _write(options.results, results)
    return 1 if any(result.anomalies for result in results) else 0


def _round(seed: int, brokers: int, seconds: float, settle: float) -> Result:
    """Run a round on a new cluster. What brokers log of their own failures counts as an anomaly."""
    with tempfile.TemporaryDirectory(prefix="transactions-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        zookeeper = stack.enter_context(LocalZooKeeper(folder / "zookeeper", sync=False))
        cluster = BrokerCluster(folder, f"{zookeeper.hosts}/check", brokers, SETTINGS)
        try:
            result = run(cluster, seed, seconds, kills=brokers > 1, settle_seconds=settle)
        finally:
            faults = cluster.close()
    result.anomalies += faults
    for key, value in asdict(result).items():
        print(f"{key}: {value[:20] if isinstance(value, list) else value}", flush=True)
    return result


def _write(path: Path, results: list[Result]) -> None:
    """Write the results as Markdown."""
    lines = [
        "# The checker of transactions", "",
        f"`make transactions`, {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPUs. Brokers are killed and stopped, one after the other. Each record that is committed is "
        "looked for in what readers got, in both copies of it, and in the log at the end.", "",
        "| seed | s | committed | aborted | not known | records | kills and stops | errors of clients | anomalies |",
        "| --- " * 9 + "|",
    ]  # fmt: skip
    for one in results:
        ended = " | ".join(str(one.transactions[outcome.value]) for outcome in Outcome)
        lines.append(
            f"| {one.seed} | {one.seconds:.0f} | {ended} | {one.records} | {len(one.faults)} | "
            f"{sum(one.troubles.values())} | {len(one.anomalies)} |"
        )
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
