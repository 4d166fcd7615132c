"""`pylogd bench`: measure throughput and latency, with a real cluster.

Strategy: at a given rate every record has a time at which it is due, whatever happened before. Latency counts from that
time, not from when the record was sent in fact: a broker that stops for a second makes a second's records late, and not
only the one that was on its way (coordinated omission). Values are random bytes, made before the clock starts.
Source: Gil Tene, "How NOT to Measure Latency"; HdrHistogram.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from pylogd.cli.commands import Commands, Function, add_options, needs_extra
from pylogd.cli.common import bootstrap_option, connect, format_bytes
from pylogd.cli.names import topic_names
from pylogd.cli.output import note, output_option, print_document, print_records
from pylogd.cli.stopping import Stop, terminable
from pylogd.client import Consumer, Delivery, Producer

_DUE: Final = struct.Struct(">QQ")  # the run, and when the record was due, in nanoseconds of the monotonic clock
_POOL_BYTES: Final = 1 << 20
_POLL_SECONDS: Final = 0.5
_LOST_SECONDS: Final = 10.0
_RATE_OF_LATENCY: Final = 1000.0
_MOST_US: Final = 3_600_000_000
_PERCENTILES: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p99_9_ms": 99.9}


class Latencies:
    """Latencies of records: three significant digits from a microsecond to an hour, in constant memory.

    Threads may share it.

    errors: the number of records that could not be delivered.
    """

    def __init__(self) -> None:
        """Raises ClickException without the package hdrhistogram."""
        with needs_extra("cli"):
            from hdrh.histogram import HdrHistogram  # noqa: PLC0415 - an extra
        self._histogram: Any = HdrHistogram(1, _MOST_US, 3)
        self._lock = threading.Lock()
        self.errors = 0

    @property
    def count(self) -> int:
        """The number of latencies."""
        found: int = self._histogram.get_total_count()
        return found

    def record(self, nanoseconds: int) -> None:
        """Add a latency."""
        with self._lock:
            self._histogram.record_value(min(max(nanoseconds // 1000, 1), _MOST_US))

    def deliver(self, due: int, delivery: Delivery) -> None:
        """Add the latency of a finished delivery.

        due: the time at which the record was due, in nanoseconds of the monotonic clock.
        """
        if delivery.error is None:
            self.record(time.monotonic_ns() - due)
        else:
            self.errors += 1

    def summary(self) -> dict[str, float]:
        """Return the distribution, in milliseconds."""
        found = self._histogram
        shares = {name: found.get_value_at_percentile(percent) for name, percent in _PERCENTILES.items()}
        low, mean, high = found.get_min_value(), found.get_mean_value(), found.get_max_value()
        figures = {"min_ms": low, "mean_ms": mean, **shares, "max_ms": high} if self.count else {}
        return {name: round(value / 1000, 3) for name, value in figures.items()}

    def write(self, path: Path) -> None:
        """Write the distribution, in milliseconds, in the format of HdrHistogram's plotter. Raises OSError."""
        with path.open("wb") as file:
            self._histogram.output_percentile_distribution(file, 1000.0)


@click.group(cls=Commands)
def bench() -> None:
    """Measure how fast a cluster takes and gives records, and how late they are.

    \b
    pylogd bench produce test --records 1000000
    pylogd bench produce test --rate 5000 --seconds 30   latency at a rate
    pylogd bench consume test --records 1000000
    pylogd bench latency test --rate 1000 --seconds 30   from end to end

    The topic has to exist; use one for this purpose only. Without --records and --seconds a million records are sent or
    read, or with --rate those of 10 seconds. Latency is counted from the moment at which a record was due.
    This command shares its processors with brokers on the same machine, and sends from one thread: it does not find out
    the most that a cluster can do.
    """


def _load(function: Function) -> Function:
    """Add the options that say what is sent."""
    return add_options(
        function,
        click.option("--size", type=click.IntRange(_DUE.size, 8 << 20), default=100, show_default=True,
                     help="Bytes of a value."),
        click.option("-a", "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
                     help="Who has to confirm."),
        click.option("--linger-ms", type=click.IntRange(0), default=5, show_default=True,
                     help="How long a batch waits for more records."),
        click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
                     default="none", show_default=True, help="Compression; the values are random bytes."),
        click.option("--hdr", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                     help="Write the distribution of the latency for HdrHistogram's plotter."),
    )  # fmt: skip


def _amount(function: Function) -> Function:
    """Add the options that say when it ends."""
    seconds = click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after this time.")
    records = click.option("--records", type=click.IntRange(1), help="Stop after this many records.")
    return records(seconds(function))


@bench.command()
@click.argument("topic", shell_complete=topic_names)
@_amount
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N",
              help="Records per second  [default: as many as possible]")  # fmt: skip
@_load
@output_option
@bootstrap_option
def produce(
    topic: str, records: int | None, seconds: float | None, rate: float | None, hdr: Path | None, bootstrap: str,
    **load: Any,
) -> None:  # fmt: skip
    """Send records to TOPIC, and measure throughput, and the latency of the confirmations.

    Without --rate records are sent as fast as the producer takes them. The latency then is that of a full producer: it
    says more about the length of its queue than about the cluster.

    Prints: records, seconds, records_per_second, bytes_per_second, errors, and the latency in milliseconds (min_ms,
    mean_ms, p50_ms, p90_ms, p99_ms, p99_9_ms, max_ms).
    """
    latencies = Latencies()
    with terminable() as stop, connect(bootstrap) as connected, _producer(connected, load) as producer:
        connected.topic(topic)
        began = time.monotonic_ns()
        sender = _Sender(producer, topic, load["size"], latencies.deliver, rate)
        sender.run(_record_limit(records, seconds, rate), seconds, stop)
        producer.flush()
        took = (time.monotonic_ns() - began) / 1e9
    _report({**_throughput(latencies.count, latencies.count * load["size"], took), "errors": latencies.errors,
             **latencies.summary()}, latencies, hdr)  # fmt: skip


@bench.command()
@click.argument("topic", shell_complete=topic_names)
@_amount
@click.option("--from-end", is_flag=True, help="Read what others send now, not what is there.")
@output_option
@bootstrap_option
def consume(topic: str, records: int | None, seconds: float | None, from_end: bool, bootstrap: str) -> None:
    """Read TOPIC, and measure throughput.

    Ends at the end of the topic as it is now, unless --from-end is given. Prints: records, seconds, records_per_second,
    bytes_per_second.
    """
    count = size = 0
    most = records or (None if seconds else 1_000_000)
    with terminable() as stop, connect(bootstrap) as connected, Consumer(connected) as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(ends if from_end else consumer.beginning_offsets(partitions))
        began = time.monotonic()
        while not stop.asked and (most is None or count < most):
            if seconds is not None and time.monotonic() - began >= seconds:
                break
            if not from_end and all(consumer.position(at) >= end for at, end in ends.items()):
                break
            found = consumer.poll(_POLL_SECONDS, None if most is None else most - count)
            count += len(found)
            size += sum(len(record.value or b"") + len(record.key or b"") for record in found)
        took = time.monotonic() - began
    _report(_throughput(count, size, took), None, None)


@bench.command()
@click.argument("topic", shell_complete=topic_names)
@_amount
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=_RATE_OF_LATENCY, show_default=True,
              metavar="N", help="Records per second.")  # fmt: skip
@_load
@output_option
@bootstrap_option
def latency(
    topic: str, records: int | None, seconds: float | None, rate: float, hdr: Path | None, bootstrap: str, **load: Any
) -> None:
    """Send records to TOPIC at a rate, read them, and measure how long they take from producer to consumer.

    Prints: records, seconds, records_per_second, bytes_per_second, errors, lost (not read within 10 s of the last
    confirmation), and the latency in milliseconds as `pylogd bench produce`. Exit status 1 if records were lost.
    """
    run = int.from_bytes(os.urandom(8), "big")
    latencies = Latencies()
    confirmed = Latencies()
    with (
        terminable() as stop,
        connect(bootstrap) as reading,
        connect(bootstrap) as connected,
        Consumer(reading) as consumer,
        _producer(connected, load) as producer,
    ):
        partitions = consumer.partitions(topic)
        consumer.assign(consumer.end_offsets(partitions))
        consumer.poll(0.0)
        sender = _Sender(producer, topic, load["size"], confirmed.deliver, rate, run)
        amount = _record_limit(records, seconds, rate), seconds
        sending = threading.Thread(target=sender.run, args=(*amount, stop), name="bench", daemon=True)
        began = time.monotonic()
        sending.start()
        _receive(consumer, run, latencies, lambda: not sending.is_alive(), producer, confirmed, stop)
        sending.join()
        took = time.monotonic() - began
    lost = confirmed.count - latencies.count
    figures = {**_throughput(latencies.count, latencies.count * load["size"], took), "errors": confirmed.errors,
               "lost": lost, **latencies.summary()}  # fmt: skip
    _report(figures, latencies, hdr)
    if lost > 0:
        raise click.ClickException(f"{lost} confirmed records were not read within {_LOST_SECONDS:g} s")


def _receive(
    consumer: Consumer, run: int, latencies: Latencies, sent: Callable[[], bool], producer: Producer,
    confirmed: Latencies, stop: Stop,
) -> None:  # fmt: skip
    """Read the records of a run until all that were confirmed have arrived."""
    end = float("inf")
    while time.monotonic() < end and not stop.asked:
        for record in consumer.poll(0.1):
            now = time.monotonic_ns()
            value = record.value or b""
            if len(value) >= _DUE.size:
                whose, due = _DUE.unpack_from(value)
                if whose == run:
                    latencies.record(now - due)
                    end = time.monotonic() + _LOST_SECONDS if end != float("inf") else end
        if sent():
            if end == float("inf"):
                producer.flush()
                end = time.monotonic() + _LOST_SECONDS
            if latencies.count >= confirmed.count:
                return


class _Sender:
    """Sends records at their times."""

    def __init__(
        self, producer: Producer, topic: str, size: int, deliver: Callable[[int, Delivery], None], rate: float | None,
        run: int = 0,
    ) -> None:  # fmt: skip
        """deliver: called with the time at which a record was due (in nanoseconds) and its result.

        rate: records per second; None for no limit.
        """
        self._producer = producer
        self._topic = topic
        self._padding = size - _DUE.size
        self._pool = os.urandom(_POOL_BYTES + self._padding)
        self._deliver = deliver
        self._interval = None if rate is None else 1e9 / rate
        self._run = run

    def run(self, most: int | None, seconds: float | None, stop: Stop) -> None:
        """Send `most` records, or send until `seconds` have passed."""
        began = time.monotonic_ns()
        end = None if seconds is None else began + int(seconds * 1e9)
        sent = 0
        while not stop.asked and (most is None or sent < most):
            now = time.monotonic_ns()
            due = now if self._interval is None else began + int(sent * self._interval)
            if end is not None and due >= end:
                break
            if due > now:
                time.sleep((due - now) / 1e9)
            self._send(due, sent)
            sent += 1

    def _send(self, due: int, number: int) -> None:
        start = number * self._padding % _POOL_BYTES
        value = _DUE.pack(self._run, due) + self._pool[start : start + self._padding]
        self._producer.send(self._topic, value, on_delivery=lambda delivery: self._deliver(due, delivery))


def _producer(connected: Any, load: dict[str, Any]) -> Producer:
    acks: Any = "all" if load["acks"] == "all" else int(load["acks"])
    return Producer(connected, acks=acks, linger_ms=load["linger_ms"], compression=load["compression"])


def _record_limit(records: int | None, seconds: float | None, rate: float | None) -> int | None:
    """Return the number of records to send; None if only the time limits them."""
    if records is None and seconds is None:
        return 1_000_000 if rate is None else max(1, int(rate * 10))
    return records


def _throughput(records: int, size: int, seconds: float) -> dict[str, Any]:
    return {
        "records": records, "seconds": round(seconds, 3), "records_per_second": round(records / seconds, 1),
        "bytes_per_second": round(size / seconds),
    }  # fmt: skip


def _report(figures: dict[str, Any], latencies: Latencies | None, hdr: Path | None) -> None:
    if latencies is not None and hdr is not None:
        latencies.write(hdr)
        note(f"wrote {hdr}")
    if not print_document(figures):
        rows: Sequence[dict[str, Any]] = [
            {"figure": name, "value": f"{format_bytes(value)}/s" if name == "bytes_per_second" else value}
            for name, value in figures.items()
        ]
        print_records(["figure", ">value"], rows)
