"""Records leave by sendfile: no byte of them passes through Python when they are in the page cache.

A real broker runs with three taps: on `os.sendfile`, on what sockets are given to send from memory, and on what is read
from files into memory. Their counts, written at its end, have to add up to what the client received, to the byte.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.records import NewRecord, encode_batch, iter_batches
from tests.conftest import FROM_CHECKOUT
from tests.rawclient import ConnectionClosed, RawClient, check_serves, create_topic, produce

TAPS = """
import atexit, json, os, socket

count = dict(sendfile=0, written=0, read=0, largest_call=0)
file_calls = {name: getattr(os, name) for name in ("sendfile", "pread", "preadv")}
send = socket.socket.send

def sendfile(*arguments):
    sent = file_calls["sendfile"](*arguments)
    count["sendfile"] += sent
    count["largest_call"] = max(count["largest_call"], arguments[3])
    return sent

def pread(*arguments):
    data = file_calls["pread"](*arguments)
    count["read"] += len(data)
    return data

def preadv(*arguments):
    got = file_calls["preadv"](*arguments)
    count["read"] += got
    return got

def send_on_socket(self, *arguments):
    sent = send(self, *arguments)
    count["written"] += sent
    return sent

os.sendfile, os.pread, os.preadv = sendfile, pread, preadv
socket.socket.send = send_on_socket
atexit.register(lambda: open(os.environ["PYLOGD_TEST_TAPS"], "w").write(json.dumps(count)))

from pylogd.cli.main import main
main()
"""
VERSION = 12
BATCHES = 64
BATCH_BYTES = 800_000
MIB = 1 << 20


@dataclass
class Taps:
    """Bytes that went through each tap, and the most that one sendfile was asked for."""

    sendfile: int
    written: int
    read: int
    largest_call: int


@pytest.fixture
def tapped(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[BrokerProcess, Callable[[], Taps]]:
    """A broker with taps, and what stops it and reads them."""
    where = tmp_path / "taps.json"
    isolated = [] if FROM_CHECKOUT else ["-P"]  # the installed package, not the checkout that we stand in
    monkeypatch.setattr("pylogd.local.broker.pylogd_command", lambda: [sys.executable, *isolated, "-c", TAPS])
    monkeypatch.setenv("PYLOGD_TEST_TAPS", str(where))
    broker = start_broker(settings={"sendfile.max.bytes": str(MIB // 4)})

    def stop_and_read() -> Taps:
        assert broker.stop() == 0
        return Taps(**json.loads(where.read_text()))

    return broker, stop_and_read


def fill(client: RawClient, topic: str, *, compression: int = 0) -> int:
    """Produce 50 MB, which no codec makes smaller; how many bytes of batches they are."""
    create_topic(client, topic)
    size = 0
    for number in range(BATCHES):
        value = random.Random(number).randbytes(BATCH_BYTES)
        batch = encode_batch([NewRecord(b"key", value, time.time_ns() // 1_000_000)], compression=compression)
        size += len(batch)
        assert produce(client, topic, [batch])[0].error_code == 0
    return size


def fetch_all(client: RawClient, topic: str, max_bytes: int) -> tuple[int, int]:
    """Read the topic in fetches of at most `max_bytes`; how many bytes of records came, in how many replies."""
    offset = size = replies = 0
    while offset < BATCHES:
        wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(max_wait_ms=0, max_bytes=max_bytes, topics=[FetchTopic(topic, partitions=[wanted])])
        partition = client.request(request, VERSION).responses[0].partitions[0]
        assert partition.error_code == 0
        replies += 1
        size += len(partition.records)
        for header, _ in iter_batches(partition.records, allow_partial=True):
            assert header.base_offset == offset
            offset = header.next_offset
    return size, replies


@pytest.mark.parametrize("max_bytes", [256 * MIB, 5 * MIB, MIB], ids=["all at once", "5 MiB", "1 MiB"])
def test_no_record_byte_passes_through_python(tapped: tuple[BrokerProcess, Callable[[], Taps]], max_bytes: int) -> None:
    broker, stop_and_read = tapped
    with RawClient(broker.address) as client:
        size = fill(client, "warm")
        before = client.received
        fetched, replies = fetch_all(client, "warm", max_bytes)
        heads = client.received - before - fetched
        received = client.received
    taps = stop_and_read()
    assert fetched >= size
    assert taps.sendfile == fetched, "every record byte, and nothing else, went by sendfile"
    assert taps.written == received - fetched, "the rest was written"
    assert heads / replies < 200, "and the rest is heads"
    assert taps.read < 0.02 * fetched, "reading headers, to find a place, is all that was read"
    assert taps.largest_call <= MIB // 4, "one call is capped, so that others have their turn"


def test_batches_leave_as_they_came(tapped: tuple[BrokerProcess, Callable[[], Taps]]) -> None:
    """Compressed ones too: the broker opens none of them."""
    broker, stop_and_read = tapped
    with RawClient(broker.address) as client:
        size = fill(client, "packed", compression=4)
        fetched, _ = fetch_all(client, "packed", 256 * MIB)
    taps = stop_and_read()
    assert fetched == size
    assert taps.sendfile == fetched


def test_cold_records_are_read_ahead_and_leave_by_sendfile_too(
    tapped: tuple[BrokerProcess, Callable[[], Taps]],
) -> None:
    """The page cache is told to drop the file; where it does, the broker reads it in a thread and sends it then."""
    broker, stop_and_read = tapped
    with RawClient(broker.address) as client:
        size = fill(client, "cold")
        for segment in (broker.data / "cold-0").glob("*.log"):
            with segment.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        fetched, _ = fetch_all(client, "cold", 256 * MIB)
    taps = stop_and_read()
    assert fetched == size
    assert taps.sendfile == fetched


def test_a_file_that_was_cut_behind_the_brokers_back(start_broker: Callable[..., BrokerProcess]) -> None:
    """The reply has been promised more bytes than there are: the connection is aborted, and the log says why."""
    broker = start_broker()
    with RawClient(broker.address) as client:
        create_topic(client, "cut")
        for _ in range(3):
            produce(client, "cut", [encode_batch([NewRecord(None, bytes(BATCH_BYTES), time.time_ns() // 1_000_000)])])
        (segment,) = (broker.data / "cut-0").glob("*.log")
        os.truncate(segment, BATCH_BYTES)
        wanted = FetchPartition(0, fetch_offset=0, partition_max_bytes=256 * MIB)
        with pytest.raises(ConnectionClosed):
            client.request(FetchRequest(max_wait_ms=0, topics=[FetchTopic("cut", partitions=[wanted])]), VERSION)
    assert "a segment file ends at byte" in broker.log()
    check_serves(broker.address)


def test_many_small_fetches_on_one_connection(tapped: tuple[BrokerProcess, Callable[[], Taps]]) -> None:
    """The heads and slices of replies that wait together leave in their order, each byte once."""
    broker, stop_and_read = tapped
    with RawClient(broker.address) as client:
        create_topic(client, "small")
        batches = [encode_batch([NewRecord(None, b"%d" % number, time.time_ns() // 1_000_000)]) for number in range(50)]
        for batch in batches:
            produce(client, "small", [batch])
        numbers = []
        for count in range(1000):
            wanted = FetchPartition(0, fetch_offset=count % 50, partition_max_bytes=1)
            topic = FetchTopic("small", partitions=[wanted])
            numbers.append(client.send_request(FetchRequest(max_wait_ms=0, max_bytes=1, topics=[topic]), VERSION))
        fetched = 0
        for count, number in enumerate(numbers):
            records = bytes(client.response(1, VERSION, number).responses[0].partitions[0].records)
            assert records[21:] == batches[count % 50][21:], "a batch leaves as it came, from its CRC on"
            fetched += len(records)
        received = client.received
    taps = stop_and_read()
    assert taps.sendfile + taps.written == received
    assert taps.sendfile in (0, fetched)
