"""The clients of `bench.quotas`, each a process of its own: librdkafka by its Python binding.

    python -m bench.quota_clients produce|consume|latency|member|flood|create|connect ADDRESS [options]

Each works for `--seconds` and prints a line of JSON. Values have no redundancy removed and no compression, so bytes of
values are what a quota counts but for the framing around them (below 0.5 % with these sizes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT: Final = 60.0
VALUE_BYTES: Final = 10_000
_STAMP: Final = struct.Struct(">d")
_VALUE: Final = bytes(VALUE_BYTES)
_ADDRESSES: Final = 30
_IDLE: Final = 0.001
_WARM_SECONDS: Final = 2.0
_KEPT_SECONDS: Final = 0.2  # how much a producer has queued at most
_ASK: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # ApiVersions v0 without a client id


def main() -> None:
    """Run one client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CLIENTS)
    parser.add_argument("address", help="bootstrap servers")
    parser.add_argument("--topic", default="t")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--client-id", default="bench")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1, help="how many clients of this id share the work")
    parser.add_argument("--bytes-per-second", type=float, default=1e9, help="to size requests and queues by")
    parser.add_argument("--pace", type=float, default=0.0, help="keep to so many bytes a second (0: as fast as it can)")
    parser.add_argument("--batch-bytes", type=int, default=0, help="the most in a batch (by the bytes a second)")
    parser.add_argument("--rate", type=float, default=200.0, help="records, topics or connections in a second")
    parser.add_argument("--hold", type=float, default=1.0, help="how long a connection of a crowd stays, on average")
    parser.add_argument("--authority", default="", help="connect by TLS, and trust this file (consume)")
    parser.add_argument("--source", default="127.0.0.1", help="the address to connect from")
    options = parser.parse_args()
    print(json.dumps(CLIENTS[options.what](options)))


class Counted:
    """Bytes by partition, of what came within `seconds` from the start."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.start()
        self.bytes: Counter[int] = Counter()
        self.throttled: list[float] = []

    def start(self) -> None:
        """Begin to count now."""
        self.end = time.monotonic() + self._seconds

    def note_throttle(self, event: Any) -> None:
        self.throttled.append(event.throttle_time)

    def add(self, message: Any) -> None:
        """Count a message that was acknowledged or received."""
        if time.monotonic() <= self.end:
            self.bytes[message.partition()] += VALUE_BYTES

    def result(self) -> dict[str, Any]:
        return {
            "bytes": dict(self.bytes),
            "throttled": len(self.throttled),
            "throttled_seconds": sum(self.throttled),
            "longest_throttle": max(self.throttled, default=0.0),
        }


def request_bytes(bytes_per_second: float) -> int:
    """Return how large requests and answers should be: a fiftieth of a second's worth, within the usual sizes."""
    return int(min(max(bytes_per_second / 50, 2 * VALUE_BYTES), 1_000_000))


class Pace:
    """How much a client that limits itself may have sent or received by now."""

    def __init__(self, bytes_per_second: float) -> None:
        """`bytes_per_second` is 0 for a client without a limit."""
        self._rate = bytes_per_second
        self._begun = time.monotonic()
        self._used = 0

    def use(self, count: int) -> None:
        """Count bytes."""
        self._used += count

    def ahead(self) -> bool:
        """Return whether the client has to wait."""
        return self._rate > 0 and self._used > self._rate * (time.monotonic() - self._begun)


class Feed:
    """A producer that has a share of the records queued at all times."""

    def __init__(self, options: argparse.Namespace, counted: Counted) -> None:
        self._topic = options.topic
        self._counted = counted
        self._pace = Pace(options.pace / options.connections)
        self.failure = ""
        batch = options.batch_bytes or request_bytes(options.bytes_per_second)
        queued = max(options.bytes_per_second * _KEPT_SECONDS / options.connections, 4 * batch)
        self._room = [queued] * options.partitions
        self._producer = Producer(
            {
                "bootstrap.servers": options.address, "client.id": options.client_id, "acks": 1, "linger.ms": 5,
                "batch.size": batch, "max.in.flight.requests.per.connection": 5,
                "queue.buffering.max.kbytes": int(queued / 1000) * options.partitions + 1,
                "throttle_cb": counted.note_throttle, "message.timeout.ms": 120_000,
            }
        )  # fmt: skip
        self._producer.list_topics(options.topic, timeout=TIMEOUT)

    def fill(self) -> bool:
        """Queue records where there is room. Return whether there was any."""
        sent = False
        for partition in range(len(self._room)):
            while self._room[partition] >= VALUE_BYTES and not self._pace.ahead():
                self._pace.use(VALUE_BYTES)
                self._room[partition] -= VALUE_BYTES
                self._producer.produce(self._topic, _VALUE, partition=partition, on_delivery=self._done)
                sent = True
        self._producer.poll(0)
        return sent

    def _done(self, error: Any, message: Any) -> None:
        self._room[message.partition()] += VALUE_BYTES
        if error is None:
            self._counted.add(message)
        elif error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self.failure = str(error)

    def stop(self) -> None:
        """Drop what is queued."""
        self._producer.purge()
        self._producer.poll(0)


def produce(options: argparse.Namespace) -> dict[str, Any]:
    """Send as much as the broker takes, over several connections, evenly to all partitions."""
    counted = Counted(options.seconds)
    feeds = [Feed(options, counted) for _ in range(options.connections)]
    counted.start()
    while time.monotonic() < counted.end:
        filled = [feed.fill() for feed in feeds]
        if not any(filled):
            time.sleep(_IDLE)
    for feed in feeds:
        feed.stop()
        if feed.failure:
            raise RuntimeError(feed.failure)
    return counted.result()


def consume(options: argparse.Namespace) -> dict[str, Any]:
    """Read all partitions from their beginnings, over several connections; begin each again at its end."""
    counted = Counted(options.seconds)
    threads = [threading.Thread(target=_read, args=(options, number, counted)) for number in range(options.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counted.result()


def _read(options: argparse.Namespace, number: int, counted: Counted) -> None:
    tls = {"security.protocol": "ssl", "ssl.ca.location": options.authority} if options.authority else {}
    consumer = Consumer(
        {
            **tls,
            "bootstrap.servers": options.address, "client.id": options.client_id, "group.id": f"readers-{number}",
            "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": request_bytes(options.bytes_per_second), "throttle_cb": counted.note_throttle,
            "fetch.queue.backoff.ms": 5,
            **({"queued.max.messages.kbytes": 2000} if options.pace else {}),
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(options.topic, index, 0) for index in range(options.partitions)])
    pace = Pace(options.pace / options.connections)
    while time.monotonic() < counted.end:
        for message in [] if pace.ahead() else consumer.consume(100 if options.pace else 1000, 0.05):
            error = message.error()
            if error is None:
                counted.add(message)
                pace.use(VALUE_BYTES)
            elif error.code() == KafkaError._PARTITION_EOF:
                consumer.seek(TopicPartition(options.topic, message.partition() or 0, 0))
            else:
                raise KafkaException(error)
        if pace.ahead():
            time.sleep(_IDLE)
    consumer.close()


def latency(options: argparse.Namespace) -> dict[str, Any]:
    """Send `--rate` small records a second at times fixed beforehand, and read them.

    Both latencies count from the time at which a record was due, so that a stall is seen by all that it held up.
    """
    settings = {"bootstrap.servers": options.address, "client.id": options.client_id}
    acknowledged: list[float] = []
    received: list[float] = []
    producer = Producer({**settings, "acks": 1, "linger.ms": 0})
    consumer = Consumer({**settings, "group.id": options.client_id, "enable.auto.commit": False})
    consumer.assign([TopicPartition(options.topic, 0, _end(consumer, options.topic))])
    count = int(options.rate * options.seconds)
    done = threading.Event()

    def read() -> None:
        while len(received) < count and not done.is_set():
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                received.append(time.monotonic() - _STAMP.unpack_from(message.value() or b"")[0])

    def serve() -> None:
        while len(acknowledged) < count and not done.is_set():
            producer.poll(0.1)

    threads = [threading.Thread(target=one) for one in (read, serve)]
    for thread in threads:
        thread.start()
    _send_on_time(producer, options, count, acknowledged)
    for thread in threads:
        thread.join(TIMEOUT)
    done.set()
    consumer.close()
    if len(received) < count or len(acknowledged) < count:
        raise RuntimeError(f"{len(acknowledged)} acknowledged and {len(received)} received of {count}")
    return {"produce": _percentiles(acknowledged), "fetch": _percentiles(received)}


def _send_on_time(producer: Producer, options: argparse.Namespace, count: int, acknowledged: list[float]) -> None:
    """Send records when they are due. Note how long after that each is acknowledged."""
    begun = time.monotonic() + _WARM_SECONDS
    for number in range(count):
        due = begun + number / options.rate
        time.sleep(max(due - time.monotonic(), 0))

        def noted(_error: Any, _message: Any, due: float = due) -> None:
            acknowledged.append(time.monotonic() - due)

        producer.produce(options.topic, _STAMP.pack(due) + bytes(92), on_delivery=noted)


def _end(consumer: Consumer, topic: str) -> int:
    offsets = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT)
    assert offsets is not None
    return int(offsets[1])


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in ms, without the first tenth."""
    found = sorted(seconds[len(seconds) // 10 :])
    return {name: 1000 * found[int(len(found) * share)] for name, share in (("p50", 0.5), ("p99", 0.99))}


def member(options: argparse.Namespace) -> dict[str, Any]:
    """Read as a member of a group. librdkafka writes when it received each heartbeat's answer to standard error."""
    counted = Counted(options.seconds)
    lost: list[Any] = []
    consumer = Consumer(
        {
            "bootstrap.servers": options.address, "client.id": options.client_id, "group.id": "members",
            "auto.offset.reset": "earliest", "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
            "throttle_cb": counted.note_throttle, "debug": "protocol", "fetch.message.max.bytes": 100_000,
        }
    )  # fmt: skip
    consumer.subscribe([options.topic], on_revoke=lambda _, parts: lost.extend(parts),
                       on_lost=lambda _, parts: lost.extend(parts))  # fmt: skip
    while time.monotonic() < counted.end:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            counted.add(message)
    result = counted.result() | {"lost": len(lost)}
    consumer.close()
    return result


def flood(options: argparse.Namespace) -> dict[str, Any]:
    """Send requests with one small record each, as many as the broker takes."""
    done = [0]
    settings = {
        "bootstrap.servers": options.address, "client.id": options.client_id, "acks": 1, "linger.ms": 0,
        "batch.num.messages": 1, "max.in.flight.requests.per.connection": 100, "queue.buffering.max.messages": 2000,
    }  # fmt: skip
    producer = Producer(settings)
    producer.list_topics(options.topic, timeout=TIMEOUT)
    begun = time.monotonic()
    end = begun + options.seconds

    def count(error: Any, _: Any) -> None:
        done[0] += error is None and time.monotonic() <= end

    value = bytes(100)
    while time.monotonic() < end:
        try:
            producer.produce(options.topic, value, on_delivery=count)
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    producer.poll(0)
    return {"requests": done[0]}


def create(options: argparse.Namespace) -> dict[str, Any]:
    """Create topics of one partition, as many as the broker lets be created; note when."""
    admin = AdminClient({"bootstrap.servers": options.address, "client.id": options.client_id})
    begun = time.monotonic()
    made: list[float] = []
    refused = number = 0
    while time.monotonic() < begun + options.seconds:
        name = f"{options.topic}-{number}"
        (wanted,) = admin.create_topics([NewTopic(name, 1, 1)], request_timeout=TIMEOUT).values()
        try:
            wanted.result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.THROTTLING_QUOTA_EXCEEDED:
                raise
            refused += 1
            time.sleep(0.02)
        else:
            made.append(time.monotonic() - begun)
            number += 1
    return {"made": made, "refused": refused}


def connect(options: argparse.Namespace) -> dict[str, Any]:
    """Open `--rate` connections a second from one address, and ask something on each; note which are served."""
    host, _, port = options.address.rpartition(":")
    begun = time.monotonic()
    served: list[float] = []
    refused = 0
    opened: deque[socket.socket] = deque()
    for number in range(int(options.rate * options.seconds)):
        time.sleep(max(begun + number / options.rate - time.monotonic(), 0))
        one = _served((host, int(port)), options.source)
        if one is None:
            refused += 1
        else:
            served.append(time.monotonic() - begun)
            opened.append(one)
        if len(opened) > 100:
            opened.popleft().close()
    for one in opened:
        one.close()
    return {"served": served, "refused": refused}


def _served(address: tuple[str, int], source: str) -> socket.socket | None:
    """Return a connection on which a broker answers; None if it closes it."""
    try:
        connection = socket.create_connection(address, TIMEOUT, source_address=(source, 0))
    except ConnectionError:  # closed before this side knew that it was open
        return None
    with contextlib.suppress(ConnectionError):
        connection.sendall(_ASK)
        if connection.recv(4):
            return connection
    connection.close()
    return None


class Crowd:
    """Connections that come as fast as they can, each from another address in turn, and leave when they were served."""

    def __init__(self, options: argparse.Namespace) -> None:
        host, _, port = options.address.rpartition(":")
        self._address = host, int(port)
        self._hold = options.hold
        self._selector = selectors.DefaultSelector()
        self._leaving: list[tuple[float, int, socket.socket]] = []  # a heap by when
        self._chance = random.Random(0)  # or they would come and go in waves
        self._opened = 0
        self.waited: list[float] = []  # seconds from coming to being served
        self.refused = 0

    def come(self) -> None:
        """Open a connection without waiting for it."""
        one = socket.socket()
        one.setblocking(False)
        one.bind((f"127.0.0.{2 + self._opened % _ADDRESSES}", 0))
        one.connect_ex(self._address)
        self._selector.register(one, selectors.EVENT_WRITE, time.monotonic())
        self._opened += 1

    def turn(self) -> None:
        """Send and receive what can be, and replace those that have been served for long enough."""
        for key, ready in self._selector.select(0.05):
            one: Any = key.fileobj
            try:
                if ready & selectors.EVENT_WRITE:
                    one.send(_ASK)
                    self._selector.modify(one, selectors.EVENT_READ, key.data)
                    continue
                answered = bool(one.recv(4096))
            except OSError:
                answered = False
            self._selector.unregister(one)
            if answered:
                self.waited.append(time.monotonic() - key.data)
            self.refused += not answered
            leaves = time.monotonic() + self._hold * self._chance.uniform(0.5, 1.5)
            heappush(self._leaving, (leaves, key.fd, one))
        while self._leaving and self._leaving[0][0] <= time.monotonic():
            heappop(self._leaving)[2].close()
            self.come()


def crowd(options: argparse.Namespace) -> dict[str, Any]:
    """Keep `--connections` connections open or trying; each that is served stays for `--hold` seconds."""
    many = Crowd(options)
    for _ in range(options.connections):
        many.come()
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        many.turn()
    waited = sorted(many.waited[2 * options.connections // 5 :])  # those before came when nobody waited
    return {"served": len(many.waited), "refused": many.refused, "waited": waited}


CLIENTS: Final[dict[str, Callable[[argparse.Namespace], dict[str, Any]]]] = {
    "produce": produce, "consume": consume, "latency": latency, "member": member, "flood": flood, "create": create,
    "connect": connect, "crowd": crowd,
}  # fmt: skip

if __name__ == "__main__":
    main()
