"""The load of a run: producers of transactions, members of groups that copy in transactions, readers of all of it.

Strategy: each worker is a thread with clients of its own, and a random generator of its own. Feeders write transactions
of several records to several partitions, and abort some. Mixers do so too, and between the records of a transaction
they poll the topic to which all mixers write, so that transactions read from each other while both are open. Copiers
read the sources in a group, and copy each record to every target of the group, with its offset, in one transaction; now
and then one leaves its producer as it is, in the middle of a transaction, and goes on with another one of the same
transactional id, as after a crash. There is a group of pylogd's client; those of librdkafka are in `confluent`. Readers
read all topics, watchers ask for last stable offsets.

Rules: an outcome is recorded only as what the producer was told. What fails is tried again with new clients, as an
application that is restarted does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pylogd.base.errors import PylogdError
from pylogd.client import (
    Admin,
    Consumer,
    KafkaError,
    Producer,
    ProducerFailed,
    RequestTimedOut,
    TopicPartition,
    TransactionAborted,
)
from tests.transactions_check.history import Action, History, Outcome, Position, Reading, Value

TRANSACTION_TIMEOUT = 10.0
SOURCES = ("source-a", "source-b")
#: To which mixers write, and from which they read.
MIX = "mix"
PARTITIONS = 2
_BLOCK_SECONDS = 30.0


@dataclass(frozen=True)
class CopyGroup:
    """A group of copiers. Each record of the sources has to be copied to every target once."""

    name: str
    targets: tuple[str, ...]


#: The group of pylogd's client, and those of librdkafka: with the classic group protocol, and with that of KIP-848.
OWN = CopyGroup("own", ("copy-a", "copy-b"))
CLASSIC = CopyGroup("classic", ("copy-c",))
CONSUMER = CopyGroup("consumer", ("copy-d",))
#: The same of Java's client, which only long runs have.
JAVA_CLASSIC = CopyGroup("java-classic", ("copy-e",))
JAVA_CONSUMER = CopyGroup("java-consumer", ("copy-f",))


@dataclass
class Load:
    """What all workers share. `stopping` ends feeders and mixers, `draining` the others."""

    bootstrap: str
    groups: tuple[CopyGroup, ...]
    seed: int
    history: History = field(default_factory=History)
    stopping: threading.Event = field(default_factory=threading.Event)
    draining: threading.Event = field(default_factory=threading.Event)
    troubles: dict[str, int] = field(default_factory=dict)

    @property
    def targets(self) -> set[str]:
        """The topics with copies."""
        return {target for group in self.groups for target in group.targets}

    @property
    def topics(self) -> dict[str, int]:
        """All topics, with the number of their partitions."""
        return dict.fromkeys([*SOURCES, MIX, *sorted(self.targets)], PARTITIONS)

    @property
    def places(self) -> list[TopicPartition]:
        """All partitions of all topics."""
        return [TopicPartition(topic, index) for topic, count in self.topics.items() for index in range(count)]

    def create_topics(self, replicas: int) -> None:
        """Create all topics."""
        with Admin(self.bootstrap) as admin:
            for name, count in self.topics.items():
                admin.create_topic(name, count, replicas)

    def note(self, error: BaseException) -> None:
        """Count what went wrong for a worker; that is what faults are for."""
        cause = error.__cause__ if isinstance(error, TransactionAborted | ProducerFailed) else None
        code = f" {cause.code.name}" if isinstance(cause, KafkaError) else ""
        self.count(f"{type(error).__name__}{code}")

    def count(self, trouble: str) -> None:
        """Count what went wrong by its name."""
        with self.history.lock:
            self.troubles[trouble] = self.troubles.get(trouble, 0) + 1

    def producer(self, name: str) -> Producer:
        """Return a transactional producer of a worker."""
        return Producer(
            self.bootstrap, transactional_id=f"check-{name}", transaction_timeout=TRANSACTION_TIMEOUT,
            linger_ms=0, max_block=_BLOCK_SECONDS, delivery_timeout=_BLOCK_SECONDS, request_timeout=5.0,
        )  # fmt: skip


Work = Callable[[Load, str, random.Random], None]


def start_all(load: Load, kinds: list[tuple[str, int, Work]]) -> list[threading.Thread]:
    """Start as many threads of each kind of work, and return them. They are named after it, with a number."""
    threads = [
        threading.Thread(target=work, args=(load, f"{kind}{number}", random.Random(f"{load.seed} {kind}{number}")),
                         name=f"{kind}{number}", daemon=True)
        for kind, count, work in kinds
        for number in range(count)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    return threads


# -- transactions that only write, and those that read in between


def feed(load: Load, name: str, rng: random.Random) -> None:
    """Write transactions until the load stops."""
    producer = load.producer(name)
    for transaction in _names(load, name):
        values = _values(transaction, rng.randint(1, 6))

        def send(producer: Producer, values: list[Value] = values) -> None:
            for value in values:
                _send(load, producer, rng.choice(SOURCES), value, rng.randrange(PARTITIONS))

        producer = _transaction(load, producer, name, transaction, send, aborts=rng.random() < 0.2)
        time.sleep(rng.random() * 0.05)
    _end_what_is_open(load, name, producer)


def mix(load: Load, name: str, rng: random.Random) -> None:
    """Write transactions that read what others write, until the load stops."""
    producer = load.producer(name)
    reading = load.history.readings[name] = []
    with Consumer(load.bootstrap, isolation="committed", request_timeout=5.0) as consumer:
        consumer.assign([place for place in load.places if place.topic == MIX])
        for transaction in _names(load, name):
            values = _values(transaction, rng.randint(1, 4))
            polls = rng.choices(range(len(values) + 1), k=rng.randint(1, 3))  # before which records

            def work(producer: Producer, values: list[Value] = values, polls: list[int] = polls) -> None:
                for at in range(len(values) + 1):
                    for _ in range(polls.count(at)):
                        _read(load, consumer, values[0].transaction, reading, rng.random() * 0.05)
                    if at < len(values):
                        _send(load, producer, MIX, values[at], rng.randrange(PARTITIONS), wait=rng.random() < 0.5)

            producer = _transaction(load, producer, name, transaction, work, aborts=rng.random() < 0.1)
            time.sleep(rng.random() * 0.02)
    _end_what_is_open(load, name, producer)


def _names(load: Load, name: str) -> Iterator[str]:
    """Yield the names of a worker's transactions until the load stops."""
    number = 0
    while not load.stopping.is_set():
        yield f"{name}-{number}"
        number += 1


def _values(transaction: str, size: int) -> list[Value]:
    return [Value(transaction, index, size, "") for index in range(size)]


def _send(load: Load, producer: Producer, topic: str, value: Value, partition: int, *, wait: bool = False) -> None:
    """Send a record, and wait for its acknowledgement if that is wanted."""
    load.history.step(value.transaction, Action.SEND, value.number)
    delivery = producer.send(topic, value.encode(), partition=partition)
    if wait:
        delivery.result(_BLOCK_SECONDS)
        load.history.step(value.transaction, Action.ACKNOWLEDGED, value.number)


def _read(load: Load, consumer: Consumer, transaction: str, reading: Reading, timeout: float) -> None:
    """Poll in a transaction."""
    found = take(consumer, timeout)
    reading += found
    load.history.step(transaction, Action.READ, read={value.transaction for _, value in found})


def _transaction(
    load: Load,
    producer: Producer,
    name: str,
    transaction: str,
    work: Callable[[Producer], None],
    *,
    aborts: bool,
) -> Producer:
    """Do some work in a transaction, and record its outcome. Return the producer for the next one."""
    history, outcome = load.history, Outcome.ABORTED
    try:
        history.step(transaction, Action.BEGIN)
        producer.begin_transaction()
        work(producer)
        if aborts:
            producer.flush()
            producer.abort_transaction()
        else:
            outcome = Outcome.UNKNOWN
            history.step(transaction, Action.COMMIT)
            producer.commit_transaction()
            history.step(transaction, Action.COMMITTED)
            outcome = Outcome.COMMITTED
    except TransactionAborted as error:
        outcome = Outcome.ABORTED
        load.note(error)
        producer = _after(load, producer, name)
    except PylogdError as error:
        load.note(error)
        producer.abandon()
        producer = load.producer(name)
    history.ended(transaction, outcome)
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


def _end_what_is_open(load: Load, name: str, producer: Producer) -> None:
    """Have the coordinator end what a producer may have left open, now that all faults are over."""
    producer.abandon()
    for _ in range(3):
        try:
            with load.producer(name) as successor:
                successor.init_transactions()
                return
        except PylogdError as error:
            load.note(error)


# -- copiers


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
            self.load.bootstrap, group_id=OWN.name, auto_commit="transaction", max_poll_records=20,
            session_timeout=10.0, request_timeout=5.0,
        )  # fmt: skip
        self.consumer.subscribe(SOURCES)

    def close(self) -> None:
        """Leave the group."""
        self.producer.abandon()
        self.consumer.close(2.0)

    def crash(self) -> None:
        """Leave the producer in the middle of a transaction, and go on as a process that was started anew.

        The former one comes back and tries to go on too, which has to be refused.
        """
        former, source = self.producer, SOURCES[0]
        dead, alive = self._next(), self._next()
        former.begin_transaction()
        former.send(source, Value(dead, 0, 2, "").encode(), partition=0)
        former.flush()
        self.consumer.close(2.0)
        self.open()
        self.producer.begin_transaction()
        self.producer.send(source, Value(alive, 0, 1, "").encode(), partition=0)
        self.producer.flush()
        self._try_to_go_on(former, Value(dead, 1, 2, ""))
        self.load.history.ended(alive, Outcome.UNKNOWN)
        self.producer.commit_transaction()
        self.load.history.ended(alive, Outcome.COMMITTED)

    def _try_to_go_on(self, former: Producer, value: Value) -> None:
        """Let a producer that has a successor write and commit. That it is refused is no trouble but what is asked for.

        Were it not refused, its transaction would be found, which counts as aborted.
        """
        try:
            former.send(SOURCES[0], value.encode(), partition=0)
            former.flush(5.0)
            former.commit_transaction(5.0)
        except (TransactionAborted, ProducerFailed):
            pass
        except PylogdError as error:
            self.load.note(error)
        former.abandon()

    def _next(self) -> str:
        self.number += 1  # an aborted one until more is known
        transaction = f"{self.name}-{self.number}"
        self.load.history.ended(transaction, Outcome.ABORTED)
        return transaction

    def turn(self) -> None:
        """Copy what one poll returns."""
        self.producer.init_transactions()  # ends what a predecessor has left open
        records = self.consumer.poll(0.2)
        if not records:
            return
        history, transaction = self.load.history, self._next()
        causes = [Value.decode(record.value) for record in records]
        history.step(transaction, Action.READ, read={cause.transaction for cause in causes})
        size = len(causes) * len(OWN.targets)
        try:
            with self.producer.transaction() as open_:
                for at, (cause, record) in enumerate(zip(causes, records, strict=True)):
                    for to, topic in enumerate(OWN.targets):
                        value = Value(transaction, at * len(OWN.targets) + to, size, cause.name)
                        _send(self.load, self.producer, topic, value, record.partition)
                open_.send_offsets(self.consumer)
                if self.rng.random() < 0.1:
                    raise InterruptedError
                history.ended(transaction, Outcome.UNKNOWN)
                history.step(transaction, Action.COMMIT)
            history.step(transaction, Action.COMMITTED)
            history.ended(transaction, Outcome.COMMITTED)
        except TransactionAborted as error:
            history.ended(transaction, Outcome.ABORTED)
            self.load.note(error)
            self.consumer.seek_to_committed()
        except InterruptedError:
            self.consumer.seek_to_committed()


def copy(load: Load, name: str, rng: random.Random) -> None:
    """Copy all sources to the targets of the group, each record in the transaction that commits its offset."""
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


def watch(load: Load, name: str, _: random.Random) -> None:
    """Ask for the last stable offset of all partitions, again and again."""
    told = load.history.stable[name] = []
    with Consumer(load.bootstrap, isolation="committed", request_timeout=5.0) as consumer:
        while not load.draining.wait(0.2):
            try:
                told += [(*place, offset) for place, offset in consumer.end_offsets(load.places).items()]
            except PylogdError as error:
                load.note(error)


def take(consumer: Consumer, timeout: float) -> Reading:
    """Return what one poll returns."""
    return [
        (Position(record.topic, record.partition, record.offset), Value.decode(record.value))
        for record in consumer.poll(timeout)
    ]


def settle(load: Load, seconds: float) -> None:
    """Wait until no transaction is open, and every group has committed everything.

    Raises RequestTimedOut if there was no progress for so many seconds.
    """
    deadline, before = time.monotonic() + seconds, None
    with Consumer(load.bootstrap, isolation="committed") as reader:
        while True:
            behind = {group.name: found for group in load.groups if (found := _behind(load, group))}
            stable, ends = reader.end_offsets(load.places), _ends(load)
            if stable == ends and not behind:
                return
            if behind != before:
                deadline, before = time.monotonic() + seconds, behind
            elif time.monotonic() > deadline:
                open_ = {place: (stable[place], end) for place, end in ends.items() if stable[place] != end}
                raise RequestTimedOut(
                    f"for {seconds:g} s transactions are open (last stable offset and end of partitions: {open_}), "
                    f"or groups have not copied everything (and have committed): {behind}"
                )
            time.sleep(0.2)


def _ends(load: Load) -> dict[TopicPartition, int]:
    with Consumer(load.bootstrap, isolation="uncommitted") as consumer:
        return consumer.end_offsets(load.places)


def _behind(load: Load, group: CopyGroup) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed, if records lie behind them."""
    sources = [place for place in load.places if place.topic in SOURCES]
    with Consumer(load.bootstrap, group_id=group.name, auto_commit="transaction") as consumer:
        committed = consumer.committed(sources)
    offsets = {place: 0 if found is None else found.offset for place, found in committed.items()}
    with Consumer(load.bootstrap, isolation="committed") as reader:
        reader.assign(offsets)
        ends, deadline = reader.end_offsets(sources), time.monotonic() + _BLOCK_SECONDS
        while any(reader.position(place) < ends[place] for place in sources):
            if reader.poll(1.0):
                return offsets
            if time.monotonic() > deadline:
                raise RequestTimedOut(f"for {_BLOCK_SECONDS:g} s nothing was read up to {ends}")
    return {}


def read_all(load: Load, seconds: float) -> Reading:
    """Return everything that is committed. Call it when nothing changes any more.

    seconds: how long to wait for the end of transactions that are open.
    """
    found: Reading = []
    with Consumer(load.bootstrap, isolation="committed") as consumer:
        ends = _ends(load)
        consumer.assign(dict.fromkeys(load.places, 0))
        deadline = time.monotonic() + seconds
        while any(consumer.position(place) < ends[place] for place in load.places) and time.monotonic() < deadline:
            found += take(consumer, 1.0)
    return found
