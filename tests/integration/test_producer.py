"""The producer while its broker restarts, and in a process that forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pylogd.base.ports import free_ports
from pylogd.client import Admin, Cluster, Consumer, Producer
from tests.conftest import CHECKOUT
from tests.fakes.broker import FakeBroker
from tests.integration.conftest import StartBroker

SECONDS = 180
BURST = 900


def everything(address: str, topic: str, count: int) -> list[int]:
    """Read `count` numbers from a topic of one partition, and check that there are no more."""
    values: list[int] = []
    with Consumer(address) as consumer:
        consumer.assign([(topic, 0)])
        (end,) = consumer.end_offsets([(topic, 0)]).values()
        while consumer.position((topic, 0)) < end:
            values += [int(record.value or b"") for record in consumer.poll(SECONDS)]
    assert end == count
    return values


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_restart_of_the_broker_loses_repeats_and_reorders_nothing(start_broker: StartBroker, how: str) -> None:
    (port,) = free_ports(1)
    broker = start_broker(port=port)
    where = broker.address
    with Cluster(where) as cluster:
        Admin(cluster).create_topic("t", 1)
    number = 0
    with Producer(where, batch_records=20, linger_ms=1, retry_backoff=0.02, retry_backoff_max=0.2) as producer:
        for _ in range(3):
            sent = [producer.send("t", b"%d" % n) for n in range(number, number + BURST)]
            number += BURST
            sent[BURST // 3].result(SECONDS)  # batches are in flight from here on
            getattr(broker, how)()
            broker = start_broker(port=port)
        producer.flush(SECONDS)
        assert all(delivery.error is None for delivery in sent)
    assert everything(where, "t", number) == list(range(number))


def run(script: str, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, address], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_child_process_needs_a_producer_of_its_own() -> None:
    script = """
import os, sys
from pylogd.client import Closed, Producer

def in_child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        except Closed as error:
            print("refused:", error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)

producer = Producer(sys.argv[1])
in_child(lambda: (producer.send("t", b"1").result(), print("not used before: works", flush=True)))
producer.send("t", b"2").result()
in_child(lambda: producer.send("t", b"lost"))
print("the parent's goes on:", producer.send("t", b"3").result() >= 0, flush=True)
producer.close()
"""
    with FakeBroker() as server:
        process = run(script, server.address)
        try:
            said, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0, errors
        first, second, third = said.splitlines()
        assert first == "not used before: works"
        assert second.startswith("refused: the producer was in use when the process forked")
        assert third == "the parent's goes on: True"
        assert len(server.logs[0]) == 3
