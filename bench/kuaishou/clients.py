"""The clients of the experiments, each a process of its own: librdkafka by its Python binding.

    python -m bench.kuaishou.clients produce|tail|catch-up ADDRESS --topic T --partitions 0,1 [options]

They work until `--seconds` are over or their input ends, and print one line of JSON. All times are of CLOCK_MONOTONIC,
which processes share. A record's value begins with the time at which it was to be sent.
"""

from __future__ import annotations

import argparse
import json
import select
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.kuaishou.experiment import Points

#: Latencies and rates are kept by such stretches of time, in seconds.
STRETCH: Final = 0.5
CLIENT_SECONDS: Final = 600.0
_STAMP: Final = struct.Struct("<d")
_CHECKOUT: Final = Path(__file__).parents[2]
_CHUNK: Final = 500
_POLL: Final = 0.05
_END_SECONDS: Final = 60.0


class Stretches:
    """Values by the stretch of time in which they were taken."""

    def __init__(self) -> None:
        self._values: dict[int, list[float]] = defaultdict(list)

    def add(self, at: float, value: float) -> None:
        """Keep a value taken at a time."""
        self._values[int(at / STRETCH)].append(value)

    def result(self) -> list[list[float]]:
        """Return for each stretch: its begin, the number of values, their sum, median, 99.9th percentile, highest."""
        found = []
        for number, values in sorted(self._values.items()):
            values.sort()
            marks = [percentile(values, 0.5), percentile(values, 0.999), values[-1]]
            found.append([number * STRETCH, len(values), sum(values), *marks])
        return found


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of values in order; 0 if there are none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def over(options: argparse.Namespace, begun: float) -> bool:
    """Return whether a client has to end: its time is over, or its input has ended."""
    ready, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(ready) or time.monotonic() - begun >= options.seconds


def produce(options: argparse.Namespace) -> dict[str, Any]:
    """Send at a fixed rate. Latencies are from the time at which a record was due to its acknowledgement."""
    samples: list[tuple[float, float]] = []
    stretches, failures = Stretches(), [0, 0]
    producer = Producer(
        {
            "bootstrap.servers": options.address, "acks": options.acks, "linger.ms": 5, "batch.size": 262_144,
            "queue.buffering.max.kbytes": 1 << 20, "queue.buffering.max.messages": 1_000_000,
            "message.timeout.ms": 120_000, "enable.idempotence": options.acks == "all",
        }
    )  # fmt: skip

    def done(due: float, error: Any, _: Any) -> None:
        if error is not None:
            failures[0] += 1
            return
        now = time.monotonic()
        samples.append((due, now - due))
        stretches.add(due, now - due)

    partitions = [int(one) for one in options.partitions.split(",")]
    rest = bytes(options.value_bytes - _STAMP.size)
    interval, sent, begun = options.value_bytes / options.rate, 0, time.monotonic()
    most = options.total_bytes // options.value_bytes or float("inf")
    while sent < most and not over(options, begun):
        producer.poll(min(_POLL, max(0.0, begun + sent * interval - time.monotonic())))
        while sent < most and (due := begun + sent * interval) <= time.monotonic():
            callback = partial(done, due)
            try:
                partition = partitions[sent % len(partitions)]
                producer.produce(options.topic, _STAMP.pack(due) + rest, partition=partition, on_delivery=callback)
            except BufferError:
                failures[1] += 1
                producer.poll(_POLL)
                continue
            sent += 1
    taken = time.monotonic() - begun
    failures[0] += producer.flush(_END_SECONDS)
    latencies = sorted(latency for _, latency in samples)
    marks = {f"p{share * 100:g}": percentile(latencies, share) for share in (0.5, 0.99, 0.999)}
    said = {"begun": begun, "seconds": taken, "bytes": len(latencies) * options.value_bytes, "failed": failures[0]}
    return {
        **said, **marks, "highest": latencies[-1] if latencies else 0.0, "stretches": stretches.result(),
        "samples": samples if options.samples else [],
    }  # fmt: skip


class Reader(threading.Thread):
    """Reads one partition without a group, from an offset to an offset, or without end until it is stopped."""

    def __init__(self, options: argparse.Namespace, partition: int) -> None:
        super().__init__(daemon=True)
        settings: dict[str, Any] = {"bootstrap.servers": options.address, "group.id": options.group or "none"}
        settings |= {"log_level": 3, "client.id": options.what}
        settings |= {"enable.auto.commit": bool(options.group), "auto.commit.interval.ms": 1000}
        settings |= {"queued.max.messages.kbytes": 16_384, "fetch.wait.max.ms": 100}
        self._consumer = Consumer(settings)
        place = TopicPartition(options.topic, partition)
        first, end = self._consumer.get_watermark_offsets(place, timeout=_END_SECONDS)
        #: Where it ends, or -1.
        self.until = end if options.what == "catch-up" else -1
        lag = options.lag_bytes // options.value_bytes
        self.next = max(first, end - lag) if lag else (end if options.what == "tail" else first)
        self._consumer.assign([TopicPartition(options.topic, partition, self.next)])
        self._most = options.total_bytes or float("inf")
        self.ended = threading.Event()
        self.reached = 0.0
        self.bytes = 0
        self.rates, self.latencies = Stretches(), Stretches()
        self.all_latencies: list[float] = []

    def run(self) -> None:
        """Read until the end."""
        while not self.ended.is_set() and (self.until < 0 or self.next < self.until) and self.bytes < self._most:
            for message in self._consumer.consume(_CHUNK, _POLL):
                if message.error():
                    continue
                now, value = time.monotonic(), message.value() or b""
                self.next = (message.offset() or 0) + 1
                self.bytes += len(value)
                self.rates.add(now, len(value))
                latency = now - _STAMP.unpack_from(value)[0]
                self.latencies.add(now, latency)
                self.all_latencies.append(latency)
        self.reached = time.monotonic()
        self._consumer.close()


def read(options: argparse.Namespace) -> dict[str, Any]:
    """Read every partition with a consumer of its own, all from the same moment on."""
    readers = [Reader(options, int(one)) for one in options.partitions.split(",")]
    begun = time.monotonic()
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers) and not over(options, begun):
        time.sleep(_POLL)
    finished = [not reader.is_alive() for reader in readers]
    for reader in readers:
        reader.ended.set()
    for reader in readers:
        reader.join(_END_SECONDS)
    latencies = sorted(value for reader in readers for value in reader.all_latencies)
    return {
        "begun": begun,
        "seconds": max(reader.reached for reader in readers) - begun,
        "each": [reader.reached - begun for reader in readers],
        "bytes": sum(reader.bytes for reader in readers),
        "finished": all(finished),
        "p99.9": percentile(latencies, 0.999),
        "rates": [reader.rates.result() for reader in readers],
        "latencies": [reader.latencies.result() for reader in readers],
    }


class Clients:
    """Client processes that run at the same time."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(self, what: str, address: str, **options: object) -> subprocess.Popen[str]:
        """Run a client: produce, tail or catch-up. options: those of the command line."""
        command = [sys.executable, "-m", "bench.kuaishou.clients", what, address]
        command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_CHECKOUT, start_new_session=True
        )
        self._running.append(process)
        return process

    def result(self, process: subprocess.Popen[str], stop: bool = False) -> dict[str, Any]:
        """Wait for a client's end and return what it printed. stop: end it now. Raises RuntimeError."""
        assert process.stdin is not None
        assert process.stdout is not None
        if stop:
            process.stdin.close()
        timer = threading.Timer(CLIENT_SECONDS, process.kill)
        timer.start()
        try:
            output = process.stdout.read()
            code = process.wait()
        finally:
            timer.cancel()
        self._running.remove(process)
        if code or not output.strip():
            raise RuntimeError(f"a client ended with {code}: {process.args!r}")
        return dict(json.loads(output.strip().splitlines()[-1]))

    def stop(self) -> None:
        """Kill the clients that still run."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running = []


def run(what: str, address: str, **options: object) -> dict[str, Any]:
    """Run one client to its end."""
    clients = Clients()
    try:
        return clients.result(clients.start(what, address, **options))
    finally:
        clients.stop()


def curve(stretches: Sequence[Sequence[float]], begun: float, column: int, factor: float = 1.0) -> Points:
    """Return values over time from a client's stretches: (0 begin,) 1 count, 2 sum, 3 median, 4 p99.9, 5 highest."""
    return [(one[0] - begun, one[column] * factor) for one in stretches]


def main() -> None:
    """Run one client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("produce", "tail", "catch-up"))
    parser.add_argument("address", help="bootstrap servers")
    parser.add_argument("--topic", default="t")
    parser.add_argument("--partitions", default="0", help="numbers, with commas between")
    parser.add_argument("--seconds", type=float, default=CLIENT_SECONDS)
    parser.add_argument("--rate", type=float, default=1e7, help="bytes of values in a second, all partitions together")
    parser.add_argument(
        "--total-bytes",
        type=int,
        default=0,
        help="end after so many bytes, of each partition if they are read (0: no bound)",
    )
    parser.add_argument("--value-bytes", type=int, default=10_000)
    parser.add_argument("--acks", default="1")
    parser.add_argument(
        "--lag-bytes", type=int, default=0, help="start so far from each partition's end (0: at its begin)"
    )
    parser.add_argument("--group", default="", help="commit offsets of this group")
    parser.add_argument("--samples", type=int, default=0, help="1: print each record's due time and latency (produce)")
    options = parser.parse_args()
    print(json.dumps(produce(options) if options.what == "produce" else read(options)))


if __name__ == "__main__":
    main()
