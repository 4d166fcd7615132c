"""What 10,000 open transactions cost a broker: fetches, writes, memory, timers, and the start of a coordinator.

    python -m bench.open_transactions [--open 10000] [--partitions 1000] [--rounds 10] [--ids 100000] [--write]

Two brokers have the same topic with the same records: ten batches outside of transactions in each partition, then one
batch for each transaction, of a producer of its own. With one broker all transactions are committed, with the other one
all are open. The brokers take turns; a round is some hundred requests of each kind by a plain socket, and the broker's
processor time for them is measured. Reads return the same bytes with both. A ratio is the median over rounds with its
95 % confidence interval (bootstrap). No time is asserted.

Then each broker idles for ten seconds, lists its transactions by the command line, and is killed and started again:
until it answers for all transactional ids. A third broker does that with 100,000 ids. Writes OPEN_TRANSACTIONS.md with
`--write`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bench.before_after import interval
from bench.machine import machine
from bench.peers.base import process_seconds
from pylogd.client import Admin
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.wire.messages.end_txn import EndTxnRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.list_transactions import ListTransactionsRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import TRANSACTIONAL, encode_batch
from tests.pages import write_page
from tests.rawclient import RawClient, memory

HERE: Final = Path(__file__).parent
TOPIC: Final = "t"
PLAIN: Final = 10  # batches outside of transactions in each partition
TIMEOUT_MS: Final = 900_000  # the longest that a broker allows by default
IDLE_SECONDS: Final = 10.0
COMMITTED, OPEN = "none open", "all open"
_INIT, _FIND, _PRODUCE, _FETCH, _END, _LIST = 5, 3, 12, 16, 5, 1  # versions


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def batch(**fields: int) -> bytes:
    """Return a batch of one record."""
    return encode_batch([(None, b"v" * 200, int(time.time() * 1000), ())], **fields)


class Side:
    """A broker and what is measured on it. spent: processor time of a request in us, round by round, by its kind."""

    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir(parents=True)
        self._folder = folder
        self.broker = BrokerProcess(folder / "data", folder / "log")
        self.client = RawClient(self.broker.address)
        self.spent: dict[str, list[float]] = {}
        self.facts: dict[str, float] = {}
        self._topic_id = b""
        self._producer = self._epoch = -1

    def close(self) -> None:
        """End the broker."""
        self.client.close()
        self.broker.kill()

    def initialize(self, name: str) -> tuple[int, int]:
        """Return the producer id and epoch of a new transactional id."""
        answer = self.client.request(InitProducerIdRequest(name, TIMEOUT_MS), _INIT)
        if answer.error_code:
            raise RuntimeError(f"InitProducerId: error {answer.error_code}")
        return answer.producer_id, answer.producer_epoch

    def write(self, indexes: list[int], records: bytes, name: str | None = None) -> None:
        """Produce a batch to each of some partitions."""
        data = [PartitionProduceData(index, records) for index in indexes]
        request = ProduceRequest(name, -1, 30_000, [TopicProduceData(TOPIC, partition_data=data)])
        for answer in self.client.request(request, _PRODUCE).responses[0].partition_responses:
            if answer.error_code:
                raise RuntimeError(f"Produce: error {answer.error_code}: {answer.error_message}")

    def await_coordinator(self) -> None:
        """Wait until the broker coordinates every transactional id."""
        while self.client.request(FindCoordinatorRequest("x", 1), _FIND).error_code:
            time.sleep(0.02)
        while self.client.request(ListTransactionsRequest(), _LIST).error_code:
            time.sleep(0.02)

    def fill(self, partitions: int, transactions: int, commit: bool) -> None:
        """Write the records and begin the transactions, and commit each if asked to."""
        with Admin(self.broker.address) as admin:
            admin.create_topic(TOPIC, partitions)
            self._topic_id = admin.describe_topic(TOPIC).topic_id
        self.await_coordinator()
        for _ in range(PLAIN):
            self.write(list(range(partitions)), batch())
        before = memory(self.broker.pid)
        for number in range(transactions):
            name = f"transactional-id-{number}"
            producer, epoch = self.initialize(name)
            records = batch(producer_id=producer, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL)
            self.write([number % partitions], records, name)
            if commit and self.client.request(EndTxnRequest(name, producer, epoch, True), _END).error_code:
                raise RuntimeError("EndTxn failed")
        self.facts["memory of a transactional id and its transaction, kB"] = (
            (memory(self.broker.pid) - before) * 1024 / transactions
        )
        self._producer, self._epoch = self.initialize("measured")

    # -- requests that are measured

    def fetch(self, isolation: int, count: int) -> int:
        """Read the first batches of some partitions; return their bytes."""
        size = PLAIN * len(batch())
        wanted = [FetchPartition(index, fetch_offset=0, partition_max_bytes=size) for index in range(count)]
        topic = FetchTopic(topic_id=self._topic_id, partitions=wanted)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1 << 30, isolation_level=isolation, session_epoch=-1, topics=[topic]
        )
        answer = self.client.request(request, _FETCH)
        return sum(len(one.records or b"") for one in answer.responses[0].partitions)

    def produce(self) -> None:
        """Write one message outside of transactions."""
        self.write([0], batch())

    def transact(self) -> None:
        """Write one message in a transaction, and commit it."""
        records = batch(
            producer_id=self._producer, producer_epoch=self._epoch, base_sequence=0, attributes=TRANSACTIONAL
        )
        self.write([1], records, "measured")
        answer = self.client.request(EndTxnRequest("measured", self._producer, self._epoch, True), _END)
        if answer.error_code:
            raise RuntimeError(f"EndTxn: error {answer.error_code}")
        self._producer, self._epoch = answer.producer_id, answer.producer_epoch

    def kinds(self, partitions: int) -> Mapping[str, tuple[int, Callable[[], object]]]:
        """Return how many requests of each kind a round has, and the requests."""
        return {
            "fetch of one partition, read_uncommitted": (500, partial(self.fetch, 0, 1)),
            "fetch of one partition, read_committed": (500, partial(self.fetch, 1, 1)),
            f"fetch of {partitions:,} partitions, read_committed": (5, partial(self.fetch, 1, partitions)),
            "produce, outside of transactions": (500, self.produce),
            "a transaction of one message": (200, self.transact),
        }

    def measure(self, partitions: int, keep: bool) -> None:
        """Do one round; record what it took if `keep`."""
        for name, (count, work) in self.kinds(partitions).items():
            begun = process_seconds(self.broker.pid)
            for _ in range(count):
                work()
            if keep:
                self.spent.setdefault(name, []).append((process_seconds(self.broker.pid) - begun) / count * 1e6)

    # -- what is measured once

    def conclude(self) -> None:
        """Measure the idle broker, the command line, and a start after `kill -9`."""
        begun = process_seconds(self.broker.pid)
        time.sleep(IDLE_SECONDS)
        self.facts["idle, % of a core"] = 100 * (process_seconds(self.broker.pid) - begun) / IDLE_SECONDS
        for state in ((), ("--state", "Ongoing")):
            command = [*pylogd_command(), "transactions", "list", *state, "--bootstrap-server", self.broker.address]
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            name = " ".join(("pylogd transactions list", *state))
            self.facts[f"`{name}`, lines"] = len(done.stdout.splitlines())
            self.facts[f"`{name}`, s"] = time.monotonic() - began
        self.restart()

    def restart(self) -> None:
        """Kill the broker and start it again, until it answers for all transactional ids."""
        self.client.close()
        self.broker.kill()
        self.broker = BrokerProcess(self._folder / "data", self._folder / "log", wait=False)
        self.broker.wait()
        began = time.monotonic()
        self.client = RawClient(self.broker.address)
        self.await_coordinator()
        self.facts["killed and started: from serving to answering for all ids, s"] = time.monotonic() - began
        self.facts["the broker's processor time of that start, s"] = process_seconds(self.broker.pid)
        states = self.client.request(ListTransactionsRequest(), _LIST).transaction_states
        self.facts["ids then"] = len(states)


def many_ids(folder: Path, count: int) -> Mapping[str, float]:
    """Return what a start with so many transactional ids takes."""
    side = Side(folder)
    try:
        side.await_coordinator()
        before = memory(side.broker.pid)
        began, spent = time.monotonic(), process_seconds(side.broker.pid)
        for number in range(count):
            side.initialize(f"transactional-id-{number}")
        side.facts["InitProducerId, a second"] = count / (time.monotonic() - began)
        side.facts["InitProducerId, the broker's processor, us"] = (
            (process_seconds(side.broker.pid) - spent) / count * 1e6
        )
        side.facts["memory of a transactional id, kB"] = (memory(side.broker.pid) - before) * 1024 / count
        side.conclude()
    finally:
        side.close()
    return side.facts


def report(sides: Mapping[str, Side], ids: Mapping[str, float], options: argparse.Namespace) -> str:
    """Return the page."""
    none, all_ = sides[COMMITTED], sides[OPEN]
    lines = [
        "# Many open transactions", "",
        f"By `python -m bench.open_transactions` ({options.rounds} rounds in turns); its docstring explains the "
        f"method. {options.open:,} transactions on {options.partitions:,} partitions, all committed in one broker and "
        "all open in the other one.", "",
        "| the broker's processor time of a | none open, us | all open, us | ratio |", "| --- | --: | --: | --- |",
    ]  # fmt: skip
    for name, base in none.spent.items():
        ratios = [its / own for its, own in zip(all_.spent[name], base, strict=True)]
        lines.append(
            f"| {name} | {statistics.median(base):,.0f} | {statistics.median(all_.spent[name]):,.0f} "
            f"| {interval(ratios)} |"
        )
    lines += ["", "| | none open | all open |", "| --- | --: | --: |"]
    lines += [f"| {name} | {_number(none.facts[name])} | {_number(value)} |" for name, value in all_.facts.items()]
    lines += ["", f"## {options.ids:,} transactional ids, no transaction", "", "| | |", "| --- | --: |"]
    lines += [f"| {name} | {_number(value)} |" for name, value in ids.items()]
    where = machine("")
    lines += [
        "", f"Measured on {where['cores']} cores ({where['processor']}), {where['memory']}, {where['system']}, "
        f"Python {where['python']}, at commit {where['commit']}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.2f}"


def main() -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="for data")
    parser.add_argument("--write", action="store_true", help="write OPEN_TRANSACTIONS.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as ends:
        sides: dict[str, Side] = {}
        for number, name in enumerate((COMMITTED, OPEN)):
            sides[name] = side = Side(Path(folder) / str(number))
            ends.callback(side.close)
            side.fill(options.partitions, options.open, commit=name == COMMITTED)
            say(f"{name}: filled")
        for number in range(options.rounds + 1):
            for name in sorted(sides, reverse=bool(number % 2)):
                sides[name].measure(options.partitions, keep=number > 0)
            say(f"round {number}")
        if sides[COMMITTED].fetch(1, 1) != sides[OPEN].fetch(1, 1):
            raise RuntimeError("the brokers did not return the same bytes")
        for side in sides.values():
            side.conclude()
        text = report(sides, many_ids(Path(folder) / "ids", options.ids), options)
    print(text)
    if options.write:
        write_page(HERE / "OPEN_TRANSACTIONS.md", [text])


if __name__ == "__main__":
    main()
