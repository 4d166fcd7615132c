"""What workers cost: the same load at one broker and at `--workers N`, in turns. Writes WORKERS.md with `--write`.

    python -m bench.workers [--workers 2] [--pairs 10] [--messages 400000] [--write]

In each half of a pair a fresh broker, or fresh workers, get `--messages` messages of 200 bytes in eight partitions
from bench/client.c, in batches of 10, with acks=all. The client has the same cores, so rates say what a machine of this
size gains; the processor time for each message is that of all processes of the broker. Ratios are medians over pairs
with their 95 % confidence interval (bootstrap over pairs).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.before_after import interval
from bench.loads.base import run_all
from bench.loads.kafka import CLIENT, build
from bench.peers.base import process_seconds, process_tree
from pylogd.client import Admin
from pylogd.local.broker import BrokerProcess
from tests.pages import circumstances, write_page

REPORT = Path(__file__).with_name("WORKERS.md")
_TOPIC = "bench"
_PARTITIONS = 8
_BATCH = 10
_SIZE = 200


def turn(workers: int, messages: int) -> tuple[float, float]:
    """Return messages a second, and microseconds of the broker's processor time for a message. workers: 0 for none."""
    arguments = ["--workers", str(workers)] if workers else []
    with tempfile.TemporaryDirectory(prefix="pylogd-bench-") as name:
        broker = BrokerProcess(Path(name) / "data", Path(name) / "log", arguments=arguments)
        try:
            with Admin(broker.address) as admin:
                admin.create_topic(_TOPIC, _PARTITIONS, 1)
            pids = process_tree([broker.pid])
            before = sum(map(process_seconds, pids))
            command = [str(CLIENT), "produce", broker.address, _TOPIC, str(messages), str(_SIZE), "acks=all",
                       f"bench.partitions={_PARTITIONS}", f"batch.num.messages={_BATCH}"]  # fmt: skip
            (said,) = run_all([command])
            used = sum(map(process_seconds, pids)) - before
        finally:
            broker.stop()
    return messages / said.seconds, used / messages * 1e6


def report(workers: int, one: Sequence[tuple[float, float]], many: Sequence[tuple[float, float]]) -> list[str]:
    """Return the page."""
    rows = []
    for index, name in enumerate(("messages/s", "processor time for a message, us")):
        alone, together = [found[index] for found in one], [found[index] for found in many]
        digits = 2 * index
        ratio = interval([b / a for a, b in zip(alone, together, strict=True)])
        medians = [f"{statistics.median(values):,.{digits}f}" for values in (alone, together)]
        rows.append(f"| {name} | {' | '.join(medians)} | {ratio} |")
    return [
        "# Workers beside one broker", "",
        f"By `python -m bench.workers` ({len(one)} pairs in turns; its docstring says how). {circumstances()}", "",
        f"| | one broker | {workers} workers | ratio |", "| --- | ---: | ---: | ---: |",
        *rows,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    options = parser.parse_args()
    build()
    one: list[tuple[float, float]] = []
    many: list[tuple[float, float]] = []
    for pair in range(options.pairs):
        for workers in (0, options.workers) if pair % 2 else (options.workers, 0):
            found = turn(workers, options.messages)
            (many if workers else one).append(found)
            print(f"{workers or 'one'}: {found[0]:,.0f}/s, {found[1]:.2f} us", flush=True)
    lines = report(options.workers, one, many)
    print("\n".join(lines))
    if options.write:
        write_page(REPORT, lines)


if __name__ == "__main__":
    main()
