"""Run the checker: `python -m tests.transactions_check --seconds 600 --seed 1`.

Exit status 1 if an anomaly was found. `checker` says what is looked for, `tests.chaos.links` what the faults need.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from pylogd.local.zookeeper import LocalZooKeeper
from tests import preload
from tests.chaos import links
from tests.clusters import BrokerCluster
from tests.pages import circumstances, write_page
from tests.transactions_check import java
from tests.transactions_check.chaos import TransactionChaos
from tests.transactions_check.history import Outcome
from tests.transactions_check.run import SETTINGS, Result, run

#: A longer run consists of rounds of this many seconds, each on a new cluster with the next seed.
ROUND_SECONDS = 300.0
#: How many anomalies of a kind are printed.
_SHOWN = 5
PLANTED = Path(__file__).resolve().parent / "planted"


def plant(fault: str) -> None:
    """Have the brokers that this process starts begin with a fault."""
    os.environ["PYLOGD_PLANTED_FAULT"] = fault
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PLANTED), os.environ.get("PYTHONPATH")]))


def main(arguments: list[str]) -> int:
    """Run as the command line says, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.transactions_check", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long faults are injected, without settling")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=3, help="a single one has no faults but planted ones")
    parser.add_argument("--settle", type=float, default=120.0, help="seconds after which an open transaction hangs")
    parser.add_argument("--java", action="store_true", help="with copiers that use Kafka's own client too")
    parser.add_argument("--plant", help="a fault of tests/transactions_check/planted, which has to be found")
    parser.add_argument("--folder", type=Path, help="folder for data and logs, which are kept")
    parser.add_argument("--results", type=Path, help="a Markdown file for a table with a row for each round")
    parser.add_argument("--json", type=Path, help="a JSON file for the results")
    options = parser.parse_args(arguments)
    if options.java:
        java.command()  # downloads and compiles, while there is a network
    if options.brokers > 1 and not links.inside():
        why = links.why_not()
        if not why:
            return links.enter("tests.transactions_check", arguments)
        print(f"faults of links and disks are not possible: {why}. Running without them.", flush=True)
    if options.plant is not None:
        plant(options.plant)
    results: list[Result] = []
    left, seed = options.seconds, options.seed
    while left > 0:
        results.append(_round(options, seed, min(left, ROUND_SECONDS)))
        left, seed = left - ROUND_SECONDS, seed + 1
        if options.results is not None:
            _write(options.results, results)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(result) for result in results]))
    return 1 if any(result.anomalies for result in results) else 0


def _round(options: argparse.Namespace, seed: int, seconds: float) -> Result:
    """Run a round on a new cluster. What brokers log of their own failures counts as an anomaly."""
    with tempfile.TemporaryDirectory(prefix="transactions-") as name:
        folder = Path(name) if options.folder is None else options.folder / f"seed{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        if options.brokers == 1:
            result = _run_alone(folder, seed, seconds, options)
        else:
            chaos = TransactionChaos(
                folder, seed, options.brokers, seconds, links.inside(), not preload.why_not(),
                lambda text: print(text, flush=True), settings=SETTINGS,
            )  # fmt: skip
            chaos.settle_seconds, chaos.with_java = options.settle, options.java
            faults = chaos.run().faults
            result = chaos.result
            result.anomalies += faults
    for key, value in asdict(result).items():
        print(f"{key}: {_some_of_each(value) if key == 'anomalies' else value}", flush=True)
    return result


def _some_of_each(anomalies: list[str]) -> list[str]:
    """Return the first anomalies of each kind."""
    kinds: dict[str, list[str]] = {}
    for text in anomalies:
        kinds.setdefault(text.partition(":")[0], []).append(text)
    return [text for found in kinds.values() for text in found[:_SHOWN]]


def _run_alone(folder: Path, seed: int, seconds: float, options: argparse.Namespace) -> Result:
    """Run a round on one broker, which nothing happens to."""

    def wait() -> Counter[str]:
        time.sleep(seconds)
        return Counter()

    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(LocalZooKeeper(folder / "zookeeper", sync=False))
        cluster = BrokerCluster(folder, f"{zookeeper.hosts}/check", 1, SETTINGS)
        try:
            result = run(cluster.bootstrap, seed, 1, wait, options.settle, with_java=options.java)
        finally:
            faults = cluster.close()
    result.anomalies += faults
    return result


def _write(path: Path, results: list[Result]) -> None:
    """Write the results as Markdown."""
    faults = sorted({name for one in results for name in one.faults})
    seconds = sum(one.seconds for one in results)
    lines = [
        "# The checker of transactions", "",
        f"`make transactions`, Python {platform.python_version()}, {seconds / 60:.0f} minutes with settling.",
        "Each committed record is looked for in what readers got, in its copies, and in the log at the end;",
        "`checker.py` and `cycles.py` say what is looked for. Overtaking: pairs of transactions that wrote in both",
        "orders, in different partitions, which Kafka allows.", "", circumstances(), "",
        "| seed | s | committed | aborted | not known | records | overtaking | errors of clients | **anomalies** | "
        + " | ".join(faults) + " |",
        "| --- " * (9 + len(faults)) + "|",
    ]  # fmt: skip
    for one in results:
        ended = " | ".join(str(one.transactions[outcome.value]) for outcome in Outcome)
        counts = " | ".join(str(one.faults.get(name, 0)) for name in faults)
        lines.append(
            f"| {one.seed} | {one.seconds:.0f} | {ended} | {one.records} | {one.overtaking} | "
            f"{sum(one.troubles.values())} | {len(one.anomalies)} | {counts} |"
        )
    write_page(path, lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
