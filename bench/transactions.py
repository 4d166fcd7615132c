"""`make bench-transactions`: transactions beside Apache Kafka, in turns. Writes TRANSACTIONS.md and transactions.json.

A transaction has 100 messages of 1,000 bytes for 10 partitions of two topics, and in some rows the offsets of a group
for them. Producers run one transaction after the other as fast as they can, by unmodified clients with their default
settings: librdkafka, and Java's, which uses version 2 of transactions (KIP-890) with both brokers. One broker (one
replica), and three (three replicas, `min.insync.replicas` 2, also of `__transaction_state` and `__consumer_offsets`).

Both brokers run all the time, each with its idle cost beside the other one's turns, and are warm; clients are started
anew for each turn and have a warm-up. A pair is a turn of each; who begins changes each time. Ratios are the median
over pairs with its 95 % confidence interval (bootstrap). Clients share the processor cores with the brokers, so beside
the rate there is the processor time of a transaction: of all broker processes (Kafka's controllers and pylogd's
ZooKeeper included), and of the client.

The row `three brokers: visible` is of one transaction at a time, and of the time until a waiting consumer has its
message: see `transactions_visible`.

    python -m bench transactions [--only WORD] [--pairs N] [--seconds S] [--rounds N] [--list] [--report]

The results of a row are saved after each pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import confluent_kafka

from bench import transactions_visible
from bench.failover import in_sync, wait_until
from bench.harness import interval
from bench.loads.transact import ClientEnded, Load, NothingCommitted, Turn, turn
from bench.machine import machine
from bench.peers.base import Peer, unwind_on_sigterm
from bench.peers.clusters import BROKERS, KafkaCluster, PylogdCluster
from bench.peers.kafka_protocol import Kafka, Pylogd
from bench.plots import Bar, bars
from conformance import java_tools
from pylogd.client import Admin, NewTopic
from tests.pages import json_text, write_page

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "transactions.json"
#: Of a turn whose client ends in its middle.
_TRIES: Final = 3
PYLOGD, KAFKA = "pylogd", "Apache Kafka"
ONE, THREE = "one broker", "three brokers"
#: How many times Kafka's rate is asked for.
TARGETS: Final = {ONE: 2.0, THREE: 1.0}
#: What limits the rates, for the page.
WHY: Final = {
    ONE: "With both brokers a transaction of Java's client is two requests (counted by its metrics): a Produce for ten "
    "partitions, and EndTxn. In pylogd that is ten appends, ten markers and two records of the coordinator, 0.8 to 0.9 "
    "ms of the reactor's thread. Ten producers and that thread share two cores; Kafka's threads can use both.",
    THREE: "All processes share two cores, so the processor time of a transaction decides.",
}

LOADS: Final = [
    Load(client, producers, offsets)
    for producers, offsets in ((1, False), (10, False), (10, True), (50, False))
    for client in ("Java", "librdkafka")
]


class ReplicatedKafkaCluster(KafkaCluster):
    """Three brokers whose internal topics have three replicas, as Kafka's defaults have it."""

    more = (
        "offsets.topic.replication.factor=3\ntransaction.state.log.replication.factor=3\n"
        "transaction.state.log.min.isr=2\n"
    )


PEERS: Final[Mapping[str, Mapping[str, Callable[[Path], Peer]]]] = {
    ONE: {PYLOGD: Pylogd, KAFKA: Kafka},
    THREE: {PYLOGD: PylogdCluster, KAFKA: ReplicatedKafkaCluster},
}


@dataclass(slots=True)
class Results:
    """Turns by row and broker; the row's name begins with how many brokers there were. visible: of `VISIBLE`."""

    machine: dict[str, object] = field(default_factory=dict)
    rows: dict[str, dict[str, list[Turn]]] = field(default_factory=dict)
    visible: transactions_visible.Turns = field(default_factory=dict)
    visible_machine: dict[str, object] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Results:
        """Return the results of earlier runs."""
        if not RESULTS.exists():
            return cls()
        found = json.loads(RESULTS.read_text())
        rows = {
            row: {peer: [Turn(**one) for one in turns] for peer, turns in peers.items()}
            for row, peers in found["rows"].items()
        }
        visible = transactions_visible.read(found.get("visible", {}))
        return cls(found["machine"], rows, visible, found.get("visible_machine", {}))

    def save(self) -> None:
        """Keep the results on disk."""
        ordered = sorted(self.rows.items(), key=lambda row: NAMES.index(row[0]) if row[0] in NAMES else len(NAMES))
        rows = {row: {peer: [asdict(one) for one in turns] for peer, turns in peers.items()} for row, peers in ordered}
        kept = {
            "machine": self.machine, "rows": rows, "visible": transactions_visible.written(self.visible),
            "visible_machine": self.visible_machine,
        }  # fmt: skip
        RESULTS.write_text(json_text(kept))


def _this_machine() -> dict[str, object]:
    return {**machine(str(confluent_kafka.libversion()[0])), "Apache Kafka": java_tools.version()}


def row_name(count: str, load: Load) -> str:
    """Return the name of a row."""
    return f"{count}: {load.name}"


NAMES: Final = [row_name(count, load) for count in PEERS for load in LOADS]
VISIBLE: Final = f"{THREE}: visible"


def create_topics(peer: Peer, topics: Mapping[str, int], replicas: int) -> None:
    """Create topics of so many partitions, as soon as there are enough brokers. Wait until all replicas are in sync."""
    with Admin(peer.address) as admin:
        wait_until(lambda: len(admin.describe_cluster().brokers) == replicas, "all brokers are up")
        config = {"min.insync.replicas": str(min(replicas, 2))}
        new = [NewTopic(topic, partitions, replicas, config) for topic, partitions in topics.items()]
        for error in admin.create_topics(new).values():
            if error is not None:
                raise error
    for address in peer.address.split(","):
        with Admin(address) as admin:
            wait_until(partial(in_sync, admin, len(new), replicas), "all replicas are in sync")


def measure(count: str, loads: Sequence[Load], options: argparse.Namespace, results: Results) -> None:
    """Measure loads on one broker or three."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as ends:
        peers: dict[str, Peer] = {}
        for name, make in PEERS[count].items():
            peers[name] = peer = make(Path(folder))
            ends.callback(peer.stop)
            peer.start()
            create_topics(peer, dict.fromkeys(loads[0].topics, loads[0].partitions), 1 if count == ONE else BROKERS)
            for client in dict.fromkeys(load.client for load in loads):  # its internal topics; what the JVM compiles
                with suppress(NothingCommitted):
                    turn(peer, Load(client, 10, True), f"warm-{client}", 3.0, 5.0)
        for load in loads:
            row = results.rows[row_name(count, load)] = {name: [] for name in peers}
            for number in range(options.pairs):
                for name in sorted(peers, reverse=bool(number % 2)):
                    found = _whole_turn(peers[name], load, options)
                    row[name].append(found)
                    print(f"{row_name(count, load)}: {name}: {found}", file=sys.stderr, flush=True)
                results.machine = _this_machine()
                results.save()


def _whole_turn(peer: Peer, load: Load, options: argparse.Namespace) -> Turn:
    """Measure a turn, again if the client ended in its middle. Raises ClientEnded if that happens time after time."""
    for left in reversed(range(_TRIES)):
        try:
            return turn(peer, load, uuid.uuid4().hex[:8], options.warm, options.seconds)
        except ClientEnded as error:
            if not left:
                raise
            print(f"again, since {error}: {error.__notes__[-1][-200:]}", file=sys.stderr, flush=True)
    raise AssertionError("unreachable")


def measure_visible(options: argparse.Namespace, results: Results) -> None:
    """Measure the time from commit to visible on three brokers. Say how busy other programs keep the machine."""
    load = f"{os.getloadavg()[0]:.1f} of other programs before the start"
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as ends:
        clients: dict[str, transactions_visible.Clients] = {}
        for name, make in PEERS[THREE].items():
            peer = make(Path(folder))
            ends.callback(peer.stop)
            peer.start()
            create_topics(peer, {transactions_visible.TOPIC: transactions_visible.PARTITIONS}, BROKERS)
            clients[name] = ends.enter_context(transactions_visible.Clients(peer.address, "visible"))
        for one in clients.values():
            one.warm()
            one.turn(2 * options.rounds)  # what the JVM compiles
        results.visible = {name: [] for name in clients}
        for number in range(options.pairs):
            for name in sorted(clients, reverse=bool(number % 2)):
                found = clients[name].turn(options.rounds)
                results.visible[name].append(found)
                print(f"{VISIBLE}: {name}: {found.visible}", file=sys.stderr, flush=True)
            results.visible_machine = {**_this_machine(), "load average": load}
            results.save()


# -- the report


def _ratios(row: Mapping[str, Sequence[Turn]], value: Callable[[Turn], float]) -> list[float]:
    pairs = zip(row[PYLOGD], row[KAFKA], strict=False)
    return [value(mine) / value(theirs) for mine, theirs in pairs]


def _pair(row: Mapping[str, Sequence[Turn]], value: Callable[[Turn], float], digits: int) -> str:
    """Return the medians of pylogd and Kafka."""
    return " : ".join(f"{statistics.median(map(value, row[name])):,.{digits}f}" for name in (PYLOGD, KAFKA))


def report(results: Results) -> str:
    """Return the page."""
    lines = [
        "# Transactions beside Apache Kafka", "",
        "Written by `make bench-transactions` (`bench/transactions.py`, whose docstring explains the method): 100 "
        "messages of 1,000 bytes to 10 partitions of two topics in a transaction. Each cell is pylogd : Apache Kafka "
        f"({results.machine.get(KAFKA, '4.3.1')}), medians of the turns; a ratio is the median over pairs with its 95 "
        "% confidence interval.", "",
        "![rates](plots/transactions.svg)",
    ]  # fmt: skip
    for count, target in TARGETS.items():
        rows = {name: results.rows[name] for name in NAMES if name.startswith(count) and results.rows.get(name)}
        rows = {name: row for name, row in rows.items() if row[PYLOGD] and row[KAFKA]}
        lines += [
            "",
            f"## {count[0].upper()}{count[1:]}",
            "",
            f"Asked for: at least {target:g} times Kafka's rate. {WHY[count]}",
            "",
        ]
        if not rows:
            lines.append("Not measured yet.")
            continue
        lines += [
            "| | transactions/s | ratio | | broker's processor, ms | ratio | client's, ms | commit p50, ms | p99, ms |",
            "| --- | --: | --- | --- | --: | --- | --: | --: | --: |",
        ]
        for name, row in rows.items():
            ratios = _ratios(row, lambda one: one.rate)
            verdict = "met" if statistics.median(ratios) >= target else "**missed**"
            lines.append(
                f"| {name.partition(': ')[2]} | {_pair(row, lambda one: one.rate, 0)} | {interval(ratios)} | {verdict} "
                f"| {_pair(row, lambda one: one.broker_ms, 2)} | {interval(_ratios(row, lambda one: one.broker_ms))} "
                f"| {_pair(row, lambda one: one.client_ms, 2)} | {_pair(row, lambda one: 1000 * one.commit_p50, 1)} "
                f"| {_pair(row, lambda one: 1000 * one.commit_p99, 1)} |"
            )
        turns = [turn for row in rows.values() for found in row.values() for turn in found]
        fewest = min(len(found) for row in rows.values() for found in row.values())
        lines += ["", f"At least {fewest} pairs of each row; {sum(one.aborted for one in turns)} transactions were "
                  "aborted by the clients."]  # fmt: skip
    lines += ["", _measured_on(results.machine)]
    lines += transactions_visible.section(results.visible, PYLOGD, KAFKA)
    if results.visible_machine:
        lines += ["", _measured_on(results.visible_machine)]
    return "\n".join([*lines, ""])


def _measured_on(found: Mapping[str, object]) -> str:
    return "Measured on: " + ", ".join(f"{name} {value}" for name, value in found.items()) + "."


def plot(results: Results) -> str:
    """Return the chart of the rates."""
    blocks = []
    for name in NAMES:
        row = results.rows.get(name, {})
        if row.get(PYLOGD) and row.get(KAFKA):
            medians = {peer: statistics.median(one.rate for one in turns) for peer, turns in row.items()}
            blocks.append((name, [Bar(peer, rate, f"{rate:,.0f}") for peer, rate in medians.items()]))
    return bars("Transactions of 100 messages", "transactions a second", blocks, PYLOGD)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description="transactions beside Apache Kafka")
    parser.add_argument("--only", default="", help="only the rows with one of these words, separated by `|`")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in each turn")
    parser.add_argument("--warm", type=float, default=1.5, help="the client's warm-up in each turn, in seconds")
    parser.add_argument("--rounds", type=int, default=3, help="of the nine ways, in each turn of `visible`")
    parser.add_argument("--folder", type=Path, help="for data")
    parser.add_argument("--list", action="store_true", help="print the rows")
    parser.add_argument("--report", action="store_true", help="write the page from existing results")
    options = parser.parse_args()
    if options.list:
        print("\n".join([*NAMES, VISIBLE]))
        return
    unwind_on_sigterm()
    results = Results.load()
    for count in () if options.report else PEERS:
        wanted = [one for one in LOADS if any(word in row_name(count, one) for word in options.only.split("|"))]
        if wanted:
            measure(count, wanted, options, results)
    if not options.report and any(word in VISIBLE for word in options.only.split("|")):
        measure_visible(options, results)
    write_page(HERE / "TRANSACTIONS.md", [report(results)])
    (HERE / "plots" / "transactions.svg").write_text(plot(results), "utf-8")


if __name__ == "__main__":
    main()
