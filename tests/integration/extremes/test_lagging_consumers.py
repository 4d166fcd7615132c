"""Groups whose members have to wait for a busy disk: nobody is expelled, and `groups describe` says who waits."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as Librdkafka
from kafka import KafkaConsumer

from pylogd.broker.isolation.disk_meter import find_disk
from pylogd.broker.log.residency import missing_bytes
from pylogd.client import Admin, Consumer
from pylogd.client.blocking.producer import Producer
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic, wait_until

TOPIC = "t"
SESSION_MS = 6000
VALUE = os.urandom(50_000)  # does not compress
COUNT = 200
#: Any use of the disk makes it busy, and those who lag read next to nothing. Each append uses it.
SETTINGS = {
    "lagging.consumer.throttle.enable": "true",
    "lagging.consumer.lag.bytes": "1000000",
    "lagging.consumer.disk.utilization.low": "0.000001",
    "lagging.consumer.disk.utilization.high": "0.000002",
    "lagging.consumer.min.bytes.per.second": "1024",
    "log.flush.interval.messages": "1",
    "group.initial.rebalance.delay.ms": "100",
}


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with old records that are not in memory, on a disk that is busy with new ones."""
    if find_disk(str(tmp_path)) is None:
        pytest.skip("the temporary directory is on no disk")
    broker = start_broker(settings=SETTINGS)
    with RawClient(broker.address) as client:
        create_topic(client, TOPIC)
        create_topic(client, "other")
    with Producer(broker.address) as producer:
        for _ in range(COUNT):
            producer.send(TOPIC, VALUE)
    ended = threading.Event()
    writer = threading.Thread(target=_keep_busy, args=(broker.address, ended))
    writer.start()
    try:
        wait_until(lambda: "wait, and read at most" in broker.log(), "the disk is busy")
        forget(broker.data / f"{TOPIC}-0")
        yield broker
    finally:
        ended.set()
        writer.join()


def _keep_busy(address: str, ended: threading.Event) -> None:
    with Producer(address) as producer:
        while not ended.wait(0.05):
            producer.send("other", VALUE)
            producer.flush()


def forget(directory: Path) -> None:
    """Have the kernel forget the pages of a partition's segments."""
    for path in directory.glob("*.log"):
        fd = os.open(path, os.O_RDWR)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        missing = missing_bytes(fd, 0, path.stat().st_size)
        os.close(fd)
        if not missing:
            pytest.skip("this file system keeps its pages in memory")


def poll_librdkafka(address: str, stack: ExitStack, group: str) -> Callable[[], object]:
    """Return what polls a consumer of librdkafka, with default settings for what matters here."""
    consumer = Librdkafka(
        {"bootstrap.servers": address, "group.id": group, "client.id": group, "auto.offset.reset": "earliest",
         "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": SESSION_MS // 3}
    )  # fmt: skip
    stack.callback(consumer.close)
    consumer.subscribe([TOPIC])
    return lambda: consumer.poll(0.1)


def poll_kafka_python(address: str, stack: ExitStack, group: str) -> Callable[[], object]:
    """Return what polls a consumer of kafka-python."""
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=address, group_id=group, client_id=group, auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS, heartbeat_interval_ms=SESSION_MS // 3,
    )  # fmt: skip
    stack.enter_context(closing(consumer))
    return lambda: consumer.poll(timeout_ms=100)


def poll_pylogd(address: str, stack: ExitStack, group: str) -> Callable[[], object]:
    """Return what polls a consumer of our own."""
    consumer = stack.enter_context(
        Consumer(address, group_id=group, client_id=group, session_timeout=SESSION_MS / 1000)
    )
    consumer.subscribe([TOPIC])
    return lambda: consumer.poll(0.1)


def waited(address: str) -> dict[str, float]:
    """Return for how many seconds each client has waited, by client id."""
    with Admin(address) as admin:
        (entry,) = admin.describe_configs("broker", "1", ["lagging.consumers.throttled"])
    assert entry.value is not None
    return {client["client"]: client["total_seconds"] for client in json.loads(entry.value)}


def members(address: str, groups: list[str]) -> dict[str, Any]:
    """Return the state and the members of each group."""
    with Admin(address) as admin:
        found = {group: admin.describe_group(group) for group in groups}
    return {name: (group.state, [member.member_id for member in group.members]) for name, group in found.items()}


def test_members_that_wait_for_longer_than_a_session_stay_in_their_groups(broker: BrokerProcess) -> None:
    starts = {"librdkafka": poll_librdkafka, "kafka-python": poll_kafka_python, "pylogd": poll_pylogd}
    groups = list(starts)
    with ExitStack() as stack:
        polls = [start(broker.address, stack, group) for group, start in starts.items()]

        def polled(condition: Callable[[], bool]) -> Callable[[], bool]:
            def poll() -> bool:
                forget(broker.data / f"{TOPIC}-0")  # what was read for one of them is missing for the next
                for one in polls:
                    one()
                return condition()

            return poll

        wait_until(polled(lambda: set(waited(broker.address)) >= set(groups)), "all have to wait")
        before = members(broker.address, groups)
        assert {state for state, _ in before.values()} == {"Stable"}
        long = SESSION_MS / 1000 + 2
        wait_until(polled(lambda: min(waited(broker.address)[group] for group in groups) > long), "all waited for long")
        assert members(broker.address, groups) == before
        shown = subprocess.run(
            [*pylogd_command(), "groups", "describe", "pylogd", "-b", broker.address], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
    assert "throttled: " in shown.stderr
    assert "client 'pylogd' of 127.0.0.1, reading t-0 from broker 1, disk " in shown.stderr
