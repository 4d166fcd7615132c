"""Copiers with librdkafka (confluent-kafka): members of a group with the classic protocol, or with that of KIP-848.

Strategy: as `workload`'s copiers, in the words of this client. Messages are collected one by one, since a rebalance
between two of them takes partitions away: then nothing of what was collected is copied, and the member leaves and comes
back as a new one, which reads it again. Now and then it does so without a reason.

Each member is a process of its own (`member`): when brokers fail, librdkafka 2.16 sometimes waits for ever for its own
locks, and Python's binding keeps the interpreter meanwhile.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.transactions_check import member
from tests.transactions_check.history import Action, Outcome, Value
from tests.transactions_check.member import Reports
from tests.transactions_check.workload import CLASSIC, CONSUMER, SOURCES, TRANSACTION_TIMEOUT, CopyGroup, Load

_MOST_RECORDS = 20
_POLL_SECONDS = 0.2
_WAIT_SECONDS = 30.0
#: A turn takes at most a poll, two calls that wait, and the close of a consumer. What takes longer is stuck.
_STUCK_SECONDS = 100.0


class ConfluentCopier:
    """One member of a group, and the producer of its copies."""

    def __init__(self, load: Reports, name: str, rng: random.Random, group: CopyGroup) -> None:
        self.load, self.name, self.rng, self.group = load, name, rng, group
        self.number = 0
        self.rebalanced = False
        common: dict[str, Any] = {
            "bootstrap.servers": load.bootstrap, "log_level": 0, "socket.timeout.ms": 6000,
            "topic.metadata.refresh.interval.ms": 2000, "reconnect.backoff.max.ms": 1000,
        }  # fmt: skip
        protocol = {"session.timeout.ms": 10_000} if group is CLASSIC else {}
        self._reads: dict[str, Any] = {
            **common, **protocol, "group.id": group.name, "group.protocol": group.name, "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "isolation.level": "read_committed",
        }  # fmt: skip
        timeout_ms = int(TRANSACTION_TIMEOUT * 1000)
        self._writes: dict[str, Any] = {
            **common, "transactional.id": f"check-{name}", "transaction.timeout.ms": timeout_ms, "linger.ms": 0,
            "message.timeout.ms": timeout_ms,
        }  # fmt: skip
        self._consumer: Consumer | None = None
        self._producers: list[Producer] = []

    @property
    def producer(self) -> Producer:
        """The producer of the copies, once the clients are open."""
        return self._producers[0]

    def open(self) -> None:
        """Begin with new clients: the transaction of the predecessor is ended first."""
        self._producers.clear()  # which waits for its threads
        self._producers.append(Producer(self._writes))
        self.producer.init_transactions(_WAIT_SECONDS)
        self._consumer = Consumer(self._reads)
        self._consumer.subscribe(list(SOURCES), on_assign=self._note, on_revoke=self._note, on_lost=self._note)

    def _note(self, *_: object) -> None:
        self.rebalanced = True

    def close(self) -> None:
        """Leave the group."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def end(self) -> None:
        """Leave the group, and free the producer: what it left open ends when its timeout is over."""
        self.close()
        self._producers.clear()

    def turn(self) -> None:
        """Copy what comes in a short time. Raises KafkaException if this cannot go on with these clients."""
        if self._consumer is None:
            self.open()
        assert self._consumer is not None
        messages = self._collect(self._consumer)
        if messages is None:
            self.close()
        elif messages:
            self._copy(self._consumer, messages)

    def _collect(self, consumer: Consumer) -> list[Message] | None:
        """Return messages, None if they must not be copied: a rebalance came behind some of them."""
        messages: list[Message] = []
        while len(messages) < _MOST_RECORDS:
            self.rebalanced = False
            message = consumer.poll(0 if messages else _POLL_SECONDS)
            if self.rebalanced and messages:
                return None
            if message is None:
                break
            if message.error() is None:
                messages.append(message)
        return messages

    def _go_back(self, consumer: Consumer) -> None:
        """Go on behind what is committed."""
        partitions = consumer.assignment()
        for partition in consumer.committed(partitions, _WAIT_SECONDS) if partitions else ():
            consumer.seek(TopicPartition(partition.topic, partition.partition, max(partition.offset, 0)))

    def _copy(self, consumer: Consumer, messages: list[Message]) -> None:
        load, history = self.load, self.load.history
        self.number += 1
        transaction = f"{self.name}-{self.number}"
        history.ended(transaction, Outcome.ABORTED)
        causes = [Value.decode(_bytes(message)) for message in messages]
        history.step(transaction, Action.READ, read={cause.transaction for cause in causes})
        try:
            self.producer.begin_transaction()
            for number, (cause, message) in enumerate(zip(causes, messages, strict=True)):
                value = Value(transaction, number, len(causes), cause.name)
                history.step(transaction, Action.SEND, number)
                (target,) = self.group.targets
                self.producer.produce(target, value.encode(), partition=message.partition() or 0)
            metadata = consumer.consumer_group_metadata()
            self.producer.send_offsets_to_transaction(_behind(messages), metadata, _WAIT_SECONDS)
            if self.rng.random() < 0.1:
                self.producer.abort_transaction(_WAIT_SECONDS)
                self._go_back(consumer)
                return
            history.ended(transaction, Outcome.UNKNOWN)
            history.step(transaction, Action.COMMIT)
            self._commit()
            history.step(transaction, Action.COMMITTED)
            history.ended(transaction, Outcome.COMMITTED)
        except KafkaException as error:
            if not _error(error).txn_requires_abort():
                raise
            load.count(_name(error))
            self.producer.abort_transaction(_WAIT_SECONDS)
            history.ended(transaction, Outcome.ABORTED)
            self._go_back(consumer)

    def _commit(self) -> None:
        """Commit; again if the client says that this is to be asked again."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                self.producer.commit_transaction(_WAIT_SECONDS)
            except KafkaException as error:
                if not _error(error).retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


def _behind(messages: Iterable[Message]) -> list[TopicPartition]:
    """Return the offsets to commit: behind the last message of each partition."""
    offsets: dict[tuple[str, int], int] = {}
    for message in messages:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None and partition is not None and offset is not None
        offsets[topic, partition] = offset + 1
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]


def _bytes(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def _error(error: KafkaException) -> KafkaError:
    found: KafkaError = error.args[0]
    return found


def _name(error: KafkaException) -> str:
    return f"librdkafka {_error(error).name()}"


def _work(load: Reports, name: str, rng: random.Random, group: CopyGroup, number: int) -> None:
    """Copy all sources until everything is copied. number: of the last transaction of this name."""
    copier = ConfluentCopier(load, name, rng, group)
    copier.number = number
    while not load.draining.is_set():
        load.tell(alive=True)
        try:
            copier.turn()
            if rng.random() < 0.02 and not load.stopping.is_set():
                copier.close()
        except KafkaException as error:
            load.count(_name(error))
            copier.close()
            time.sleep(0.2)  # what cannot be reached is asked again at once otherwise
    copier.end()


def main(bootstrap: str, name: str, seed: str, group: str, number: str) -> None:
    """Be the process of one member, as `member.copy_in` starts it."""
    load = Reports(bootstrap)
    load.listen()
    _work(load, name, random.Random(seed), CLASSIC if group == CLASSIC.name else CONSUMER, int(number))


def copy_in(group: CopyGroup) -> Callable[[Load, str, random.Random], None]:
    """Return the work of a member of a group, in processes of its own."""
    return member.copy_in(__name__, group.name, _STUCK_SECONDS)


copy_classic, copy_consumer = copy_in(CLASSIC), copy_in(CONSUMER)

if __name__ == "__main__":
    main(*sys.argv[1:])
