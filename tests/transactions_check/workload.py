"""The load of a run: producers of transactions, members of a group that copy in transactions, readers of all of it.

Strategy: each worker is a thread with clients of its own, and a random generator of its own. Feeders write transactions
of several records to several partitions, and abort some. Copiers read the sources in one group, and copy each record to
every target, with its offset, in one transaction; now and then one leaves its producer as it is, in the middle of a
transaction, and goes on with another one of the same transactional id, as after a crash. Readers read all topics.

Rules: an outcome is recorded only as what the producer was told. What fails is tried again with new clients, as an
application that is restarted does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pylogd.client import (
    Consumer,
    KafkaError,
    Producer,
    ProducerFailed,
    RequestTimedOut,
    TopicPartition,
    TransactionAborted,
)
from pylogd.errors import PylogdError
from tests.transactions_check.history import History, Outcome, Position, Reading, Value

TRANSACTION_TIMEOUT = 10.0
_BLOCK_SECONDS = 30.0


@dataclass
class Load:
    """What all workers share. `stopping` ends feeders, `draining` copiers and readers."""

    bootstrap: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    partitions: int
    group: str
    seed: int
    history: History = field(default_factory=History)
    stopping: threading.Event = field(default_factory=threading.Event)
    draining: threading.Event = field(default_factory=threading.Event)
    troubles: dict[str, int] = field(default_factory=dict)

    @property
    def places(self) -> list[TopicPartition]:
        """All partitions of all topics."""
        return [
            TopicPartition(topic, index) for topic in (*self.sources, *self.targets) for index in range(self.partitions)
        ]

    def note(self, error: BaseException) -> None:
        """Count what went wrong for a worker; that is what faults are for."""
        cause = error.__cause__ if isinstance(error, TransactionAborted | ProducerFailed) else None
        code = f" {cause.code.name}" if isinstance(cause, KafkaError) else ""
        name = f"{type(error).__name__}{code}"
        with self.history.lock:
            self.troubles[name] = self.troubles.get(name, 0) + 1

    def workers(self, feeders: int, copiers: int, readers: int) -> list[threading.Thread]:
        """Return the threads, not started."""
        kinds: list[tuple[str, int, Callable[[Load, str, random.Random], None]]] = [
            ("feeder", feeders, feed), ("copier", copiers, copy), ("reader", readers, read),
        ]  # fmt: skip
        return [
            threading.Thread(target=work, args=(self, f"{kind}{number}", random.Random(f"{self.seed} {kind}{number}")),
                             name=f"{kind}{number}", daemon=True)
            for kind, count, work in kinds
            for number in range(count)
        ]  # fmt: skip

    def producer(self, name: str) -> Producer:
        """Return a transactional producer of a worker."""
        return Producer(
            self.bootstrap, transactional_id=f"{self.group}-{name}", transaction_timeout=TRANSACTION_TIMEOUT,
            linger_ms=0, max_block=_BLOCK_SECONDS, delivery_timeout=_BLOCK_SECONDS, request_timeout=5.0,
        )  # fmt: skip


def feed(load: Load, name: str, rng: random.Random) -> None:
    """Write transactions until the load stops."""
    producer = load.producer(name)
    number = 0
    while not load.stopping.is_set():
        transaction = f"{name}-{number}"
        number += 1
        size = rng.randint(1, 6)
        values = [Value(transaction, index, size, "") for index in range(size)]
        places = [(rng.choice(load.sources), rng.randrange(load.partitions)) for _ in values]
        producer = _transaction(load, producer, name, transaction, values, places, aborts=rng.random() < 0.2)
        time.sleep(rng.random() * 0.02)
    producer.close()


def _transaction(
    load: Load,
    producer: Producer,
    name: str,
    transaction: str,
    values: list[Value],
    places: list[tuple[str, int]],
    *,
    aborts: bool,
) -> Producer:
    """Write one transaction, and record its outcome. Return the producer for the next one."""
    outcome = Outcome.ABORTED
    try:
        producer.begin_transaction()
        for value, (topic, index) in zip(values, places, strict=True):
            producer.send(topic, value.encode(), partition=index)
        if aborts:
            producer.flush()
            producer.abort_transaction()
        else:
            outcome = Outcome.UNKNOWN
            producer.commit_transaction()
            outcome = Outcome.COMMITTED
    except TransactionAborted as error:
        outcome = Outcome.ABORTED
        load.note(error)
        producer = _after(load, producer, name)
    except PylogdError as error:
        load.note(error)
        producer.abandon()
        producer = load.producer(name)
    load.history.ended(transaction, outcome)
    return producer


def _after(load: Load, producer: Producer, name: str) -> Producer:
    """Abort what can only be aborted. Return the producer for the next transaction."""
    try:
        producer.abort_transaction()
    except PylogdError as error:
        load.note(error)
        producer.abandon()
        return load.producer(name)
    return producer


class _Copier:
    """One member of the group, and the producer of its copies."""

    def __init__(self, load: Load, name: str, rng: random.Random) -> None:
        self.load, self.name, self.rng = load, name, rng
        self.number = 0
        self.open()

    def open(self) -> None:
        """Begin with new clients: the transaction of the predecessor is ended first."""
        self.producer = self.load.producer(self.name)
        self.consumer = Consumer(
            self.load.bootstrap, group_id=self.load.group, auto_commit="transaction", max_poll_records=20,
            session_timeout=10.0, request_timeout=5.0,
        )  # fmt: skip
        self.consumer.subscribe(self.load.sources)

    def close(self) -> None:
        """Leave the group."""
        self.producer.abandon()
        self.consumer.close(2.0)

    def crash(self) -> None:
        """Leave the producer in the middle of a transaction, and go on as a process that was started anew."""
        self.producer.begin_transaction()
        self.producer.send(self.load.targets[0], Value(self._next(), 0, 2, "none").encode(), partition=0)
        self.producer.flush()
        self.close()
        self.open()

    def _next(self) -> str:
        self.number += 1
        transaction = f"{self.name}-{self.number}"
        self.load.history.ended(transaction, Outcome.ABORTED)
        return transaction

    def turn(self) -> None:
        """Copy what one poll returns."""
        records = self.consumer.poll(0.2)
        if not records:
            return
        load, transaction = self.load, self._next()
        causes = [Value.decode(record.value).name for record in records]
        load.history.read_by[transaction] = causes
        size = len(causes) * len(load.targets)
        try:
            with self.producer.transaction() as open_:
                for at, (cause, record) in enumerate(zip(causes, records, strict=True)):
                    for to, topic in enumerate(load.targets):
                        value = Value(transaction, at * len(load.targets) + to, size, cause)
                        self.producer.send(topic, value.encode(), partition=record.partition)
                open_.send_offsets(self.consumer)
                if self.rng.random() < 0.1:
                    raise InterruptedError
                load.history.ended(transaction, Outcome.UNKNOWN)
            load.history.ended(transaction, Outcome.COMMITTED)
        except TransactionAborted as error:
            load.history.ended(transaction, Outcome.ABORTED)
            load.note(error)
            self.consumer.seek_to_committed()
        except InterruptedError:
            self.consumer.seek_to_committed()


def copy(load: Load, name: str, rng: random.Random) -> None:
    """Copy all sources to all targets, each record in the transaction that commits its offset."""
    copier = _Copier(load, name, rng)
    while not load.draining.is_set():
        try:
            copier.turn()
            if rng.random() < 0.02 and not load.stopping.is_set():
                copier.crash()
        except PylogdError as error:
            load.note(error)
            copier.close()
            copier.open()
    copier.close()


def read(load: Load, name: str, rng: random.Random) -> None:
    """Read everything that is committed, from the start, and record it in order."""
    reading = load.history.readings[name] = []
    with Consumer(load.bootstrap, isolation="committed", request_timeout=5.0) as consumer:
        consumer.assign(load.places)
        while not load.draining.is_set():
            try:
                reading += take(consumer, 0.2 + rng.random() * 0.1)
            except PylogdError as error:
                load.note(error)


def take(consumer: Consumer, timeout: float) -> Reading:
    """Return what one poll returns."""
    return [
        (Position(record.topic, record.partition, record.offset), Value.decode(record.value))
        for record in consumer.poll(timeout)
    ]


def settle(load: Load, seconds: float) -> None:
    """Wait until no transaction is open, and the group has committed everything. Raises RequestTimedOut."""
    deadline = time.monotonic() + seconds
    sources = [place for place in load.places if place.topic in load.sources]
    with Consumer(load.bootstrap, group_id=load.group, auto_commit="transaction") as committed:
        while True:
            stable = committed.end_offsets(load.places)
            if stable == _ends(load) and _copied(committed, sources):
                return
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"after {seconds:g} s transactions are open, or records not copied: stable {stable}, ends "
                    f"{_ends(load)}, copied up to {committed.committed(sources)}"
                )
            time.sleep(0.2)


def _ends(load: Load) -> dict[TopicPartition, int]:
    with Consumer(load.bootstrap, isolation="uncommitted") as consumer:
        return consumer.end_offsets(load.places)


def _copied(consumer: Consumer, sources: list[TopicPartition]) -> bool:
    """Whether no record lies behind what the group has committed."""
    committed = consumer.committed(sources)
    with_offset = {place: 0 if found is None else found.offset for place, found in committed.items()}
    with Consumer(consumer.cluster, isolation="committed") as reader:
        reader.assign(with_offset)
        return not reader.poll(1.0)


def read_all(load: Load) -> Reading:
    """Return everything that is committed, once nothing changes any more."""
    found: Reading = []
    with Consumer(load.bootstrap, isolation="committed") as consumer:
        ends = consumer.end_offsets(load.places)
        consumer.assign(dict.fromkeys(load.places, 0))
        deadline = time.monotonic() + 120
        while any(consumer.position(place) < ends[place] for place in load.places):
            found += take(consumer, 1.0)
            if time.monotonic() > deadline:
                raise RequestTimedOut("the end can't be read in 120 s")
    return found
