"""Metrics and health of real brokers, scraped while real clients work."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from prometheus_client.samples import Sample

from pylogd.base.ports import free_ports
from pylogd.broker.metrics.table import DEFINITIONS
from pylogd.cli.main import pylogd
from pylogd.client import Admin
from pylogd.client import Consumer as GroupConsumer
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.clusters import BrokerCluster
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient
from tests.zookeeper import ZooKeeper

StartCluster = Callable[..., BrokerCluster]

SECONDS = 120.0
CLIENT_METRICS = 16  # the type of a resource
LATENCY = "org.apache.kafka.producer.node.request.latency.max"
CONNECTIONS = "org.apache.kafka.producer.connection.creation.total"
LISTENER = {"metrics.listener": "127.0.0.1:0", "metrics.group.lag.interval.ms": "1000"}


def metrics_port(broker: Any) -> int:
    """The port that the broker's log names."""
    line = next(line for line in reversed(broker.log().splitlines()) if "metrics at http://" in line)
    return int(line.rpartition("/metrics")[0].rpartition(":")[2])


def get(port: int, path: str, accept: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Page:
    """A page of metrics."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in parse(text)}
        self.samples: list[Sample] = [one for family in self.families.values() for one in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The only sample of this name with these labels; 0 if there is none."""
        found = [one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items()]
        assert len(found) <= 1, found
        return found[0] if found else 0.0


def scrape(port: int) -> Page:
    status, text = get(port, "/metrics")
    assert status == 200
    return Page(text)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)


def produce(address: str, topic: str, values: Iterable[bytes]) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1})
    failed: list[Any] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0 and not failed


def consume(address: str, topic: str, group: str, count: int) -> None:
    """Read so many records of partition 0, and commit."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert len(consumer.consume(count, SECONDS)) == count
        consumer.commit(offsets=[TopicPartition(topic, 0, count)], asynchronous=False)
    finally:
        consumer.close()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(settings=LISTENER)


def test_a_debug_bundle_has_the_metrics_of_each_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    [port] = free_ports(1)
    broker = start_broker(settings={"metrics.listener": f"0.0.0.0:{port}"})
    target = tmp_path / "bundle.zip"
    command = ["debug", "bundle", "--to", str(target), "--bootstrap-server", broker.address]
    done = CliRunner().invoke(pylogd, command)
    assert done.exit_code == 0 and "not in the bundle" not in done.output
    with zipfile.ZipFile(target) as archive:
        [name] = [one for one in archive.namelist() if "metrics-broker-" in one]
        assert "pylogd_build_info" in archive.read(name).decode()


def check_under_names_of_kafka(page: Page, topic: str, size: float) -> None:
    """Check what dashboards for Kafka ask for, of a topic with one partition of 1,000 records."""
    assert page.value("kafka_log_log_size", topic=topic, partition="0") == size
    assert page.value("kafka_log_log_logendoffset", topic=topic, partition="0") == 1000
    assert page.value("kafka_cluster_partition_replicascount", topic=topic, partition="0") == 1
    assert page.value("kafka_cluster_partition_insyncreplicascount", topic=topic, partition="0") == 1
    assert page.value("kafka_cluster_partition_atminisr", topic=topic, partition="0") == 1
    assert page.value("kafka_cluster_partition_underminisr", topic=topic, partition="0") == 0
    assert page.value("kafka_server_brokertopicmetrics_totalproducerequests_total", topic=topic) >= 1
    assert page.value("kafka_server_brokertopicmetrics_failedproducerequests_total", topic=topic) == 0
    assert page.value("kafka_server_brokertopicmetrics_totalfetchrequests_total", topic=topic) >= 1
    taken = page.value("kafka_server_socket_server_metrics_connection_creation_total", listener="PLAINTEXT")
    closed = page.value("kafka_server_socket_server_metrics_connection_close_total", listener="PLAINTEXT")
    assert closed >= 1
    assert page.value("kafka_server_socket_server_metrics_connection_count", listener="PLAINTEXT") == taken - closed
    assert page.value("kafka_server_kafkaserver_brokerstate") == 3
    assert 0 < page.value("kafka_network_socketserver_networkprocessoravgidle_percent") < 1
    assert page.value("kafka_server_kafkaserver_linux_disk_write_bytes") >= 0


def test_what_clients_did(broker: BrokerProcess, topic: str) -> None:
    port = metrics_port(broker)
    before = scrape(port)
    produce(broker.address, topic, (b"v" * 100 for _ in range(1000)))
    consume(broker.address, topic, "readers", 400)
    page = scrape(port)
    assert page.value("kafka_server_brokertopicmetrics_messagesin_total", topic=topic) == 1000
    received = page.value("kafka_server_brokertopicmetrics_bytesin_total", topic=topic)
    assert received > 100_000
    assert page.value("kafka_server_brokertopicmetrics_bytesout_total", topic=topic) >= received * 0.4
    check_under_names_of_kafka(page, topic, received)
    assert page.value("pylogd_topic_fetches_total", topic=topic) >= 1
    assert page.value("pylogd_log_write_duration_seconds_count") >= 1
    for api in ("Produce", "Fetch", "Metadata", "OffsetCommit"):
        name, labels = "kafka_network_requestmetrics_requests_total", {"request": api}
        assert page.value(name, **labels) > before.value(name, **labels), api
        assert page.value("pylogd_request_duration_seconds_count", request=api) > 0, api
    assert page.value("pylogd_ready") == 1
    assert page.value("pylogd_reactor_lag_seconds_count") > 0
    assert page.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert page.value("kafka_server_replicamanager_offlinereplicacount") == 0
    assert page.value("process_resident_memory_bytes") > 1 << 20

    def sizes_are_known() -> bool:
        """The first requests of a version are not sampled."""
        produce(broker.address, topic, [b"v"])
        consume(broker.address, topic, "others", 1)
        page, names = scrape(port), [f"pylogd_{what}_size_bytes_sum" for what in ("request", "response")]
        return all(page.value(name, request=api) > 0 for name in names for api in ("Produce", "Fetch", "Metadata"))

    until(sizes_are_known, "samples of sizes")
    [free] = [one.value for one in page.samples if one.name == "pylogd_log_dir_free_bytes"]
    assert free > 0


def test_the_lag_of_a_group_in_records_and_seconds(broker: BrokerProcess, topic: str) -> None:
    port = metrics_port(broker)
    produce(broker.address, topic, [b"v"] * 10)
    consume(broker.address, topic, "readers", 10)

    def lag() -> tuple[float, float]:
        page = scrape(port)
        names = ("pylogd_group_lag_records", "pylogd_group_lag_seconds")
        return page.value(names[0], group="readers"), page.value(names[1], group="readers")

    until(lambda: any(one.labels.get("group") == "readers" for one in scrape(port).samples), "the group")
    assert lag() == (0, 0)
    produce(broker.address, topic, [b"v"] * 7)
    until(lambda: lag()[0] == 7, "seven records that nobody has read")
    until(lambda: lag()[1] > 2, "a lag of more than two seconds")
    consume(broker.address, topic, "readers", 17)
    until(lambda: lag() == (0, 0), "a group that has read everything")


def test_the_lag_of_a_group_in_zookeeper_is_shown_by_the_controller(
    start_broker: StartBroker, zookeeper: ZooKeeper, topic: str
) -> None:
    """It is shown once, as any group's, and goes to the next controller."""
    settings = {**zookeeper.settings, "zookeeper.session.timeout.ms": "4000", **LISTENER}
    brokers = [start_broker(f"broker-{node}", {**settings, "node.id": str(node)}) for node in (1, 2)]
    addresses = ",".join(broker.address for broker in brokers)
    with Admin(addresses) as admin:
        admin.create_topic(topic, 2, 2)
    produce(addresses, topic, [b"v"] * 10)
    options: dict[str, Any] = {"coordinator": "zookeeper", "zookeeper": zookeeper.connect, "session_timeout": 30.0}
    with GroupConsumer(addresses, group_id="readers", auto_commit="off", **options) as consumer:
        consumer.subscribe(topic)
        read = 0
        while read < 10:
            read += len(consumer.poll(1.0))
        consumer.commit()
        produce(addresses, topic, [b"v"] * 7)

        def shown(running: Iterable[BrokerProcess]) -> list[tuple[float, float]]:
            pages = [scrape(metrics_port(broker)) for broker in running]
            named = [page for page in pages if any(one.labels.get("group") == "readers" for one in page.samples)]
            stable = {"type": "zookeeper", "state": "Stable"}
            return [
                (page.value("pylogd_group_lag_records", group="readers"), page.value("pylogd_groups", **stable))
                for page in named
            ]

        until(lambda: shown(brokers) == [(7, 1)], "the lag, on one broker")
        brokers[0].kill()
        until(lambda: shown(brokers[1:]) == [(7, 1)], "the lag, on the broker that is left")


def test_metrics_that_clients_push(broker: BrokerProcess, topic: str) -> None:
    """librdkafka pushes what a subscription asks for, and a client whose id does not match pushes nothing."""
    settings = {"metrics": "org.apache.kafka.producer.", "interval.ms": "100", "match": "client_id=app-.*"}
    with RawClient(broker.address) as raw:
        change = [AlterableConfig(name, 0, value) for name, value in settings.items()]
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(CLIENT_METRICS, "producers", change)])
        assert raw.request(request, 1).responses[0].error_code == 0
    producers = [
        Producer({"bootstrap.servers": broker.address, "client.id": name, "enable.metrics.push": True})
        for name in ("app-1", "elsewhere")
    ]
    port = metrics_port(broker)

    def pushed() -> Page | None:
        for producer in producers:
            producer.produce(topic, b"v")
            producer.poll(0.05)
        page = scrape(port)
        found = {one.labels["metric"] for one in page.samples if one.labels.get("client_id") == "app-1"}
        return page if found >= {LATENCY, CONNECTIONS} else None

    page = until(pushed, "metrics of app-1")
    assert page.value("pylogd_client_gauge_max", client_id="app-1", metric=LATENCY) >= 0
    assert page.value("pylogd_client_counter_total", client_id="app-1", metric=CONNECTIONS) >= 0
    assert page.value("pylogd_client_instances", software="confluent-kafka-python") == 2
    assert page.value("pylogd_client_pushes_total", error="NONE") >= 1
    assert not [one for one in page.samples if one.labels.get("client_id") == "elsewhere"]
    for producer in producers:
        assert producer.flush(SECONDS) == 0


def test_errors_are_counted_by_api(broker: BrokerProcess, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "auto.offset.reset": "error"})
    try:
        produce(broker.address, topic, [b"v"])
        consumer.assign([TopicPartition(topic, 0, 1_000_000)])
        until(lambda: (message := consumer.poll(0.1)) is not None and message.error(), "an offset out of range")
    finally:
        consumer.close()
    name = "kafka_network_requestmetrics_errors_total"
    assert scrape(metrics_port(broker)).value(name, request="Fetch", error="OFFSET_OUT_OF_RANGE") >= 1


def test_openmetrics_and_the_table(broker: BrokerProcess, topic: str) -> None:
    produce(broker.address, topic, [b"v"])
    port = metrics_port(broker)
    status, text = get(port, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert status == 200 and text.endswith("# EOF\n")
    found = {family.name: family for family in parse_openmetrics(text)}
    ours = {name for name in found if name.startswith(("pylogd_", "kafka_"))}
    assert ours <= DEFINITIONS.keys()
    assert {name for name in DEFINITIONS if "block_cache" not in name} <= ours
    for name in ours:
        definition = DEFINITIONS[name]
        assert found[name].type == definition.kind.value
        labels = {frozenset(one.labels) - {"le"} for one in found[name].samples}
        assert labels <= {frozenset(definition.labels)}, name


def test_health_pages_and_refusals(broker: BrokerProcess) -> None:
    port = metrics_port(broker)
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ok\n")
    assert get(port, "/")[0] == get(port, "/elsewhere")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("POST", "/metrics", body=b"x" * 100)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_broker_that_waits_for_its_store_lives_but_is_not_ready(start_cluster: StartCluster) -> None:
    cluster = start_cluster(size=2, settings=LISTENER)
    ports = {node: metrics_port(broker) for node, broker in cluster.brokers.items()}
    cluster.ask(lambda admin: admin.create_topic("t", partitions=4, replication_factor=2))
    cluster.wait_for_isr("t", 2)
    pages = {node: scrape(port) for node, port in ports.items()}
    assert sum(page.value("kafka_controller_kafkacontroller_activecontrollercount") for page in pages.values()) == 1
    assert sum(page.value("kafka_server_replicamanager_leadercount") for page in pages.values()) >= 4
    produce(",".join(cluster.address(node) for node in (1, 2)), "t", [b"v" * 1000] * 100)
    copied = [
        sum(scrape(port).value(f"kafka_server_brokertopicmetrics_replicationbytes{way}_total", topic="t")
            for port in ports.values())
        for way in ("out", "in")
    ]  # fmt: skip
    assert copied[0] >= copied[1] > 100_000
    cluster.kill(2)
    name = "kafka_server_replicamanager_underreplicatedpartitions"
    until(lambda: scrape(ports[1]).value(name) == 4, "all partitions to lack a replica")
    page = scrape(ports[1])
    assert (
        page.value("kafka_server_replicamanager_isrshrinks_total") >= 1
        or page.value("kafka_server_replicamanager_leadercount") >= 4
    )
    health = [*pylogd_command(), "cluster", "health", "-b", cluster.address(1), "--json"]
    found = subprocess.run(health, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert found.returncode == 3, found.stderr
    assert json.loads(found.stdout)["verdict"] == "degraded"
    cluster.start(2)
    waited = subprocess.run(
        [*pylogd_command(), "cluster", "health", "-b", cluster.address(1), "--wait", "120"],
        capture_output=True, text=True, timeout=SECONDS * 2, check=False,
    )  # fmt: skip
    assert waited.returncode == 0, (waited.stdout, waited.stderr)
    until(lambda: scrape(ports[1]).value(name) == 0, "all partitions to be in sync")


def test_without_the_package_a_broker_says_what_to_install(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['prometheus_client'] = None; from pylogd.cli.main import main; main()"
    command = [sys.executable, "-c", blocked, "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    command += ["--set", "metrics.listener=127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert "pip install 'pylogd-broker[metrics]'" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_an_address_that_is_taken_ends_the_start(broker: BrokerProcess, tmp_path: Path) -> None:
    port = metrics_port(broker)
    command = [*pylogd_command(), "broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "other")]
    command += ["--set", f"metrics.listener=127.0.0.1:{port}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert f"can't listen on 127.0.0.1:{port}" in ended.stderr.splitlines()[-1]
