"""Kafka's DumpLogSegments reads the files of a data directory: logs, indexes, snapshots, and internal topics.

A broker with small segments gets transactions of which some are aborted, keyed records, and offsets of a group of
either protocol, and is stopped. Then the tool dumps every file of three partitions. What it says of damage, on standard
error, makes a check fail.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from conformance import brokers, checks, java_tools
from conformance.checks import Check, expect
from pylogd.client import Admin

_TOOL: Final = "org.apache.kafka.tools.DumpLogSegments"
_SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_TOPIC: Final = "dumped"
#: Small, so that there are several segments, and entries in the indexes.
_CONFIG: Final = {"segment.bytes": "1048576", "index.interval.bytes": "4096"}
_TRANSACTIONS, _RECORDS = 60, 40
_VALUE: Final = b"v" * 1000
_SECONDS: Final = 60.0
_HARMLESS: Final = re.compile("SLF4J|^Non-consecutive offsets in|^ *-1 is followed by")


def suite(kind: str, folder: Path) -> list[Check]:
    """Each kind of file is a check."""
    with brokers.running(kind, folder, _SETTINGS) as address:
        _write(address)
    return [*_of_topic(folder / "data" / f"{_TOPIC}-0"), *_of_internal_topics(folder / "data")]


def _write(address: str) -> None:
    """Write transactions; every fifth is aborted. Commit offsets as a member of a group of either protocol."""
    with Admin(address) as admin:
        admin.create_topic(_TOPIC, 1, 1, _CONFIG)
    producer = Producer({"bootstrap.servers": address, "transactional.id": "dumped", "linger.ms": 0})
    producer.init_transactions(_SECONDS)
    for number in range(_TRANSACTIONS):
        producer.begin_transaction()
        for record in range(_RECORDS):
            producer.produce(_TOPIC, _VALUE, f"key {number} {record}", headers={"trace": b"t"})
        if number % 5 == 4:
            producer.flush(_SECONDS)
            producer.abort_transaction(_SECONDS)
        else:
            producer.commit_transaction(_SECONDS)
    for protocol in ("classic", "consumer"):
        _commit(address, protocol)


def _commit(address: str, protocol: str) -> None:
    group = f"group-{protocol}"
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "group.protocol": protocol})
    consumer.subscribe([_TOPIC])
    deadline = time.monotonic() + _SECONDS
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition(_TOPIC, 0, 7)], asynchronous=False)
    consumer.close()


def _dump(files: Sequence[Path], *options: str) -> tuple[str, str]:
    """Return what the tool prints of files, and what it complains of."""
    command = [*java_tools.java(), _TOOL, "--files", ",".join(map(str, files)), *options]
    done = checks.run(command, seconds=_SECONDS)
    # Of every segment but the first the tool says that its first offset does not follow -1, also of Apache Kafka's.
    wrong = [line for line in done.stderr.splitlines() if line.strip() and not _HARMLESS.search(line)]
    wrong += [line for line in done.stdout.splitlines() if "invalid bytes" in line or "isvalid: false" in line]
    return done.stdout, " / ".join(wrong[:3]) or (checks.last_line(done.stdout) if done.returncode else "")


def _of_topic(folder: Path) -> list[Check]:
    logs, aborted = sorted(folder.glob("*.log")), _TRANSACTIONS // 5
    found = []
    said, wrong = _dump(logs, "--deep-iteration", "--print-data-log")
    count = said.count(f"payload: {_VALUE.decode()}")
    markers = [said.count(f"endTxnMarker: {name}") for name in ("COMMIT", "ABORT")]
    whole = [count, *markers] == [_TRANSACTIONS * _RECORDS, _TRANSACTIONS - aborted, aborted]
    found.append(expect(".log: every record and marker", whole and not wrong, f"{count}, {markers}: {wrong}"))
    found.append(expect(".log: more than one segment", len(logs) > 1, str(len(logs))))
    for suffix, entry in ((".index", "offset: "), (".timeindex", "timestamp: ")):
        files = sorted(folder.glob(f"*{suffix}"))
        said, wrong = _dump(files)
        found.append(expect(f"{suffix}: entries that fit the log", said.count(f"\n{entry}") > 2 and not wrong, wrong))
        said, wrong = _dump(files, "--index-sanity-check")
        sane = said.count("passed sanity check") + said.count("is empty") == len(files)
        found.append(expect(f"{suffix}: sanity check", bool(files) and sane and not wrong, wrong or said[-200:]))
    said, wrong = _dump(sorted(folder.glob("*.txnindex")))
    entries = re.findall(r"version: 0 producerId: \d+ firstOffset: \d+ lastOffset: \d+ lastStableOffset: \d+", said)
    found.append(
        expect(".txnindex: every aborted transaction", len(entries) == aborted and not wrong, f"{said} {wrong}")
    )
    said, wrong = _dump(sorted(folder.glob("*.snapshot")))
    last = [line for line in said.splitlines() if line.startswith("producerId: ")]
    found.append(expect(".snapshot: the producer", bool(last) and not wrong, f"{said[-200:]} {wrong}"))
    return found


def _of_internal_topics(data: Path) -> list[Check]:
    found = []
    said, wrong = _dump(sorted((data / "__transaction_state-0").glob("*.log")), "--transaction-log-decoder")
    states = [state for state in range(6) if f'"transactionStatus":{state},' not in said]
    why = f"without {states}: {wrong} {said[-300:]}"
    found.append(expect("__transaction_state: each state from Empty to CompleteAbort", not states and not wrong, why))
    said, wrong = _dump(sorted((data / "__consumer_offsets-0").glob("*.log")), "--offsets-decoder")
    records = {
        "a committed offset": '"offset":7',
        "a classic group": '"protocolType":"consumer"',
        "a group of the newer protocol": '"epoch"',
        "its assignment": '"assignmentEpoch"',
        "its member": '"memberEpoch"',
    }
    for name, text in records.items():
        why = f"{wrong} {said[-300:]}"
        found.append(expect(f"__consumer_offsets: {name}", text in said and not wrong and "unknown" not in said, why))
    return found
