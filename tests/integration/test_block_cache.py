"""A real broker with a block cache: what is sent from it, what is read from files, and what is logged of that."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from pylogd.broker.cache import page_dropper
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.records import NewRecord, encode_batch
from tests.fakes.page_cache import cached_share, can_be_dropped
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic, produce, wait_until

VERSION = 12
MIB = 1 << 20
BATCHES = 100
VALUE_BYTES = 100_000
CACHED = 4 * MIB


def fill(client: RawClient, topic: str) -> list[bytes]:
    """Produce 10 MB by batches of one record; return their values."""
    create_topic(client, topic)
    values = [random.Random(number).randbytes(VALUE_BYTES) for number in range(BATCHES)]
    for value in values:
        batch = encode_batch([NewRecord(None, value, time.time_ns() // 1_000_000)])
        assert produce(client, topic, [batch])[0].error_code == 0
    return values


def fetch(client: RawClient, topic: str, begin: int, end: int) -> bytes:
    """Return the bytes of the batches from one offset to another, fetched by 1 MiB."""
    found = b""
    offset = begin
    while offset < end:
        wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=MIB)
        request = FetchRequest(max_wait_ms=0, max_bytes=MIB, topics=[FetchTopic(topic, partitions=[wanted])])
        partition = client.request(request, VERSION).responses[0].partitions[0]
        assert partition.error_code == 0
        records = bytes(partition.records)
        offset += max(len(records) // VALUE_BYTES, 1)
        found += records
    return found


def counters(broker: BrokerProcess) -> tuple[float, float]:
    """Stop the broker; return the MiB that it says were sent from the cache, and from files."""
    assert broker.stop() == 0
    found = re.search(r"block cache, ([\d.]+) MiB from it and ([\d.]+) MiB from files", broker.log())
    assert found is not None, broker.log()
    return float(found[1]), float(found[2])


def test_the_last_bytes_come_from_the_cache_and_the_first_from_the_file(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"log.block.cache.bytes": str(CACHED)})
    with RawClient(broker.address) as client:
        values = fill(client, "t")
        last = BATCHES - 30
        tail = fetch(client, "t", last, BATCHES)
        old = fetch(client, "t", 0, 30)
    for found, expected in ((tail, values[last:]), (old, values[:30])):
        assert all(value in found for value in expected)
    held, read = counters(broker)
    assert held == pytest.approx(len(tail) / MIB, abs=0.06)
    assert read == pytest.approx(len(old) / MIB, abs=0.06)


def test_a_restarted_broker_reads_from_files_what_it_appended_before(start_broker: StartBroker) -> None:
    settings = {"log.block.cache.bytes": str(CACHED)}
    broker = start_broker(settings=settings)
    with RawClient(broker.address) as client:
        values = fill(client, "t")
    broker.stop()
    broker = start_broker(settings=settings)
    with RawClient(broker.address) as client:
        found = fetch(client, "t", BATCHES - 10, BATCHES)
    assert all(value in found for value in values[-10:])
    assert counters(broker)[0] == 0


@pytest.mark.skipif(not page_dropper.AVAILABLE, reason="there is no sync_file_range on this system")
def test_what_producers_append_does_not_stay_in_the_page_cache(start_broker: StartBroker, tmp_path: Path) -> None:
    if not can_be_dropped(tmp_path / "probe"):
        pytest.skip("this file system keeps its pages")
    broker = start_broker(settings={"log.block.cache.bytes": str(CACHED)})
    with RawClient(broker.address) as client:
        fill(client, "t")
        (segment,) = (broker.data / "t-0").glob("*.log")
        wait_until(lambda: cached_share(segment) < 0.1, "the pages are dropped")
