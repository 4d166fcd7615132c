"""Records in the page cache are sent by sendfile, and none of their bytes pass through Python.

A real broker counts the bytes sent by `os.sendfile`, written to sockets from memory, and read from files into memory.
It writes the counts when it ends, and they have to match the bytes that the client received exactly.
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
from pylogd.wire.fast.known_fetch import END
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
    """Bytes by each way, and the largest size that one call of sendfile was asked for."""

    sendfile: int
    written: int
    read: int
    largest_call: int


@pytest.fixture
def tapped(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[BrokerProcess, Callable[[], Taps]]:
    """A broker that counts, and a function that stops it and returns the counts."""
    where = tmp_path / "taps.json"
    isolated = [] if FROM_CHECKOUT else ["-P"]  # imports the installed package, not this checkout
    monkeypatch.setattr("pylogd.local.broker.pylogd_command", lambda: [sys.executable, *isolated, "-c", TAPS])
    monkeypatch.setenv("PYLOGD_TEST_TAPS", str(where))
    broker = start_broker(settings={"sendfile.max.bytes": str(MIB // 4)})

    def stop_and_read() -> Taps:
        assert broker.stop() == 0
        return Taps(**json.loads(where.read_text()))

    return broker, stop_and_read


def fill(client: RawClient, topic: str, *, compression: int = 0) -> int:
    """Produce 50 MB of incompressible records. Return the bytes of their batches."""
    create_topic(client, topic)
    size = 0
    for number in range(BATCHES):
        value = random.Random(number).randbytes(BATCH_BYTES)
        batch = encode_batch([NewRecord(b"key", value, time.time_ns() // 1_000_000)], compression=compression)
        size += len(batch)
        assert produce(client, topic, [batch])[0].error_code == 0
    return size


def fetch_all(client: RawClient, topic: str, max_bytes: int) -> tuple[int, int]:
    """Read the topic in fetches of at most `max_bytes`. Return the bytes of records and the number of replies."""
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
    assert 0 <= taps.sendfile - fetched <= len(END) * replies, "every record byte, and some zeros that end replies"
    assert taps.written == received - taps.sendfile, "the rest was written from memory"
    assert heads / replies < 200, "and consists of response headers"
    assert taps.read < 0.02 * fetched, "only batch headers are read, to look up offsets"
    assert taps.largest_call <= MIB // 4, "one call is limited, so that other connections get a turn"


def test_batches_are_sent_as_they_were_received(tapped: tuple[BrokerProcess, Callable[[], Taps]]) -> None:
    """This holds for compressed batches too, which the broker does not decompress."""
    broker, stop_and_read = tapped
    with RawClient(broker.address) as client:
        size = fill(client, "packed", compression=4)
        fetched, replies = fetch_all(client, "packed", 256 * MIB)
    taps = stop_and_read()
    assert fetched == size
    assert 0 <= taps.sendfile - fetched <= len(END) * replies


def test_cold_records_are_read_ahead_and_sent_by_sendfile(
    tapped: tuple[BrokerProcess, Callable[[], Taps]],
) -> None:
    """The kernel is asked to drop the file from the page cache. The broker then reads it ahead in a thread."""
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


def test_a_segment_truncated_by_others_aborts_the_connection(start_broker: Callable[..., BrokerProcess]) -> None:
    """The reply's length has been sent already, so that the connection is aborted and the reason logged."""
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


def test_replies_sent_together_keep_their_order(tapped: tuple[BrokerProcess, Callable[[], Taps]]) -> None:
    """Headers and file slices of many small replies are sent in order, each byte once."""
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
            assert records[21:] == batches[count % 50][21:], "a batch is sent as received, from its CRC on"
            fetched += len(records)
        received = client.received
    taps = stop_and_read()
    assert taps.sendfile + taps.written == received
    assert taps.sendfile in (0, fetched)
