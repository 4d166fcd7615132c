"""The memory of partitions that nobody uses, which most of a broker with very many are."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from pylogd.broker.log import producers, reading
from pylogd.broker.log.append.header_check import REFUSE_ALL
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, batch


def hosted_bytes(directory: Path, partitions: int, written: bool) -> int:
    """Return the memory of partitions that were started and maintained once, without that of the metadata."""
    directory.mkdir()
    parts = Parts(directory)
    parts.create("t", partitions)
    if written:
        for index in range(partitions):
            parts.append("t", b"value", partition=index)
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    tracemalloc.start()
    try:
        parts.boot()
        result_of(parts.replica_parts.start())
        parts.logs.tick()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(log.at_rest for log in parts.logs.logs.values())
    assert len(parts.partitions.by_name) == partitions
    parts.close()
    return size


@pytest.mark.parametrize(("written", "most"), [(False, 1800), (True, 2300)])
def test_a_partition_that_nobody_uses_takes_little(tmp_path: Path, written: bool, most: int) -> None:
    """Of which 350 bytes are the log, 180 its segment, 250 the partition, and 400 the tables that have them."""
    few, many = (hosted_bytes(tmp_path / str(count), count, written) for count in (50, 550))
    assert (many - few) / 500 < most


def test_a_log_that_was_never_written_has_no_lock_and_no_part_in_maintenance(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.create("t", 2)
    parts.append("t", b"value", partition=1)
    parts.logs.tick()
    new, written = (parts.partitions.by_name["t", index].log for index in range(2))
    assert (new._lock, new._maintenance, new._writing, new.settled) == (None, None, None, None)
    assert written._lock is not None and written.settled is not None
    assert (new.lock, new.maintenance, new.writing) == (new.lock, new.maintenance, new.writing)
    parts.close()


def use_and_delete(parts: Parts, name: str) -> None:
    parts.create(name)
    parts.call(MetadataRequest([MetadataRequestTopic(name=name)]))
    records = batch(b"value", producer_id=7, producer_epoch=0, base_sequence=0, now_ms=parts.now_ms())
    data = TopicProduceData(name, bytes(16), [PartitionProduceData(0, records)])
    (answer,) = parts.call(ProduceRequest(acks=1, topic_data=[data]), 9).responses
    assert not answer.partition_responses[0].error_code
    assert parts.call(FetchRequest(topics=[FetchTopic(name, bytes(16), [FetchPartition(0)])]), 11).responses
    result_of(parts.topic_admin.delete_topic(name))


def objects() -> Counter[str]:
    """Return how many objects there are of each class of pylogd, and how many containers."""
    gc.collect()
    classes = [type(one) for one in gc.get_objects()]
    found = Counter(repr(one) for one in classes if str(one.__module__).startswith("pylogd."))
    return found + Counter(one.__name__ for one in classes if one in (dict, list, set, tuple))


def test_topics_that_were_used_and_deleted_leave_no_object(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    counts = []
    for run in range(3):
        for number in range(30):
            use_and_delete(parts, f"t{run}-{number}")
        parts.time.advance(120)
        parts.logs.tick()
        counts.append(objects())
    _, before, after = counts
    grown = {name: after[name] - before[name] for name in after if after[name] > before[name]}
    left = {name: more for name, more in grown.items() if "pylogd." in name or more > 20}
    assert not left
    parts.close()


def test_what_logs_share_while_they_are_empty_stays_empty(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.create("t", 2)
    for index in range(2):
        log = parts.partitions.by_name["t", index].log
        assert log.producers.by_id is producers._NO_PRODUCERS
        log.producers.wrote(7 + index, 0, 0, 0, 0, 1)
        log.producers.note_transactional(7 + index, 0)
        for _ in range(3):
            parts.append("t", b"v" * 1000, partition=index)
        assert log.read(0, 1100) and log.read(1, 1100)
        assert list(log.producers.by_id) == [7 + index]
        assert len(log.producers.unstable) == 1
    assert not producers._NO_PRODUCERS and not producers._NO_GUARDS and not len(producers._NO_TRANSACTIONS)
    assert not reading._NO_NEXT and not reading._NO_RANGES and not reading._NO_SLICES
    assert REFUSE_ALL.segment_bytes == REFUSE_ALL.own_segment_bytes == -1 and REFUSE_ALL.compiled is None
    parts.close()
