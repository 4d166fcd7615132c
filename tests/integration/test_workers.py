"""`pylogd broker --workers`: brokers that share a port, a metadata store and a machine."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pylogd.client import Admin, Consumer, Producer
from pylogd.errors import PylogdError
from pylogd.local.broker import BrokerProcess
from tests.rawclient import wait_until

WORKERS = 2
PARTITIONS = 4
PATIENCE_SECONDS = 60.0


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", arguments=["--workers", str(WORKERS)])
    yield broker
    assert broker.stop() == 0


def children(parent: int) -> list[int]:
    """The metadata store's process, then the workers', in the order of their starts."""
    return sorted(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))


def send(address: str, values: list[str]) -> None:
    with Producer(address) as producer:
        for index, value in enumerate(values):
            producer.send("shared", value.encode(), partition=index % PARTITIONS)
        producer.flush()


def read(address: str, count: int) -> list[str]:
    found: list[str] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("shared", index) for index in range(PARTITIONS)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += [(record.value or b"").decode() for record in consumer.poll(1)]
    return sorted(found)


def test_workers_are_one_cluster_and_each_is_started_again_alone(workers: BrokerProcess) -> None:
    first = [f"first {index}" for index in range(8)]
    with Admin(workers.address) as admin:
        admin.create_topic("shared", PARTITIONS, 1)
        live = admin.describe_cluster().brokers
        nodes = {broker.node_id: broker.port for broker in live}
        assert len({broker.host_id for broker in live}) == 1 and live[0].host_id, "they share the machine"
        assert nodes == {1: workers.port + 1, 2: workers.port + 2}
        leaders = [one.leader for one in admin.describe_topic("shared").partitions]
        assert sorted(leaders) == [1, 1, 2, 2]
    send(workers.address, first)
    assert read(workers.address, 8) == first

    store, *brokers = before = children(workers.pid)
    for number, victim in enumerate((brokers[1], store), 1):
        os.kill(victim, signal.SIGKILL)
        wait_until(partial(replaced, workers.pid, victim), "another process in its place")
        wait_until(lambda: serves_all(workers.address), "all partitions have leaders again")
        send(workers.address, [f"again {number} {index}" for index in range(4)])
    assert len(set(before) & set(children(workers.pid))) == 1, "only those that were killed were started again"
    found = read(workers.address, 16)
    assert [value for value in found if value.startswith("first")] == first
    assert len(re.findall(r"has ended \(signal SIGKILL\); it is started again", workers.log())) == 2


def replaced(parent: int, victim: int) -> bool:
    present = children(parent)
    return len(present) == WORKERS + 1 and victim not in present


def serves_all(address: str) -> bool:
    try:
        with Admin(address) as admin:
            described = admin.describe_topic("shared").partitions
            return len(admin.describe_cluster().brokers) == WORKERS and all(one.leader > 0 for one in described)
    except PylogdError:
        return False


def test_workers_end_if_one_cannot_start(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", arguments=["--workers", "2"])
    other = BrokerProcess(
        tmp_path / "other", tmp_path / "other-log", port=broker.port, arguments=["--workers", "2"], wait=False
    )
    assert other.join() == 1
    assert "can't listen on 127.0.0.1" in other.log()
    assert broker.stop() == 0
