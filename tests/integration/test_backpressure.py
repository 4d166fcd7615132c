"""Clients that send without reading, read slowly, or disconnect in the middle of a request or a reply.

The broker's memory stays bounded, replies are complete and in order, and disconnected clients leave nothing behind.

Memory is measured as the growth of the process's peak resident set, in MiB. No test measures time.
"""

from __future__ import annotations

import resource
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.records import HEADER, NewRecord, encode_batch
from tests.rawclient import (
    RawClient,
    check_serves,
    connections,
    create_topic,
    end_offset,
    memory,
    open_files,
    produce,
    reset_peak,
    wait_until,
    wait_until_at_rest,
)

FRAMES = 1000
SMALL_BUFFER = 1 << 14  # bytes that the kernel buffers for a client that does not read
MEMORY_CAP = 16.0
PARTITIONS = 1000
BATCH_BYTES = 100_000
LONG_POLL_MS = 600_000
METADATA_VERSION, FETCH_VERSION = 9, 11


@pytest.fixture(scope="module")
def filled(own: BrokerProcess) -> str:
    """A topic with 100 batches of 100 KB."""
    with RawClient(own.address) as client:
        create_topic(client, "filled")
        for number in range(100):
            (answer,) = produce(client, "filled", [batch(number, BATCH_BYTES)])
            assert answer.error_code == 0
    return "filled"


def batch(number: int, size: int) -> bytes:
    """A batch of one record of about `size` bytes, filled with its number."""
    value = struct.pack(">i", number) * (size // 4)
    return encode_batch([NewRecord(None, value, time.time_ns() // 1_000_000)])


def fetch(
    topic: str, offset: int, *, partition: int = 0, max_bytes: int = BATCH_BYTES, wait_ms: int = 0, min_bytes: int = 1
) -> FetchRequest:
    """Fetch one partition without a session."""
    wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=[FetchTopic(topic, partitions=[wanted])]
    )


def records_of(reply: object) -> memoryview:
    """Return the records in the reply to `fetch`."""
    partition = reply.responses[0].partitions[0]  # type: ignore[attr-defined]
    assert partition.error_code == 0
    return memoryview(partition.records)


# Senders that don't read ----------------------------------------------------------------------------------------------


def test_unread_metadata_replies_cost_bounded_memory(start_broker: Callable[..., BrokerProcess]) -> None:
    """1,000 replies of 26 KB, 26 MB in all, are not buffered by the broker."""
    broker = start_broker()
    with RawClient(broker.address) as other:
        create_topic(other, "wide", PARTITIONS)
    with RawClient(broker.address, receive_buffer=SMALL_BUFFER) as client:
        size = len(b"".join(ask_metadata(client)))
        assert size * FRAMES > 1.2 * MEMORY_CAP * (1 << 20), "too small to prove anything"
        wait_until_at_rest(broker.pid)
        reset_peak(broker.pid)
        before = memory(broker.pid)
        numbers = [client.send_request(MetadataRequest(None), METADATA_VERSION) for _ in range(FRAMES)]
        wait_until_at_rest(broker.pid)
        assert memory(broker.pid, "VmHWM") - before < MEMORY_CAP
        check_serves(broker.address)
        for number in numbers:
            data = client.read_frame()
            assert struct.unpack_from(">i", data) == (number,)
            assert len(data) == size
    assert memory(broker.pid, "VmHWM") - before < MEMORY_CAP


def ask_metadata(client: RawClient) -> list[bytes]:
    client.send_request(MetadataRequest(None), METADATA_VERSION)
    return [client.read_frame()]


def test_unread_fetch_replies_cost_bounded_memory(own: BrokerProcess, filled: str) -> None:
    """Ask for 100 MB of records at once, then read them all: they are complete and in order."""
    with RawClient(own.address, receive_buffer=SMALL_BUFFER) as client:
        wait_until_at_rest(own.pid)  # counts our connection; those of the previous test are closed
        reset_peak(own.pid)
        before, files = memory(own.pid), open_files(own.pid)
        numbers = [client.send_request(fetch(filled, count % 100), FETCH_VERSION) for count in range(FRAMES)]
        wait_until_at_rest(own.pid)
        assert memory(own.pid, "VmHWM") - before < MEMORY_CAP
        assert open_files(own.pid) <= files + 1, "slices share the segment's descriptor"
        check_serves(own.address)
        for count, number in enumerate(numbers):
            records = records_of(client.response(1, FETCH_VERSION, number))
            assert HEADER.unpack_from(records)[0] == count % 100
            assert bytes(records[-5:-1]) == struct.pack(">i", count % 100)
    assert memory(own.pid, "VmHWM") - before < MEMORY_CAP


def test_a_connection_s_waiting_requests_are_limited_and_answered_in_order(own: BrokerProcess) -> None:
    """Of 1,000 long polls on one connection, a limited number waits; one new record answers all of them."""
    with RawClient(own.address) as client, RawClient(own.address) as producer:
        create_topic(producer, "polled")
        wait_until_at_rest(own.pid)
        reset_peak(own.pid)
        before = memory(own.pid)
        numbers = [client.send_request(fetch("polled", 0, wait_ms=LONG_POLL_MS), FETCH_VERSION) for _ in range(FRAMES)]
        wait_until_at_rest(own.pid)
        assert memory(own.pid, "VmHWM") - before < MEMORY_CAP
        produce(producer, "polled", [batch(1, 100)])
        for number in numbers:
            assert records_of(client.response(1, FETCH_VERSION, number))


def test_large_produce_requests_cost_bounded_memory(own: BrokerProcess) -> None:
    """100 MB of batches that arrive one after the other are not kept in memory."""
    large = batch(1, 900_000)
    with RawClient(own.address) as client:
        create_topic(client, "flood")
        produce(client, "flood", [large])
        wait_until_at_rest(own.pid)
        reset_peak(own.pid)
        before = memory(own.pid)
        for _ in range(100):
            assert produce(client, "flood", [large], acks=1)[0].error_code == 0
        assert end_offset(client, "flood") == 101
    assert memory(own.pid, "VmHWM") - before < MEMORY_CAP


def test_reading_a_gigabyte_costs_no_memory(own: BrokerProcess, filled: str) -> None:
    """Fetch the topic's 10 MB a hundred times."""
    with RawClient(own.address) as client:
        wait_until_at_rest(own.pid)
        reset_peak(own.pid)
        before = memory(own.pid)
        for _ in range(100):
            client.send_request(fetch(filled, 0, max_bytes=1 << 30), FETCH_VERSION)
            skip_frame(client)
        assert client.received > 1_000_000_000
    assert memory(own.pid, "VmHWM") - before < MEMORY_CAP


def skip_frame(client: RawClient) -> None:
    """Read one frame and discard it."""
    (left,) = struct.unpack(">i", receive_exactly(client, 4))
    client.received += left
    scratch = bytearray(1 << 20)
    while left:
        left -= client.socket.recv_into(scratch, min(left, len(scratch)))


def receive_exactly(client: RawClient, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.socket.recv(count - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


# Clients that go away -------------------------------------------------------------------------------------------------


def test_disconnected_clients_leave_no_long_polls_behind(own: BrokerProcess) -> None:
    with RawClient(own.address) as producer:
        create_topic(producer, "left")
        sockets = settled_connections(own)
        leave_long_polls(own, 1000)  # memory used by the first ones is reused by the next
        wait_until(lambda: connections(own.pid) <= sockets, "the sockets are closed")
        wait_until_at_rest(own.pid)
        before = memory(own.pid)
        for _ in range(5):
            leave_long_polls(own, 1000)
            wait_until(lambda: connections(own.pid) <= sockets, "the sockets are closed")
        wait_until_at_rest(own.pid)
        assert memory(own.pid) - before < 4.0, "5,000 long polls of disconnected clients are still in memory"
        (answer,) = produce(producer, "left", [batch(1, 100)])
        assert (answer.error_code, answer.base_offset) == (0, 0)
    assert "failed" not in own.log()


def settled_connections(broker: BrokerProcess) -> int:
    """Return how many sockets the broker has once those of the previous test are closed."""
    wait_until_at_rest(broker.pid)
    return connections(broker.pid)


def leave_long_polls(broker: BrokerProcess, count: int) -> None:
    """Begin `count` long polls on ten connections, then close half of these and reset the others."""
    clients = [RawClient(broker.address) for _ in range(10)]
    for number in range(count):
        client = clients[number % len(clients)]
        client.send_request(fetch("left", 0, wait_ms=LONG_POLL_MS, min_bytes=1 + number % 2), FETCH_VERSION)
    wait_until_at_rest(broker.pid)
    for number, client in enumerate(clients):
        if number % 2:  # send RST instead of FIN
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


def test_the_buffer_of_an_unfinished_request_is_freed_when_its_client_disconnects(own: BrokerProcess) -> None:
    """Received parts of frames are freed at once, without waiting for the cyclic garbage collector."""
    sockets = settled_connections(own)
    before = memory(own.pid)
    for _ in range(4):
        with RawClient(own.address) as client:
            client.send(struct.pack(">i", 100_000_000) + bytes(40_000_000))
        wait_until(lambda: connections(own.pid) <= sockets, "the socket is closed")
        wait_until_at_rest(own.pid)
    assert memory(own.pid) - before < 48.0, "more than one buffer of four is still in memory"


def test_an_unfinished_reply_is_freed_when_its_client_disconnects(own: BrokerProcess, filled: str) -> None:
    sockets = settled_connections(own)
    for _ in range(20):
        with RawClient(own.address, receive_buffer=SMALL_BUFFER) as client:
            client.send_request(fetch(filled, 0, max_bytes=1 << 30), FETCH_VERSION)
            assert len(client.socket.recv(1000))
    wait_until(lambda: connections(own.pid) <= sockets, "the sockets are closed")
    check_serves(own.address)


def test_deleting_a_topic_answers_its_long_polls(own: BrokerProcess) -> None:
    with RawClient(own.address) as client, RawClient(own.address) as other:
        create_topic(other, "doomed")
        number = client.send_request(fetch("doomed", 0, wait_ms=LONG_POLL_MS), FETCH_VERSION)
        wait_until_at_rest(own.pid)
        assert (
            other.request(DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=30_000), 4).responses[0].error_code
            == 0
        )
        assert client.response(1, FETCH_VERSION, number).responses[0].partitions[0].error_code == 3


def test_a_peer_that_never_reads_its_reply_is_disconnected_as_idle(start_broker: Callable[..., BrokerProcess]) -> None:
    """`connections.max.idle.ms` applies to a connection with an unread reply too."""
    patient = start_broker()
    with RawClient(patient.address) as producer:
        create_topic(producer, "owed")
        for number in range(10):
            produce(producer, "owed", [batch(number, 900_000)])
    assert patient.stop() == 0
    broker = start_broker(settings={"connections.max.idle.ms": "1000"})
    sockets = settled_connections(broker)
    with RawClient(broker.address, receive_buffer=SMALL_BUFFER) as client:
        client.send_request(fetch("owed", 0, max_bytes=1 << 30), FETCH_VERSION)
        assert len(client.socket.recv(1))
        wait_until(lambda: connections(broker.pid) <= sockets, "the connection is dropped")
    check_serves(broker.address)


def test_connections_can_not_take_all_file_descriptors(start_broker: Callable[..., BrokerProcess]) -> None:
    """Connections beyond the limit are refused. Open ones are served, also on files that are opened now."""
    broker = start_broker()
    with RawClient(broker.address) as client:
        check_serves(broker.address)
        few = open_files(broker.pid) + 60
        _, most = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (few, most))
        others = [connect_or_be_refused(broker) for _ in range(100)]
        try:
            assert all(other is None or other.is_closed_by_broker() for other in others[-20:])
            create_topic(client, "new", 3)
            assert produce(client, "new", [batch(1, 100)])[0].error_code == 0
        finally:
            for other in others:
                if other is not None:
                    other.close()
        assert "kept for files" in broker.log()
        wait_until_at_rest(broker.pid)
        check_serves(broker.address)


def connect_or_be_refused(broker: BrokerProcess) -> RawClient | None:
    """Connect. Return None if the connection was refused at once."""
    try:
        return RawClient(broker.address)
    except ConnectionResetError:
        return None


# Fairness -------------------------------------------------------------------------------------------------------------


def test_a_reader_that_stops_reading_does_not_delay_others(own: BrokerProcess, filled: str) -> None:
    """It asks for everything and reads nothing while others are served; then it receives everything."""
    with RawClient(own.address, receive_buffer=SMALL_BUFFER) as slow, RawClient(own.address) as other:
        number = slow.send_request(fetch(filled, 0, max_bytes=1 << 30), FETCH_VERSION)
        for count in range(200):
            assert records_of(other.request(fetch(filled, count % 100), FETCH_VERSION))
        assert len(records_of(slow.response(1, FETCH_VERSION, number))) > 100 * BATCH_BYTES


def test_a_reader_at_full_speed_does_not_delay_others(own: BrokerProcess, filled: str) -> None:
    """While one connection reads at full speed without an end, another one's small requests are answered."""
    done = threading.Event()
    rounds = []

    def read_without_end() -> None:
        with RawClient(own.address) as client:
            while not done.is_set():
                client.send_request(fetch(filled, 0, max_bytes=1 << 30), FETCH_VERSION)
                skip_frame(client)
                rounds.append(client.received)

    greedy = threading.Thread(target=read_without_end)
    greedy.start()
    try:
        wait_until(lambda: rounds, "the reader has begun")
        with RawClient(own.address) as client:
            for _ in range(200):
                assert client.request(MetadataRequest([]), METADATA_VERSION).brokers
    finally:
        done.set()
        greedy.join()
