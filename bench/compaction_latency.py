"""The latency of single produce requests with acks=all, with and without a compaction at the same time.

A compacted topic is filled while the cleaner is off. Then, in each of `--rounds` rounds, the broker is started on a
copy of that directory with the cleaner off and with it on, and the latency of single produce requests to another topic
is measured for as long as the compaction takes. Run from the checkout:

    python -m bench.compaction_latency [--records 400000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pylogd.local.broker import BrokerProcess

_DONE = "Compacted "
_LEAST_SECONDS = 2.0
_MOST_SECONDS = 60.0


def main() -> None:
    """Fill the topic, measure with and without compaction in turns, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000, help="records of 1 KiB, with a quarter as many keys")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        root = Path(name)
        _fill(root, options.records)
        for _ in range(options.rounds):
            idle, busy = (_measure(root, cleaning) for cleaning in (False, True))
            rows.append((*idle, *busy))
            print("idle p50 {:.2f} p99 {:.2f} ms   cleaning p50 {:.2f} p99 {:.2f} ms".format(*rows[-1]), flush=True)
    p50, p99, busy50, busy99 = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"medians: p50 {p50:.2f} -> {busy50:.2f} ms, p99 {p99:.2f} -> {busy99:.2f} ms ({busy99 / p99:.2f} times)")


@contextlib.contextmanager
def _broker(data: Path, log: Path, settings: dict[str, str]) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(data, log, settings)
    try:
        yield broker
    finally:
        broker.stop()


def _fill(root: Path, records: int) -> None:
    with _broker(root / "data", root / "log", {"log.cleaner.enable": "false"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        compacted = NewTopic("c", 1, 1, config={"cleanup.policy": "compact", "segment.bytes": "50000000"})
        for made in admin.create_topics([compacted, NewTopic("t", 1, 1)]).values():
            made.result()
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 0})
        noise, chance = random.randbytes(1024), random.Random(1)
        for _ in range(records):
            while True:
                try:
                    producer.produce("c", noise, b"k%d" % chance.randrange(records // 4))
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        producer.flush()


def _measure(root: Path, cleaning: bool) -> tuple[float, float]:
    """Return (p50, p99) in milliseconds."""
    data = root / "copy"
    shutil.copytree(root / "data", data)
    log = root / f"log-{time.monotonic_ns()}"
    settings = {"log.cleaner.enable": str(cleaning).lower(), "log.cleaner.backoff.ms": "100"}
    with _broker(data, log, settings) as broker:
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0, "log_level": 0})
        times: list[float] = []
        started = time.monotonic()
        while True:
            spent = time.monotonic() - started
            if spent > (_MOST_SECONDS if cleaning else _LEAST_SECONDS) or (cleaning and _DONE in broker.log()):
                break
            times.extend(_produce(producer) for _ in range(50))
    shutil.rmtree(data)
    times.sort()
    return times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000


def _produce(producer: Producer) -> float:
    done: list[object] = []
    started = time.perf_counter()
    producer.produce("t", b"x" * 100, b"k", partition=0, on_delivery=lambda error, _: done.append(error))
    while not done:
        producer.poll(0.5)
    seconds = time.perf_counter() - started
    assert done == [None], done
    time.sleep(0.002)
    return seconds


if __name__ == "__main__":
    main()
