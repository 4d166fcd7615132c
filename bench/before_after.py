"""Compare pylogd with an earlier pylogd: did a change make a row of `make bench-smoke` slower?

    python -m bench before-after /elsewhere/.venv/bin/pylogd [--repeats 16] [--only WORD] [--write]

The argument is the `pylogd` command of the earlier version, installed in another environment. Both, the bare ceiling
and the floor take turns in each round with the client and the sizes of `bench/smoke.py`. A ratio is the median over
rounds, with its 95 % confidence interval (bootstrap over rounds): if that includes 1, the row shows no difference.

Rules: the order of the turns is reversed each round, and each round reads logs of its own. What a broker costs depends
on how the kernel has placed the pages of its log: two brokers of the same version that read one log each for all rounds
differed by up to a quarter, with narrow intervals. To see what the method makes of no change, give it the present
`pylogd` command.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench import harness, smoke
from bench.harness import interval
from bench.loads.kafka import CLIENT, build
from bench.machine import machine
from bench.peers import PEERS, Pylogd
from bench.smoke_report import Results
from pylogd.local.broker import BrokerProcess
from tests.pages import write_page

HERE = Path(__file__).parent
OTHERS = ("before", "ceiling", "floor")


def earlier(command: str) -> type[Pylogd]:
    """Return the peer that runs this `pylogd` command."""

    class Before(Pylogd):
        name = "before"

        def start(self) -> None:
            begun = time.monotonic()
            prefix = harness.earlier(command)
            self._process = process = BrokerProcess(self.data, self.folder / "log", prefix=prefix)
            self.host, self.port, self.pid = process.host, process.port, process.pid
            self.await_accept(lambda: process.process.poll() is None, begun)

    return Before


def table(results: Results, repeats: int, where: str) -> str:
    """Return the page."""
    lines = [
        "# pylogd after and before a change",
        "",
        f"By `python -m bench before-after` ({repeats} rounds in turns; see its docstring). Above 1 means more "
        "messages a second, or processor time, than the earlier pylogd, the ceiling or the floor (`bench/floor.c`). An "
        "interval that includes 1 shows no difference.",
        "",
        "| | " + " | ".join(f"messages/s : {other} | CPU : {other}" for other in OTHERS) + " |",
        "| --- |" + " --- | --- |" * len(OTHERS),
    ]
    for name, peers in results.workloads.items():
        cells = [name]
        for other in OTHERS:
            pairs = list(zip(peers["pylogd"], peers[other], strict=True))
            cells.append(interval([mine.rate / theirs.rate for mine, theirs in pairs]))
            cells.append(interval([mine.cpu / theirs.cpu for mine, theirs in pairs]))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Measured on {where}.", ""])


def main() -> None:
    """Run the rows."""
    parser = argparse.ArgumentParser(description="compare pylogd with an earlier pylogd")
    parser.add_argument("command", help="the earlier one's `pylogd` command")
    parser.add_argument("--repeats", type=int, default=16, help="rounds (16)")
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    parser.add_argument("--write", action="store_true", help="write BEFORE_AFTER.md")
    options = parser.parse_args()
    build()
    PEERS["before"] = earlier(options.command)
    with tempfile.TemporaryDirectory(prefix="data-", dir=CLIENT.parent) as folder:
        bench = smoke.Bench([*OTHERS, "pylogd"], options.repeats, 1.0, Path(folder), refill=True)
        for work in smoke.WORKLOADS:
            if options.only in work.name:
                (bench.produce_row if work.verb == "produce" else bench.consume_row)(work)
    where = ", ".join(f"{key} {value}" for key, value in machine(bench.results.librdkafka).items())
    page = table(bench.results, options.repeats, f"{where}; before: {options.command}")
    print(page)
    if options.write:
        write_page(HERE / "BEFORE_AFTER.md", [page])


if __name__ == "__main__":
    main()
