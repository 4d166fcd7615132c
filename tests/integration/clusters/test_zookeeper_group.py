"""The blocking consumer with a group in a real ZooKeeper has the same interface as with a broker's group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pylogd
from pylogd.cli.main import pylogd as pylogd_command
from pylogd.client import Admin, Consumer, Producer, Record, TopicPartition
from pylogd.local.broker import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.zookeeper import ZooKeeper

SECONDS = 180.0
SESSION_SECONDS = 4.0
PROGRAM = Path(__file__).resolve().parents[2] / "live" / "frozen_consumer.py"
READINGS = ("poll", "columns", "iterate")
TP = [TopicPartition("events", index) for index in range(4)]
Make = Callable[..., Consumer]


@pytest.fixture
def broker(start_broker: StartBroker, zookeeper: ZooKeeper) -> BrokerProcess:
    broker = start_broker(settings=zookeeper.settings)
    with Admin(broker.address) as admin:
        admin.create_topic("events", 4)
    with Producer(broker.address) as producer:
        for number in range(400):
            producer.send("events", b"%d" % number, partition=number % 4)
    return broker


@pytest.fixture
def make(broker: BrokerProcess, zookeeper: ZooKeeper) -> Iterator[Make]:
    made = []

    def make(**options: Any) -> Consumer:
        made.append(
            Consumer(
                broker.address, coordinator="zookeeper", zookeeper=zookeeper.connect, session_timeout=30.0,
                **{"group_id": "g", "auto_commit_interval": 0.2, **options},
            )
        )  # fmt: skip
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def until(consumers: list[Consumer], condition: Callable[[], object]) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, [consumer.assignment for consumer in consumers]
        for consumer in consumers:
            records += consumer.poll(0.05)
    return records


def test_a_member_that_was_frozen_while_it_decoded_hands_out_nothing_of_it(
    broker: BrokerProcess, zookeeper: ZooKeeper, make: Make
) -> None:
    """Another member reads everything meanwhile, and commits: the first member has to begin behind that."""
    environment = {**os.environ, "PYTHONPATH": str(Path(pylogd.__file__).resolve().parents[1])}
    frozen = {}
    try:
        for reading in READINGS:
            command = [sys.executable, "-P", str(PROGRAM), zookeeper.connect, broker.address, reading]
            frozen[reading] = subprocess.Popen(
                [*command, str(SESSION_SECONDS)], stdout=subprocess.PIPE, text=True, env=environment
            )
        for process in frozen.values():
            assert line(process) == "stopping"
        others = [make(group_id=reading, auto_commit="off") for reading in READINGS]
        for other in others:
            other.subscribe("events")
        until(others, lambda: all(sum(other.position(p) for p in other.assignment) == 400 for other in others))
        for other in others:
            other.commit()
        for process in frozen.values():
            process.send_signal(signal.SIGCONT)
        assert {reading: line(process) for reading, process in frozen.items()} == dict.fromkeys(READINGS, "lost")
        for other in others:
            other.close()
        with Producer(broker.address) as producer:
            for partition in range(4):
                producer.send("events", b"new", partition=partition)
        assert {reading: line(process) for reading, process in frozen.items()} == dict.fromkeys(READINGS, "read 100")
    finally:
        for process in frozen.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a process's output."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_the_lag_of_a_group_is_shown_like_that_of_any_group(
    broker: BrokerProcess, zookeeper: ZooKeeper, make: Make
) -> None:
    consumer = make(auto_commit="off")
    consumer.subscribe("events")
    until([consumer], lambda: sorted(consumer.assignment) == TP)
    consumer.commit(dict.fromkeys(TP[:3], 60))

    def run(*arguments: str) -> str:
        options = ["-z", zookeeper.connect, "-b", broker.address, "--json"]
        done = CliRunner().invoke(pylogd_command, ["groups", *arguments, *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    for lag in ([], ["--lag"]):
        (row,) = json.loads(run("list", *lag))
        assert (row["group"], row["state"], row["kind"], row["coordinator"]) == ("g", "Stable", "zookeeper", None)
    assert (row["members"], row["lag"]) == (1, 120)
    for names in (["g"], ["--regex", "g.*"]):
        (found,) = json.loads(run("describe", *names))
        assert (found["lag"], found["lag_unknown_partitions"], len(found["members"])) == (120, 1, 1)
        assert [row["lag"] for row in found["offsets"]] == [40, 40, 40, None]
        assert found["offsets"][0]["member"] == found["members"][0]["member"]
