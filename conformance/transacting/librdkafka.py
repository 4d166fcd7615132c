"""librdkafka, by confluent-kafka: the operations of `conformance.transacting.driver`."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from conformance.transacting.driver import serve

_SECONDS: Final = 30.0
_BOOTSTRAP: Final = sys.argv[1]
_producers: dict[str, Producer] = {}
_consumers: dict[str, Consumer] = {}
_metadata: dict[str, object] = {}
Offsets = dict[str, dict[str, int]]


def name_of(error: Exception) -> str:
    """Return the name of librdkafka's error, and what the application may do about it."""
    found = error.args[0] if isinstance(error, KafkaException) else None
    if not isinstance(found, KafkaError):
        return type(error).__name__
    flags = {"fatal": found.fatal(), "retriable": found.retriable(), "abortable": found.txn_requires_abort()}
    return " ".join([found.name(), *(flag for flag, is_set in flags.items() if is_set)])


def producer(name: str, id: str, timeout: int) -> None:
    """Make one."""
    settings = {
        "bootstrap.servers": _BOOTSTRAP,
        "transactional.id": id,
        "transaction.timeout.ms": timeout,
        "log_level": 0,
    }
    _producers[name] = Producer({**settings, "message.timeout.ms": min(timeout, 20000), "linger.ms": 0})


def send(name: str, topic: str, partition: int, values: list[str]) -> list[int]:
    """Send, and return the offsets."""
    heard: list[tuple[KafkaError | None, int]] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        heard.append((error, message.offset()))

    for value in values:
        _producers[name].produce(topic, value, partition=partition, on_delivery=delivered)
    _producers[name].flush(_SECONDS)
    for error, _ in heard:
        if error is not None:
            raise KafkaException(error)
    return [offset for _, offset in heard]


def offsets(name: str, offsets: Offsets, consumer: str = "", metadata: str = "") -> None:
    """Send offsets to the transaction."""
    found = _metadata[metadata] if metadata else _consumers[consumer].consumer_group_metadata()
    _producers[name].send_offsets_to_transaction(_positions(offsets), found, _SECONDS)


def _positions(offsets: Offsets) -> list[TopicPartition]:
    return [TopicPartition(topic, int(at), offset) for topic, one in offsets.items() for at, offset in one.items()]


def keep(consumer: str, **fields: str) -> None:
    """Keep the group metadata as it is now."""
    _metadata[fields["as"]] = _consumers[consumer].consumer_group_metadata()


def close(name: str) -> None:
    """Close a consumer, or forget a producer."""
    if name in _consumers:
        _consumers.pop(name).close()
    else:
        _producers.pop(name)


def _reader(isolation: str) -> Consumer:
    settings = {"bootstrap.servers": _BOOTSTRAP, "group.id": "reader", "isolation.level": isolation, "log_level": 0}
    return Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})


def read(topic: str, partitions: int, isolation: str) -> dict[str, list[str]]:
    """Read each partition to its end."""
    reader = _reader(isolation)
    found: dict[str, list[str]] = {str(index): [] for index in range(partitions)}
    reader.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    left, deadline = partitions, time.monotonic() + _SECONDS
    while left and time.monotonic() < deadline:
        message = reader.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found[str(message.partition())].append((message.value() or b"").decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            left -= 1
        else:
            raise KafkaException(error)
    reader.close()
    return found


def ends(topic: str, partitions: int, isolation: str) -> dict[str, int]:
    """Return the end of each partition: its high watermark, or its last stable offset."""
    reader = _reader(isolation)
    places = [TopicPartition(topic, index, OFFSET_END) for index in range(partitions)]
    found = {str(at): reader.get_watermark_offsets(place, _SECONDS)[1] for at, place in enumerate(places)}
    reader.close()
    return found


def consumer(
    name: str, group: str, protocol: str = "classic", topics: list[str] | None = None, pattern: str = "",
    assignor: str = "", instance: str = "", isolation: str = "read_committed",
) -> None:  # fmt: skip
    """Make one, and subscribe."""
    settings: dict[str, Any] = {
        "bootstrap.servers": _BOOTSTRAP, "group.id": group, "group.protocol": protocol, "isolation.level": isolation,
        "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0,
    }  # fmt: skip
    if protocol == "classic":
        settings["session.timeout.ms"] = 6000
    if assignor:
        settings["group.remote.assignor" if protocol == "consumer" else "partition.assignment.strategy"] = assignor
    if instance:
        settings["group.instance.id"] = instance
    _consumers[name] = Consumer(settings)
    if topics or pattern:
        _consumers[name].subscribe(topics or [f"^{pattern}"])


def poll(name: str, ms: int) -> list[str]:
    """Poll once."""
    message = _consumers[name].poll(ms / 1000)
    if message is None:
        return []
    if message.error() is not None:
        raise KafkaException(message.error())
    return [(message.value() or b"").decode()]


def commit_offsets(name: str, offsets: Offsets) -> None:
    """Commit."""
    for place in _consumers[name].commit(offsets=_positions(offsets), asynchronous=False):
        if place.error is not None:
            raise KafkaException(place.error)


def committed(name: str, topic: str, partitions: int) -> list[int]:
    """Return the committed offsets; a negative number for none."""
    found = _consumers[name].committed([TopicPartition(topic, index) for index in range(partitions)], 6.0)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return [place.offset for place in found]


def describe_group(group: str) -> dict[str, object]:
    """Return its state and its members' partitions."""
    admin = AdminClient({"bootstrap.servers": _BOOTSTRAP, "log_level": 0})
    found = admin.describe_consumer_groups([group], request_timeout=_SECONDS)[group].result(_SECONDS)
    shares = [[f"{p.topic}-{p.partition}" for p in member.assignment.topic_partitions] for member in found.members]
    return {
        "state": found.state.name, "type": found.type.name, "assignor": found.partition_assignor,
        "members": sorted(sorted(share) for share in shares),
    }  # fmt: skip


if __name__ == "__main__":
    serve(
        {
            "producer": producer, "send": send, "offsets": offsets, "metadata": keep, "close": close, "read": read,
            "ends": ends, "consumer": consumer, "poll": poll, "commit_offsets": commit_offsets, "committed": committed,
            "describe_group": describe_group,
            "init": lambda name: _producers[name].init_transactions(_SECONDS),
            "begin": lambda name: _producers[name].begin_transaction(),
            "commit": lambda name: _producers[name].commit_transaction(_SECONDS),
            "abort": lambda name: _producers[name].abort_transaction(_SECONDS),
            "assignment": lambda name: sorted(f"{p.topic}-{p.partition}" for p in _consumers[name].assignment()),
        },
        name_of,
    )  # fmt: skip
