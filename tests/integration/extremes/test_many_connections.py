"""Thousands of real connections from many addresses: who is served, in what order, and what it costs the broker."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench import frames
from pylogd.link.request_memory import LEAST_BYTES
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from tests.integration.conftest import StartBroker
from tests.integration.extremes import active_connections
from tests.rawclient import PATIENCE, RawClient, create_topic, encode, frame, memory, wait_until

COUNT = 3000
MOST = 500
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 32)]
ASK = frame(encode(ApiVersionsRequest("many", "1"), 3))
#: With the accepting listener for clients beside the one between brokers, which is exempt from the broker's limits.
CLIENTS = ["--listen", "CLIENTS://127.0.0.1:0"]
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT", "socket.listen.backlog.size": "4096",
}  # fmt: skip


class Crowd:
    """Many connections to a broker, in the order in which they were opened, and what came on each."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.sockets: list[socket.socket] = []
        self.answered: list[int] = []  # the numbers of those that were answered first, in that order
        self.closed: set[int] = set()
        self._selector = selectors.DefaultSelector()

    def open(self, source: str, data: bytes = ASK) -> int:
        """Open a connection from an address and send something. Return its number."""
        number, connection = len(self.sockets), socket.socket()
        self.sockets.append(connection)
        connection.settimeout(PATIENCE)
        connection.bind((source, 0))
        try:
            connection.connect(self.address)
            connection.sendall(data)
        except ConnectionError:  # the broker has closed it already
            self.closed.add(number)
            return number
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, number)
        return number

    def receive(self) -> bool:
        """Take note of what has come until now. Return False, for conditions that go on with `or`."""
        for key, _ in self._selector.select(0.05):
            number, connection = key.data, self.sockets[key.data]
            try:
                data = connection.recv(1 << 16)
            except OSError:
                data = b""
            if data and number not in self.answered:
                self.answered.append(number)
            elif not data:
                self.closed.add(number)
                self._selector.unregister(connection)
        return False

    def until(self, answered: int = 0, closed: int = 0) -> None:
        """Wait until so many were answered, and so many closed by the broker."""
        deadline = time.monotonic() + PATIENCE
        while len(self.answered) < answered or len(self.closed) < closed:
            self.receive()
            assert time.monotonic() < deadline, f"{len(self.answered)} answered, {len(self.closed)} closed"

    def leave(self, numbers: Iterable[int]) -> None:
        """Close connections."""
        for number in numbers:
            if number not in self.closed:
                self._selector.unregister(self.sockets[number])
            self.sockets[number].close()

    def close(self) -> None:
        self._selector.close()
        for connection in self.sockets:
            connection.close()


@contextmanager
def crowd(broker: BrokerProcess) -> Iterator[Crowd]:
    """A crowd at the listener for clients."""
    found = re.search(r"CLIENTS://(127\.0\.0\.1:\d+)", broker.log())
    assert found is not None
    made = Crowd(found[1])
    try:
        yield made
    finally:
        made.close()


def alter(broker: BrokerProcess, name: str, value: str) -> None:
    """Change a setting by the listener between brokers."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(PATIENCE)


def ask(broker: BrokerProcess) -> None:
    """Ask something by the listener between brokers."""
    with RawClient(broker.address) as client:
        assert client.request(MetadataRequest([]), 12).brokers


def test_thousands_wait_for_their_turn_in_their_order(start_broker: StartBroker) -> None:
    settings = {"max.connections": str(MOST), "max.connections.per.ip.overrides": "127.0.0.99:3"}
    broker = start_broker(settings={**SETTINGS, **settings}, arguments=CLIENTS)
    ask(broker)
    before = memory(broker.pid)
    with crowd(broker) as many:
        for number in range(COUNT):
            many.open(ADDRESSES[number % len(ADDRESSES)])
        many.until(MOST)
        assert sorted(many.answered) == list(range(MOST)), "those that came first"
        ask(broker)  # by the exempt listener
        many.until(closed=1)
        assert len(many.closed) == 1, "one of the others was closed to make room"
        (gone,) = many.closed
        assert gone < MOST
        for served in range(MOST, COUNT - MOST + 1, MOST):
            many.leave(range(served - MOST, served))
            many.until(served + MOST)
            assert set(range(served + MOST)) <= set(many.answered)
            assert len(many.answered) <= served + MOST + 1
        assert memory(broker.pid) - before < 64
        many.leave(range(COUNT - MOST, COUNT))
        few = [many.open("127.0.0.99") for _ in range(5)]
        many.until(COUNT + 3, 3)
        assert many.closed - {gone} <= set(few), "an address over its own limit is refused at once"
    assert "New connections to listener CLIENTS wait until others end: max.connections=500 is reached" in broker.log()


def test_two_thousand_active_connections_are_all_served(start_broker: StartBroker) -> None:
    """They come at once, as after a restart; each produces and fetches, all at the same time."""
    count, rounds = 2000, 3
    broker = start_broker()
    now_ms = int(time.time() * 1000)
    produce = frames.produce(1, "t", encode_batch([(None, bytes(200), now_ms, ())]))
    with RawClient(broker.address) as client:
        create_topic(client, "t")
        before = memory(broker.pid)
        many = active_connections.Crowd((broker.host, broker.port), count)
        try:
            many.connected(frames.request(frames.API_VERSIONS, 0, 0))
            many.ask(produce, rounds * count)
            many.ask(frames.fetch(2, "t", 4096), rounds * count)
            grown = memory(broker.pid) - before
        finally:
            many.close()
        asked = [ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1)])]
        answer = client.request(ListOffsetsRequest(-1, 0, asked), 5)
        assert answer.topics[0].partitions[0].offset == rounds * count
    assert grown < 40, "MB: 2.5 KB of objects for each connection, its part of what requests take while they are many"


def test_changes_hold_at_once_for_those_that_wait_and_those_that_are_served(start_broker: StartBroker) -> None:
    broker = start_broker(settings={**SETTINGS, "max.connections": "50"}, arguments=CLIENTS)
    with crowd(broker) as many:
        for number in range(200):
            many.open(ADDRESSES[number % len(ADDRESSES)])
        many.until(50)
        alter(broker, "max.connections", "100")
        many.until(100)
        assert set(range(100)) <= set(many.answered)
        alter(broker, "max.connections", "20")
        wait_until(lambda: many.receive() or len(many.closed) >= 80, "those in excess are closed")
        alter(broker, "max.connections", "100000")
        many.until(200)
        alter(broker, "max.connection.creation.rate", "1")
        late = [many.open(ADDRESSES[0]) for _ in range(100)]
        alter(broker, "max.connection.creation.rate", "100000")
        many.until(300)
        assert [number for number in many.answered if number in late] == late
        alter(broker, "max.connections.per.ip", "10")
        number = many.open(ADDRESSES[0])
        wait_until(lambda: many.receive() or number in many.closed, "one more of this address is refused")
        alter(broker, "max.connections.per.ip.overrides", f"{ADDRESSES[0]}:1000")
        many.open(ADDRESSES[0])
        many.until(301)


def test_a_value_set_at_run_time_is_ignored_by_a_broker_that_is_told_to(start_broker: StartBroker) -> None:
    broker = start_broker()
    alter(broker, "max.connections.per.ip.overrides", "127.0.0.1:10")
    broker.stop()
    again = start_broker(arguments=["--set", "ignored.dynamic.settings=max.connections.per.ip.overrides"])
    clients = [RawClient(again.address) for _ in range(20)]
    for client in clients:
        assert client.request(MetadataRequest([]), 12).brokers
        client.close()


def test_many_large_requests_share_a_bounded_memory_and_none_starves(start_broker: StartBroker) -> None:
    """Each sends a third of a request and then the rest: together 300 MB, of which the broker may keep 20."""
    connections, limit = 1000, 20
    settings = {**SETTINGS, "queued.max.request.bytes": str(limit << 20)}
    broker = start_broker(settings=settings, arguments=CLIENTS)
    records = encode_batch([(None, bytes(300_000), int(time.time() * 1000), ())])
    with RawClient(broker.address) as client:
        create_topic(client, "t")
        data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])]
        request = frame(encode(ProduceRequest(None, 1, 30_000, data), 9))
        before = memory(broker.pid)
        with crowd(broker) as many:
            unsent: dict[int, memoryview] = {}
            for number in range(connections):
                many.open(ADDRESSES[number % len(ADDRESSES)], request[:100_000])
                unsent[number] = memoryview(request)[100_000:]
            assert client.request(MetadataRequest([]), 12).brokers, "others are served"
            highest = memory(broker.pid)
            while len(many.answered) < connections:
                for number in list(unsent):
                    _send_some(many.sockets[number], unsent, number)
                many.receive()
                highest = max(highest, memory(broker.pid))
            assert not many.closed
        # Beside the bound: what one read brings of each while memory is scarce, and the broker's own growth.
        assert highest - before < limit + connections * LEAST_BYTES / (1 << 20) + 60


def _send_some(connection: socket.socket, unsent: dict[int, memoryview], number: int) -> None:
    try:
        sent = connection.send(unsent[number])
    except BlockingIOError:
        return
    unsent[number] = unsent[number][sent:]
    if not len(unsent[number]):
        del unsent[number]
