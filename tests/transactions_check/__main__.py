"""Run the checker: `python -m tests.transactions_check --seconds 600 --seed 1`.

Exit status 1 if an anomaly was found. `checker` says what is looked for.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from pylogd.local.zookeeper import LocalZooKeeper
from tests.clusters import BrokerCluster
from tests.transactions_check.run import SETTINGS, run

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
    options = parser.parse_args(arguments)
    if options.plant is not None:
        plant(options.plant)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LocalZooKeeper(folder / "zookeeper", sync=False) as zookeeper:
            cluster = BrokerCluster(folder, f"{zookeeper.hosts}/check", options.brokers, SETTINGS)
            try:
                result = run(
                    cluster, options.seed, options.seconds, kills=options.brokers > 1, settle_seconds=options.settle
                )
            finally:
                faults = cluster.close()
    for key, value in asdict(result).items():
        print(f"{key}: {value[:20] if isinstance(value, list) else value}")
    print("\n".join(faults))
    return 1 if result.anomalies or faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
