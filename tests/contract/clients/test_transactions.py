"""What every face of the client promises of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    KafkaError,
    ProducerFenced,
    Record,
    TransactionAborted,
    TransactionError,
)
from tests.contract.clients.helpers import eventually, name, numbers, places
from tests.faces import Face, poll_until


def read(face: Face, topic: str, count: int, **options: Any) -> list[int]:
    """Return the numbers of `count` records that committed readers find from the start, sorted."""
    consumer = face.consumer(**{"isolation": "committed", **options})
    consumer.assign(places(topic))
    found = sorted(numbers(poll_until([consumer], lambda records: len(records) >= count)))
    consumer.close()
    return found


def ends(face: Face, topic: str, isolation: str) -> list[int]:
    """Return where reading the partitions ends."""
    consumer = face.consumer(isolation=isolation)
    found = consumer.end_offsets(places(topic))
    consumer.close()
    return [found[place] for place in places(topic)]


def send(producer: Any, topic: str, *values: int) -> None:
    for value in values:
        producer.send(topic, b"%d" % value, partition=value % 2)


def test_committed_and_aborted(face: Face, topic: str) -> None:
    producer = face.producer(transactional_id=name("id"))
    for start in range(0, 60, 20):
        with face.transaction(producer):
            send(producer, topic, *range(start, start + 10))
        with pytest.raises(RuntimeError, match="enough"), face.transaction(producer):
            send(producer, topic, *range(start + 10, start + 20))
            producer.flush()  # so that there is something to abort in the logs
            raise RuntimeError("enough")
    committed = [n for n in range(60) if n % 20 < 10]
    assert read(face, topic, len(committed)) == committed
    assert sorted(set(read(face, topic, 60, isolation="uncommitted"))) == list(range(60))


def test_readers_of_committed_records_wait_for_the_end(face: Face, topic: str) -> None:
    producer = face.producer(transactional_id=name("id"))
    with face.transaction(producer):
        send(producer, topic, 0, 1)
        producer.flush()
        assert ends(face, topic, "committed") == [0, 0]
        assert ends(face, topic, "uncommitted") == [1, 1]
        consumer = face.consumer(isolation="committed")
        assert consumer.offsets_for_times({(topic, 0): 0}) == {(topic, 0): None}
        consumer.assign(places(topic))
        assert consumer.poll(0.3) == []
    assert sorted(numbers(poll_until([consumer], lambda records: len(records) >= 2))) == [0, 1]
    assert eventually(lambda: ends(face, topic, "committed") == [2, 2])  # behind the markers


def test_columns_of_committed_records(face: Face, topic: str) -> None:
    pytest.importorskip("pyarrow")
    producer = face.producer(transactional_id=name("id"))
    with pytest.raises(RuntimeError), face.transaction(producer):
        send(producer, topic, 0, 2)
        producer.flush()
        raise RuntimeError
    with face.transaction(producer):
        send(producer, topic, 4, 6)
    consumer = face.consumer(isolation="committed")
    consumer.assign(places(topic, 1))
    values: list[bytes] = []
    while len(values) < 2:
        for _, columns in consumer.poll_columns(1.0):
            values += columns["value"].to_pylist()
    assert values == [b"4", b"6"]
    assert consumer.position((topic, 0)) >= 5


def test_nothing_is_sent_outside_of_a_transaction(face: Face, topic: str) -> None:
    producer = face.producer(transactional_id=name("id"))
    with pytest.raises(TransactionError, match="no transaction is open"):
        producer.send(topic, b"x")
    producer.init_transactions()
    with pytest.raises(TransactionError, match="no transaction is open"):
        producer.send(topic, b"x")
    with pytest.raises(TransactionError, match="no transaction to end"):
        producer.commit_transaction()
    with face.transaction(producer), pytest.raises(TransactionError, match="can't begin now"):
        producer.begin_transaction()
    with face.transaction(producer):
        send(producer, topic, 1)
    with pytest.raises(TransactionError, match="no transaction is open"):
        producer.send(topic, b"x")
    with pytest.raises(TransactionError, match="transactional_id"):
        face.producer().begin_transaction()


def test_a_transaction_of_nothing(face: Face, topic: str) -> None:
    producer = face.producer(transactional_id=name("id"))
    producer.begin_transaction()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    with face.transaction(producer):
        send(producer, topic, 0)
    assert read(face, topic, 1) == [0]


def test_a_later_producer_fences_an_earlier_one(face: Face, topic: str) -> None:
    shared = name("id")
    first, second = face.producer(transactional_id=shared), face.producer(transactional_id=shared)
    first.begin_transaction()
    send(first, topic, 0, 1)
    first.flush()
    second.init_transactions()  # aborts it
    with pytest.raises(ProducerFenced):
        first.commit_transaction()
    with pytest.raises(ProducerFenced):
        first.begin_transaction()
    with pytest.raises(ProducerFenced):
        first.send(topic, b"x")
    with face.transaction(second):
        send(second, topic, 2, 3)
    assert read(face, topic, 2) == [2, 3]
    first.close()


def test_what_can_t_be_written_aborts(face: Face, topic: str) -> None:
    producer = face.producer(transactional_id=name("id"))
    with pytest.raises(TransactionAborted) as caught, face.transaction(producer):
        send(producer, topic, 0)
        producer.send(topic, bytes(3_000_000), partition=1)
    assert isinstance(caught.value.__cause__, KafkaError)
    assert caught.value.__cause__.code is ErrorCode.MESSAGE_TOO_LARGE
    with face.transaction(producer):
        send(producer, topic, 2, 3)
    assert read(face, topic, 2) == [2, 3]


def transform(record: Record) -> bytes:
    return b"%d" % (int(record.value or b"") + 1000)


def test_offsets_are_committed_with_the_records(face: Face, topic: str, admin: Any, member: Mapping[str, Any]) -> None:
    source, group = name("source"), name("group")
    admin.create_topic(source, 2)
    assert eventually(lambda: len(admin.describe_topic(source).partitions) == 2)
    filler = face.producer()
    send(filler, source, *range(40))
    filler.flush()
    consumer = face.consumer(group_id=group, auto_commit="transaction", max_poll_records=7, **member)
    assert consumer.options.read_committed
    consumer.subscribe([source])
    producer = face.producer(transactional_id=name("id"))
    done, aborted = 0, 0
    while done < 40:
        records = consumer.poll(1.0)
        if not records:
            continue
        try:
            with face.transaction(producer) as transaction:
                for record in records:
                    producer.send(topic, transform(record), partition=record.partition)
                transaction.send_offsets(consumer)
                if aborted < 3:
                    aborted += 1
                    raise RuntimeError("enough")
        except RuntimeError:
            consumer.seek_to_committed()
        else:
            done += len(records)
    assert consumer.committed(places(source)) == {
        place: (20, "", found.leader_epoch)
        for place, found in consumer.committed(places(source)).items()
        if found is not None
    }
    assert read(face, topic, 40) == [n + 1000 for n in range(40)]


def test_offsets_of_a_former_member_abort(face: Face, topic: str, member: Mapping[str, Any]) -> None:
    group = name("group")
    send(filler := face.producer(), topic, 0, 1)
    filler.flush()
    consumer = face.consumer(group_id=group, auto_commit="off", **member)
    consumer.subscribe([topic])
    poll_until([consumer], lambda records: len(records) >= 2)
    offsets, metadata = consumer.offsets_to_send()
    consumer.close()
    producer = face.producer(transactional_id=name("id"))
    with pytest.raises(TransactionAborted) as caught, face.transaction(producer) as transaction:
        transaction.send_offsets(offsets, metadata)
    assert isinstance(caught.value.__cause__, KafkaError)
    assert caught.value.__cause__.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


def test_offsets_of_a_consumer_that_commits_itself(face: Face) -> None:
    consumer = face.consumer(group_id=name("group"))
    producer = face.producer(transactional_id=name("id"))
    with pytest.raises(ValueError, match="commits by itself"), face.transaction(producer) as transaction:
        transaction.send_offsets(consumer)


def test_closing_aborts(face: Face, topic: str) -> None:
    producer = face.producer(transactional_id=name("id"))
    producer.begin_transaction()
    send(producer, topic, 0, 1)
    producer.flush()
    producer.close()
    assert eventually(lambda: ends(face, topic, "committed") == [2, 2])
    consumer = face.consumer(isolation="committed")
    consumer.assign(places(topic))
    assert consumer.poll(0.5) == []
