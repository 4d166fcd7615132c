"""kafka-python: the operations of `conformance.transacting.driver`. It does not have the newer groups."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from conformance.transacting.driver import Lacks, serve

_SECONDS: Final = 30.0
_BOOTSTRAP: Final = sys.argv[1]
_producers: dict[str, Any] = {}
_consumers: dict[str, Any] = {}
_metadata: dict[str, object] = {}
Offsets = dict[str, dict[str, int]]


def name_of(error: Exception) -> str:
    """Return the classes of an exception and of its causes."""
    names = []
    found: BaseException | None = error
    while found is not None:
        names.append(type(found).__name__)
        found = found.__cause__
    return " < ".join(names)


def producer(name: str, id: str, timeout: int) -> None:
    """Make one."""
    _producers[name] = KafkaProducer(
        bootstrap_servers=_BOOTSTRAP, transactional_id=id, transaction_timeout_ms=timeout, linger_ms=0,
        max_block_ms=30000, delivery_timeout_ms=30000, request_timeout_ms=20000,
    )  # fmt: skip


def send(name: str, topic: str, partition: int, values: list[str]) -> list[int]:
    """Send, and return the offsets."""
    futures = [_producers[name].send(topic, value.encode(), partition=partition) for value in values]
    _producers[name].flush(_SECONDS)
    return [future.get(_SECONDS).offset for future in futures]


def offsets(name: str, offsets: Offsets, consumer: str = "", metadata: str = "") -> None:
    """Send offsets to the transaction."""
    found = _metadata[metadata] if metadata else _consumers[consumer].group_metadata()
    _producers[name].send_offsets_to_transaction(_positions(offsets), found)


def _positions(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, int(at)): OffsetAndMetadata(offset)
        for topic, one in offsets.items()
        for at, offset in one.items()
    }


def keep(consumer: str, **fields: str) -> None:
    """Keep the group metadata as it is now."""
    _metadata[fields["as"]] = _consumers[consumer].group_metadata()


def close(name: str) -> None:
    """Close a consumer or a producer."""
    if name in _consumers:
        _consumers.pop(name).close()
    else:
        _producers.pop(name).close(timeout=1)


def _reader(isolation: str) -> Any:
    return KafkaConsumer(bootstrap_servers=_BOOTSTRAP, isolation_level=isolation, auto_offset_reset="earliest")


def read(topic: str, partitions: int, isolation: str) -> dict[str, list[str]]:
    """Read each partition to its end."""
    reader = _reader(isolation)
    places = [TopicPartition(topic, index) for index in range(partitions)]
    limits = reader.end_offsets(places)
    reader.assign(places)
    reader.seek_to_beginning()
    found: dict[str, list[str]] = {str(index): [] for index in range(partitions)}
    deadline = time.monotonic() + _SECONDS
    while any(reader.position(place) < limits[place] for place in places) and time.monotonic() < deadline:
        for place, records in reader.poll(timeout_ms=500).items():
            found[str(place.partition)] += [record.value.decode() for record in records]
    reader.close()
    return found


def ends(topic: str, partitions: int, isolation: str) -> dict[str, int]:
    """Return the end of each partition: its high watermark, or its last stable offset."""
    reader = _reader(isolation)
    found = reader.end_offsets([TopicPartition(topic, index) for index in range(partitions)])
    reader.close()
    return {str(place.partition): offset for place, offset in sorted(found.items())}


def consumer(
    name: str, group: str, protocol: str = "classic", topics: list[str] | None = None, pattern: str = "",
    isolation: str = "read_committed",
) -> None:  # fmt: skip
    """Make one, and subscribe."""
    if protocol != "classic":
        raise Lacks
    _consumers[name] = KafkaConsumer(
        bootstrap_servers=_BOOTSTRAP, group_id=group, isolation_level=isolation, enable_auto_commit=False,
        auto_offset_reset="earliest", session_timeout_ms=6000, heartbeat_interval_ms=1000,
    )  # fmt: skip
    if topics or pattern:
        _consumers[name].subscribe(topics=topics or (), pattern=pattern or None)


def poll(name: str, ms: int) -> list[str]:
    """Poll once."""
    return [record.value.decode() for found in _consumers[name].poll(timeout_ms=ms).values() for record in found]


def committed(name: str, topic: str, partitions: int) -> list[int | None]:
    """Return the committed offsets."""
    reader = _consumers[name]
    return [reader.committed(TopicPartition(topic, index), timeout_ms=6000) for index in range(partitions)]


def describe_transaction(id: str) -> object:
    """Return its state, without ids."""
    admin = KafkaAdminClient(bootstrap_servers=_BOOTSTRAP)
    try:
        found = admin.describe_transactions([id])
    finally:
        admin.close()
    return _without_ids(found)


def _without_ids(found: Any) -> object:
    """Return an answer without what is random or of this moment."""
    if isinstance(found, dict):
        random = {"producer_id", "transaction_start_time_ms", "start_time_ms", "last_timestamp"}
        return {str(key): _without_ids(value) for key, value in sorted(found.items(), key=str) if key not in random}
    if isinstance(found, list | tuple | set):
        return [_without_ids(one) for one in found]
    return str(found)


if __name__ == "__main__":
    serve(
        {
            "producer": producer, "send": send, "offsets": offsets, "metadata": keep, "close": close, "read": read,
            "ends": ends, "consumer": consumer, "poll": poll, "committed": committed,
            "describe_transaction": describe_transaction,
            "init": lambda name: _producers[name].init_transactions(),
            "begin": lambda name: _producers[name].begin_transaction(),
            "commit": lambda name: _producers[name].commit_transaction(),
            "abort": lambda name: _producers[name].abort_transaction(),
            "commit_offsets": lambda name, offsets: _consumers[name].commit(_positions(offsets)),
            "assignment": lambda name: sorted(f"{p.topic}-{p.partition}" for p in _consumers[name].assignment()),
        },
        name_of,
    )  # fmt: skip
