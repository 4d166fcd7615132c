"""Quotas of a real broker: set by command, kept by unmodified clients, and without harm to groups."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient

from pylogd.client import NewTopic
from pylogd.wire.messages.metadata import MetadataRequest
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import encode_batch
from tests.clusters import BrokerCluster
from tests.commands import ok, refused, run
from tests.integration.conftest import Address, StartBroker
from tests.rawclient import PATIENCE, RawClient, create_topic, encode, frame

StartCluster = Callable[..., BrokerCluster]

SECONDS = 120.0
RATE = 2_000_000
#: The bytes of requests that one read of a socket brings: they are answered together before the client has to wait. A
#: busy machine makes clients slower, so there is no least.
MOST_BEYOND = 1_000_000
COUNT, SIZE = 1000, 20_000  # ten seconds' worth
VALUE = b"v" * SIZE


def quotas(broker: Address, *arguments: str) -> str:
    return ok(broker, "quotas", *arguments)


def produce(broker: Address, topic: str, count: int, value: bytes = VALUE, **settings: Any) -> float:
    """Produce records; how many seconds it took."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "batch.size": 65_536, **settings})
    failed: list[Any] = []

    def report(error: Any, _: Any) -> None:
        failed.extend([error] if error else ())

    producer.list_topics(timeout=SECONDS)  # so that it is connected
    begun = time.monotonic()
    for _ in range(count):
        producer.produce(topic, value, on_delivery=report)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failed
    return time.monotonic() - begun


class Reader:
    """A consumer of a whole topic, and when its broker said that it was throttled."""

    def __init__(self, broker: Address, **settings: Any) -> None:
        self.throttled: list[float] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.address, "group.id": "readers", "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": 200_000, "throttle_cb": self._throttle, **settings,
            }
        )  # fmt: skip

    def _throttle(self, event: Any) -> None:
        self.throttled.append(event.throttle_time)

    def take(self, count: int) -> None:
        """Read so many records."""
        while count:
            message = self.consumer.poll(SECONDS)
            assert message is not None and message.error() is None
            count -= 1


def test_the_command_sets_lists_and_removes(broker: Address) -> None:
    quotas(broker, "set", "--user", "ann", "--client-id", "a b", "--producer-byte-rate", "1.5MB")
    quotas(broker, "set", "--user-default", "--request-percentage", "12.5", "--consumer-byte-rate", "2KiB")
    quotas(broker, "set", "--ip", "192.0.2.7", "--connection-creation-rate", "5")
    assert quotas(broker, "list").splitlines() == [
        "<default>\t-\t-\tconsumer_byte_rate\t2048",
        "<default>\t-\t-\trequest_percentage\t12.5",
        "ann\ta b\t-\tproducer_byte_rate\t1500000",
        "-\t-\t192.0.2.7\tconnection_creation_rate\t5",
    ]
    assert json.loads(quotas(broker, "list", "--ip", "192.0.2.7", "--json")) == [
        {"ip": "192.0.2.7", "quotas": {"connection_creation_rate": 5.0}}
    ]
    quotas(broker, "remove", "--user-default", "--request-percentage")
    quotas(broker, "remove", "--ip", "192.0.2.7", "--all")
    quotas(broker, "remove", "--user", "ann", "--client-id", "a b", "--all")
    assert quotas(broker, "list") == "<default>\t-\t-\tconsumer_byte_rate\t2048\n"
    done = run(broker, "quotas", "remove", "--user-default", "--producer-byte-rate")
    assert (done.returncode, done.stderr) == (0, "Not set: producer_byte_rate.\n")
    quotas(broker, "remove", "--user-default", "--consumer-byte-rate")
    assert quotas(broker, "list") == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["set", "--producer-byte-rate", "1"], "Whose quota?"),
        (["set", "--user", "ann"], "Which quota?"),
        (["set", "--user", "ann", "--user-default", "--producer-byte-rate", "1"], "either --user or --user-default"),
        (["set", "--user", "ann", "--ip", "192.0.2.7", "--request-percentage", "1"], "quotas of its own"),
        (["set", "--user", "ann", "--producer-byte-rate", "fast"], "'fast' is not a number of bytes"),
        (["set", "--user", "", "--producer-byte-rate", "1"], "--user is empty"),
        (["remove", "--user", "ann"], "Which quota?"),
    ],
)
def test_the_command_says_what_is_missing(broker: Address, arguments: Sequence[str], why: str) -> None:
    done = run(broker, "quotas", *arguments)
    assert done.returncode == 2
    assert why in done.stderr


def test_the_broker_refuses_what_makes_no_sense(broker: Address) -> None:
    line = refused(broker, "quotas", "set", "--user", "ann", "--connection-creation-rate", "5")
    assert "'connection_creation_rate' is not a quota of such an entity" in line


def test_a_producer_and_a_consumer_have_their_quotas(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert produce(broker, "t", COUNT) < COUNT * SIZE / RATE
    quotas(broker, "set", "--client-id", "producer", "--producer-byte-rate", str(RATE))
    quotas(broker, "set", "--user-default", "--client-id", "consumer", "--consumer-byte-rate", str(RATE))
    seconds = produce(broker, "u", COUNT, VALUE, **{"client.id": "producer"})
    assert COUNT * SIZE - seconds * RATE < MOST_BEYOND
    reader = Reader(broker, **{"client.id": "consumer"})
    begun = time.monotonic()
    reader.consumer.assign([TopicPartition("t", 0, 0)])  # from here on it reads ahead
    reader.take(COUNT)
    seconds = time.monotonic() - begun
    reader.consumer.close()
    assert COUNT * SIZE - seconds * RATE < MOST_BEYOND
    assert reader.throttled
    assert produce(broker, "u", COUNT) < COUNT * SIZE / RATE  # of another client id


def test_the_answer_comes_at_once_and_the_next_one_after_the_throttle_time(broker: Address, topic: str) -> None:
    quotas(broker, "set", "--client-id", "raw", "--producer-byte-rate", "5000")
    with RawClient(broker.address) as client:
        create_topic(client, topic)
        records = encode_batch([(None, VALUE, int(time.time() * 1000), ())])
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, records)])]
        first = client.send_request(ProduceRequest(None, 1, 30_000, data), 9)
        second = client.send_request(MetadataRequest([]), 12)
        begun = time.monotonic()
        answer = client.response(ProduceRequest.API_KEY, 9, first)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert answer.throttle_time_ms >= 3000
        assert client.response(MetadataRequest.API_KEY, 12, second).brokers
        assert time.monotonic() - begun >= 0.9 * answer.throttle_time_ms / 1000
    quotas(broker, "remove", "--client-id", "raw", "--all")


def test_an_address_may_open_so_many_connections(start_broker: StartBroker) -> None:
    broker = start_broker()
    quotas(broker, "set", "--ip", "127.0.0.1", "--connection-creation-rate", "1")
    host, _, port = broker.address.rpartition(":")
    accepted, tried, begun = 0, 0, time.monotonic()
    # The command's own connections have used up the first second's, so it is tried until one more is accepted.
    while tried < 30 or (not accepted and time.monotonic() < begun + SECONDS):
        tried += 1
        try:
            with socket.create_connection((host, int(port)), SECONDS) as connection:
                connection.settimeout(0.2)
                connection.recv(1)
        except ConnectionError:
            pass
        except TimeoutError:
            accepted += 1  # the broker waits for a request
    assert 1 <= accepted <= time.monotonic() - begun + 1


def test_a_member_whose_fetches_are_muted_stays_in_its_group(start_broker: StartBroker) -> None:
    """Each fetch is muted for four sessions, and the heartbeats arrive all the same."""
    broker = start_broker(settings={"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"})
    produce(broker, "t", 4, 5 * VALUE)
    quotas(broker, "set", "--client-id", "consumer", "--consumer-byte-rate", "20000")
    reader = Reader(broker, **{"client.id": "consumer", "session.timeout.ms": 1000, "heartbeat.interval.ms": 200})
    lost: list[Any] = []

    def note(_: Consumer, partitions: list[TopicPartition]) -> None:
        lost.extend(partitions)

    reader.consumer.subscribe(["t"], on_revoke=note, on_lost=note)
    reader.take(3)
    assert max(reader.throttled) > 3.5
    assert not lost
    described = json.loads(ok(broker, "groups", "describe", "readers", "--json"))
    assert [group["state"] for group in described] == ["Stable"]
    assert len(described[0]["members"]) == 1
    reader.consumer.close()


def test_a_change_reaches_all_brokers_and_followers_are_never_throttled(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3)
    cluster.ask(lambda admin: admin.create_topics([NewTopic("each", assignments={n: (n + 1,) for n in range(3)})]))
    cluster.ask(lambda admin: admin.create_topic("copied", 1, 3))
    for topic, count in (("each", 1), ("copied", 3)):
        cluster.wait_for_isr(topic, count)

    def throttled(node: int, client_id: bytes = b"raw") -> int:
        """How long a client has to wait that sends 20 KB to a broker."""
        records = encode_batch([(None, VALUE, int(time.time() * 1000), ())])
        data = [TopicProduceData("each", partition_data=[PartitionProduceData(node - 1, records)])]
        with RawClient(cluster.address(node)) as client:
            body = encode(ProduceRequest(None, 1, 30_000, data), 9).replace(b"\0\3raw", b"\0\3" + client_id, 1)
            client.send(frame(body))
            answer = client.response(ProduceRequest.API_KEY, 9, 1)
        assert answer.responses[0].partition_responses[0].error_code == 0
        return int(answer.throttle_time_ms)

    class First(NamedTuple):
        address: str

    first = First(cluster.address(1))
    quotas(first, "set", "--client-id", "raw", "--producer-byte-rate", "1000")
    for node in cluster.ports:
        cluster.until(lambda node=node: throttled(node) > 1000, f"that broker {node} throttles")  # type: ignore[misc]
        assert throttled(node, b"any") == 0
    quotas(First(cluster.address(2)), "set", "--user", "ANONYMOUS", "--producer-byte-rate", "1GB")  # a higher level
    for node in cluster.ports:
        cluster.until(lambda node=node: throttled(node) == 0, f"that broker {node} does not")  # type: ignore[misc]
    store = KazooClient(cluster.connect)
    store.start(PATIENCE)
    try:
        assert json.loads(store.get("/config/clients/raw")[0])["config"] == {"producer_byte_rate": "1000"}
        assert json.loads(store.get("/config/users/ANONYMOUS")[0])["config"] == {"producer_byte_rate": "1000000000"}
    finally:
        store.stop()
        store.close()
    # Brokers connect to each other as the same user.
    quotas(first, "set", "--user", "ANONYMOUS", "--consumer-byte-rate", "1", "--request-percentage", "0.0001")
    produce(First(cluster.bootstrap), "copied", 3, acks="all")
    cluster.wait_for_isr("copied", 3)
