"""What three brokers without clients use of the processor. Writes IDLE_BROKERS.md with `--write`.

    python -m bench.idle_brokers [--partitions 0,1000,10000] [--seconds 30] [--rounds 3] [--calls] [--folder DIR]
        [--write]

One cluster of three brokers and a ZooKeeper with default settings. Topics of 100 partitions with three replicas are
added until there are as many partitions as the next number says. Then nothing happens for `--seconds`, in each of
`--rounds` rounds. Measured is the processor time of each broker. `--calls` counts system calls in one more round, by
`strace`, which slows the brokers down.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.failover import in_sync, wait_until
from bench.peers.base import process_seconds
from pylogd.client import Admin, NewTopic
from pylogd.local.cluster import LocalCluster
from tests.pages import circumstances, write_page

REPORT = Path(__file__).with_name("IDLE_BROKERS.md")
BROKERS = 3
_EACH_TOPIC = 100
_CREATE_AT_ONCE = 10
_SETTLE_SECONDS = 15.0
_CALLS_SHOWN = 12


def main() -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="0,1000,10000", help="numbers of partitions, separated by commas")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", action="store_true", help="count system calls too")
    parser.add_argument("--folder", type=Path, help="folder for the brokers' data; by default a temporary one")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    arguments = parser.parse_args()
    how = f"{arguments.rounds} rounds of {arguments.seconds:.0f} s; its docstring says what is measured."
    heads = [f"broker {number}" for number in range(1, BROKERS + 1)]
    lines = [
        "# What brokers without clients cost",
        "",
        f"By `python -m bench.idle_brokers`, {how} {circumstances()}",
        "",
        "Three brokers, three replicas of each partition. Medians, in % of a core.",
        "",
        f"| partitions | {' | '.join(heads)} | the most of one |",
        f"| ---: |{' ---: |' * (BROKERS + 1)}",
    ]
    made = 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, LocalCluster(Path(folder), BROKERS) as cluster:
        for wanted in sorted(int(number) for number in arguments.partitions.split(",")):
            made = _fill(cluster, made, wanted)
            time.sleep(_SETTLE_SECONDS)
            rounds = [_round(cluster, arguments.seconds) for _ in range(arguments.rounds)]
            medians = [f"{statistics.median(shares):.2f}" for shares in zip(*rounds, strict=True)]
            busiest = max(max(shares) for shares in rounds)
            lines.append(f"| {made:,} | {' | '.join(medians)} | {busiest:.2f} |")
            if arguments.calls:
                _print_calls(cluster, arguments.seconds)
    if arguments.write:
        write_page(REPORT, [*lines, ""])
    print("\n".join(lines))


def _fill(cluster: LocalCluster, made: int, wanted: int) -> int:
    """Create topics until there are `wanted` partitions, and wait until all replicas are in sync."""
    names = [f"idle-{number:05}" for number in range(made // _EACH_TOPIC, wanted // _EACH_TOPIC)]
    with Admin(cluster.bootstrap) as admin:
        for start in range(0, len(names), _CREATE_AT_ONCE):
            new = [NewTopic(name, _EACH_TOPIC, BROKERS) for name in names[start : start + _CREATE_AT_ONCE]]
            for error in admin.create_topics(new).values():
                if error is not None:
                    raise error
        wait_until(partial(in_sync, admin, wanted // _EACH_TOPIC, BROKERS), "all replicas are in sync")
    return made + len(names) * _EACH_TOPIC


def _round(cluster: LocalCluster, seconds: float) -> list[float]:
    """Return what each broker used, in % of a core."""
    pids = [broker.pid for _, broker in sorted(cluster.brokers.items())]
    before, begun = [process_seconds(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begun
    return [100 * (process_seconds(pid) - was) / passed for pid, was in zip(pids, before, strict=True)]


def _print_calls(cluster: LocalCluster, seconds: float) -> None:
    """Print the system calls that broker 1 makes in a second, by name."""
    if shutil.which("strace") is None:
        print("strace is not installed")
        return
    command = ["strace", "-c", "-f", "-p", str(cluster.brokers[1].pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracing:
        time.sleep(seconds)
        tracing.terminate()
        assert tracing.stderr is not None
        rows = [line.split() for line in tracing.stderr.read().splitlines()]
    counts = {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdecimal() and row[-1] != "total"}
    most = sorted(counts.items(), key=lambda item: -item[1])[:_CALLS_SHOWN]
    print("  broker 1, calls a second: " + ", ".join(f"{name} {count / seconds:.1f}" for name, count in most))


if __name__ == "__main__":
    main()
