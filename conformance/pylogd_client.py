"""pylogd's own blocking client, which has to work with Apache Kafka as it does with pylogd."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial

from conformance.checks import FAILED, PASSED, Check, last_line
from pylogd import __version__
from pylogd.client import Admin, Cluster, Consumer, Producer, Record, TopicPartition

SECONDS = 60.0
COUNT = 5_000
TIME = 1_700_000_000_000


def version() -> str:
    """The checkout's."""
    return __version__


def suite(address: str) -> list[Check]:
    """Run all checks."""
    return [_check(name, work, address) for name, work in _works()]


def _check(name: str, work: Callable[[str, str], None], address: str) -> Check:
    try:
        with Cluster(address) as cluster:
            topic = f"pylogd-client-{uuid.uuid4().hex[:8]}"
            Admin(cluster).create_topic(topic, 1)
        work(address, topic)
    except Exception as error:  # any exception is the result of the check
        return Check(name, FAILED, last_line(f"{type(error).__name__}: {error}"))
    return Check(name, PASSED)


def _works() -> Iterator[tuple[str, Callable[[str, str], None]]]:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        yield f"written records are read unchanged, {codec}", partial(_there_and_back, codec)
    yield "idempotent: many batches arrive once and in order", _idempotent
    yield "acks 0 and 1", _acks
    yield "columns equal objects", _columns
    yield "offsets by time", _times
    yield "a group continues at its committed offset", _group


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}"[:200])


def _read(consumer: Consumer, count: int) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll(1.0)
    return found


def _there_and_back(codec: str, address: str, topic: str) -> None:
    with Producer(address, compression=codec) as producer:
        for n in range(COUNT):
            producer.send(topic, b"value %d" % n, b"key", timestamp=TIME + n, headers=[("h", None), ("n", b"%d" % n)])
    with Consumer(address) as consumer:
        consumer.assign([(topic, 0)])
        found = [(r.offset, r.key, r.value, r.timestamp, r.headers) for r in _read(consumer, COUNT)]
    _expect(found, [(n, b"key", b"value %d" % n, TIME + n, (("h", None), ("n", b"%d" % n))) for n in range(COUNT)])


def _idempotent(address: str, topic: str) -> None:
    with Producer(address, batch_records=20, linger_ms=0) as producer:
        deliveries = [producer.send(topic, b"%d" % n) for n in range(COUNT)]
    _expect([delivery.offset for delivery in deliveries], list(range(COUNT)))
    with Consumer(address) as consumer:
        consumer.assign([(topic, 0)])
        _expect([int(r.value or b"") for r in _read(consumer, COUNT)], list(range(COUNT)))


def _acks(address: str, topic: str) -> None:
    with Producer(address, acks=1) as producer:
        _expect(producer.send(topic, b"1").result(SECONDS), 0)
    with Producer(address, acks=0) as producer:
        producer.send(topic, b"2")
    with Consumer(address) as consumer:
        consumer.assign([(topic, 0)])
        _expect([r.value for r in _read(consumer, 2)], [b"1", b"2"])


def _columns(address: str, topic: str) -> None:
    with Producer(address, compression="zstd") as producer:
        for n in range(COUNT):
            producer.send(topic, b"%d" % n, b"key", timestamp=TIME + n)
    rows: list[tuple[int, bytes, bytes]] = []
    with Consumer(address) as consumer:
        consumer.assign({(topic, 0): 10})
        deadline = time.monotonic() + SECONDS
        while len(rows) < COUNT - 10 and time.monotonic() < deadline:
            for _, found in consumer.poll_columns(1.0):
                rows += zip(*(found.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)
    _expect(rows, [(n, b"key", b"%d" % n) for n in range(10, COUNT)])


def _times(address: str, topic: str) -> None:
    with Producer(address, batch_records=100) as producer:
        for n in range(1000):
            producer.send(topic, b"v", timestamp=TIME + 10 * n)
    with Consumer(address) as consumer:
        answer = consumer.offsets_for_times({(topic, 0): TIME + 5005})[TopicPartition(topic, 0)]
        _expect(answer and answer.offset, 501)


def _group(address: str, topic: str) -> None:
    with Producer(address) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n)
    with Consumer(address, group_id=topic, auto_commit="off") as consumer:
        consumer.subscribe([topic])
        _read(consumer, 100)
        consumer.commit({TopicPartition(topic, 0): 40})
    with Consumer(address, group_id=topic, auto_commit="off") as consumer:
        consumer.subscribe([topic])
        _expect([int(r.value or b"") for r in _read(consumer, 60)], list(range(40, 100)))
