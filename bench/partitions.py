"""What many partitions cost a broker that nobody uses: create, stop, start, kill. Writes PARTITIONS.md with `--write`.

    python -m bench partitions [--partitions 1000,10000] [--rounds 10] [--before COMMAND] [--folder DIR] [--write]

In a round a broker makes the partitions (topics of 100), stays idle, is stopped, started, killed with SIGKILL, started
again and stopped. One message is in every hundredth partition. More than 10,000 partitions have at most three rounds,
since a round makes as many directories and files; 100,000 need `ulimit -n 140000`. `--before` names the `pylogd`
command of an earlier version: it takes turns with this one, in alternating order, and the ratio is the median over the
pairs with its 95 % confidence interval (bootstrap over pairs). The first start, which is not measured, compiles the
modules, as pip does for an installed pylogd. Times are from the command to the first answer, and from the signal to the
end of the process; processor time is the broker's. No time is asserted.

The files of all rounds are removed at the end, because ext4 gives no inode that was freed in the last minutes to a new
file, and searches past all of them: after the removal of 20,000 files, a bare loop that makes as many took 6 s of
processor time in the kernel, and 0.3 s without. Leave some minutes between two runs on one volume.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.harness import earlier, interval
from bench.peers.base import process_seconds
from pylogd.client import Admin, NewTopic, Producer
from pylogd.local.broker import BrokerProcess
from tests.pages import circumstances, write_page

REPORT = Path(__file__).with_name("PARTITIONS.md")
_EACH_TOPIC = 100
_TOPICS_AT_ONCE = 5
_IDLE_SECONDS = 10.0
_SETTLE_SECONDS = 2.0
_TIMEOUT_SECONDS = 600.0
_MANY = 10_000
_ROUNDS_OF_MORE = 3

#: What is measured, and its unit.
MEASURES = {
    "create": "s",
    "processor time to create": "s",
    "idle": "% of a core",
    "resident memory": "MB",
    "stop after creation": "s",
    "start": "s",
    "processor time to start": "s",
    "start after a kill": "s",
    "stop after that": "s",
}
Measured = dict[str, float]


class Broker:
    """A broker of one version on one data directory."""

    def __init__(self, folder: Path, prefix: Sequence[str]) -> None:
        self._folder = folder
        # An installed pylogd has bytecode, which half of the processor time of its imports depends on.
        bytecode = ["env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPYCACHEPREFIX={folder / 'bytecode'}"]
        self._prefix = [*bytecode, *prefix]
        self.process = self._start()

    def _start(self) -> BrokerProcess:
        return BrokerProcess(self._folder / "data", self._folder / "log", prefix=self._prefix)

    def start(self) -> float:
        """Start it again; return the seconds until it has answered a request for all topics."""
        begun = time.monotonic()
        self.process = self._start()
        with Admin(self.process.address) as admin:
            admin.list_topics()
        return time.monotonic() - begun

    def end(self, sent: signal.Signals) -> float:
        """End it by a signal; return the seconds until the process was gone."""
        begun = time.monotonic()
        self.process.process.send_signal(sent)
        self.process.join(_TIMEOUT_SECONDS)
        return time.monotonic() - begun

    def kill(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()

    @property
    def processor_seconds(self) -> float:
        """The processor time of the process so far."""
        return process_seconds(self.process.process.pid)

    @property
    def resident_mb(self) -> float:
        """The memory of the process."""
        pages = int(Path(f"/proc/{self.process.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def fill(address: str, partitions: int) -> None:
    """Make the partitions, and write a message into some of them."""
    names = [f"t{number}" for number in range(partitions // _EACH_TOPIC)]
    with Admin(address, request_timeout=_TIMEOUT_SECONDS) as admin:
        for at in range(0, len(names), _TOPICS_AT_ONCE):
            new = [NewTopic(name, _EACH_TOPIC, 1) for name in names[at : at + _TOPICS_AT_ONCE]]
            for error in admin.create_topics(new).values():
                if error is not None:
                    raise error
    with Producer(address) as producer:
        for name in names:
            producer.send(name, b"one", partition=0)


def measure(partitions: int, prefix: Sequence[str], folder: Path) -> Measured:
    """Run one round, whose files stay in `folder`; return what was measured."""
    with contextlib.ExitStack() as stack:
        broker = Broker(Path(tempfile.mkdtemp(dir=folder)), prefix)
        stack.callback(broker.kill)
        found: Measured = {}
        before, begun = broker.processor_seconds, time.monotonic()
        fill(broker.process.address, partitions)
        found["create"] = time.monotonic() - begun
        found["processor time to create"] = broker.processor_seconds - before
        time.sleep(_SETTLE_SECONDS)
        before = broker.processor_seconds
        time.sleep(_IDLE_SECONDS)
        found["idle"] = (broker.processor_seconds - before) / _IDLE_SECONDS * 100
        found["resident memory"] = broker.resident_mb
        found["stop after creation"] = broker.end(signal.SIGTERM)
        found["start"] = broker.start()
        found["processor time to start"] = broker.processor_seconds
        broker.end(signal.SIGKILL)
        found["start after a kill"] = broker.start()
        found["stop after that"] = broker.end(signal.SIGTERM)
        return found


def rounds(count: int, arms: Sequence[Callable[[], Measured]]) -> Iterator[list[Measured]]:
    """Run the arms by turns, every second round in the other order; yield what each measured."""
    for number in range(count):
        order = range(len(arms)) if number % 2 == 0 else reversed(range(len(arms)))
        found = {at: arms[at]() for at in order}
        yield [found[at] for at in range(len(arms))]


def table(partitions: int, found: Sequence[Sequence[Measured]]) -> list[str]:
    """Return the section of one number of partitions."""
    compared = len(found[0]) > 1
    head = "| | unit | now | before | now to before |" if compared else "| | unit | median | least | most |"
    lines = [f"## {partitions:,} partitions, {len(found)} rounds", "", head, "| --- | --- | ---: | ---: | --- |"]
    for name, unit in MEASURES.items():
        now = [row[0][name] for row in found]
        middle = statistics.median(now)
        if compared:
            before = [row[1][name] for row in found]
            if not all(before):  # nothing to be divided by
                lines.append(f"| {name} | {unit} | {middle:.2f} | {statistics.median(before):.2f} | |")
                continue
            ratios = [a / b for a, b in zip(now, before, strict=True)]
            lines.append(f"| {name} | {unit} | {middle:.2f} | {statistics.median(before):.2f} | {interval(ratios)} |")
        else:
            lines.append(f"| {name} | {unit} | {middle:.2f} | {min(now):.2f} | {max(now):.2f} |")
    return [*lines, ""]


def main() -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--partitions", default="1000,10000", help="numbers of partitions")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--before", help="the `pylogd` command of an earlier version")
    parser.add_argument("--folder", type=Path, help="where the data directories are made")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    options = parser.parse_args()
    how = "By `python -m bench partitions`; its docstring says what is measured."
    lines = ["# What many partitions cost a broker that nobody uses", "", f"{how} {circumstances()}", ""]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for partitions in map(int, options.partitions.split(",")):
            count = min(options.rounds, _ROUNDS_OF_MORE) if partitions > _MANY else options.rounds
            lines += table(partitions, list(rounds(count, _arms(partitions, options.before, Path(folder)))))
    if options.write:
        write_page(REPORT, lines)
    print("\n".join(lines))


def _arms(partitions: int, before: str | None, folder: Path) -> list[Callable[[], Measured]]:
    prefixes = [[], *([earlier(before)] if before else [])]
    return [partial(measure, partitions, prefix, folder) for prefix in prefixes]


if __name__ == "__main__":
    main()
