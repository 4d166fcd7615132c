"""Members of a group in a real ZooKeeper, with real brokers, while members are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import pylogd
from pylogd.client import Admin, Consumer, Producer, TopicPartition
from pylogd.client.core.errors import Closed
from pylogd.client.zookeeper.bridge import ZooKeeperMembership
from pylogd.client.zookeeper.errors import NotOwner, ZooKeeperUnavailable
from pylogd.client.zookeeper.events import Assigned
from pylogd.local.zookeeper import LocalZooKeeper
from tests.integration.conftest import StartBroker
from tests.zookeeper import ZooKeeper, ZooKeeperBench

SEED = 20261121
SECONDS = 60.0
PATIENCE_SECONDS = 180.0
SESSION_MS = 3000
LONG_MS = 30_000  # for sessions that must not expire on a busy machine
PROCESSES = 8
PARTITIONS = 24
BACKLOG = 1000  # records in each partition
GROUP, TOPIC = "readers", "read"
PROGRAM = Path(__file__).resolve().parents[2] / "live" / "zookeeper_consumer.py"


class Readers:
    """The consumer processes and their logs."""

    def __init__(self, directory: Path, connect: str, bootstrap: str) -> None:
        self._directory = directory
        self._arguments = [connect, bootstrap, GROUP, TOPIC]
        self._count = 0
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._count += 1
        log = self._directory / f"reader-{self._count:03d}.log"
        command = [sys.executable, "-P", str(PROGRAM), *self._arguments, str(log), str(SESSION_MS)]
        environment = {**os.environ, "PYTHONPATH": str(Path(pylogd.__file__).resolve().parents[1])}
        with log.with_suffix(".err").open("wb") as errors:
            self.running[self._count] = subprocess.Popen(command, stderr=errors, env=environment)

    def end(self, number: int, how: signal.Signals) -> int:
        """End a process by a signal. Return its exit status."""
        self.check()
        process = self.running.pop(number)
        process.send_signal(how)
        return process.wait(PATIENCE_SECONDS)

    def check(self) -> None:
        """Check that no process ended by itself."""
        assert all(process.poll() is None for process in self.running.values()), self.errors()

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (process, entry) of all logs up to now, by time.

        The logs are read one after the other while they grow. Entries later than the opening of the first log are left
        out: without them the list is consistent, since a process logs an event before others can react to it.
        """
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        found = []
        for log in sorted(self._directory.glob("reader-*.log")):
            for line in log.read_bytes().split(b"\n")[:-1]:
                found.append((log.stem, json.loads(line)))
        return sorted((entry for entry in found if entry[1]["at"] <= now), key=lambda entry: entry[1]["at"])

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("reader-*.err")))


def until(condition: Callable[[], object], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@contextlib.contextmanager
def producing(bootstrap: str) -> Iterator[None]:
    """Write to all partitions of the topic, a few records at a time, while the context lasts."""
    enough = threading.Event()
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            with Producer(bootstrap) as producer:
                while not enough.wait(0.1):
                    for partition in range(PARTITIONS):
                        producer.send(TOPIC, b"x" * 20, partition=partition)
                    producer.flush()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
    assert not failures, failures


def write_backlog(producer: Producer) -> dict[int, int]:
    """Write as much as takes the readers a moment to catch up with. Return the ends of the partitions."""
    some = [(None, b"x" * 20)] * BACKLOG
    sets = {partition: producer.send_set(TOPIC, some, partition=partition) for partition in range(PARTITIONS)}
    return {partition: each.result(PATIENCE_SECONDS) + BACKLOG for partition, each in sets.items()}


def disturb(readers: Readers, producer: Producer, rng: random.Random) -> int:
    """Kill, terminate, pause and start processes for a minute. At the end all of them run.

    Return how often a process was paused while the group caught up.
    """
    end = time.monotonic() + SECONDS
    frozen: dict[int, float] = {}
    behind = 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.5, 3.0))
        for number in [n for n, thaw in frozen.items() if thaw <= time.monotonic()]:
            del frozen[number]
            readers.running[number].send_signal(signal.SIGCONT)
        able = sorted(readers.running.keys() - frozen.keys())
        number = rng.choice(able)
        how = rng.choices(["kill", "leave", "freeze"], [5, 2, 2 if len(frozen) < 2 else 0])[0]
        if how == "freeze":
            ends = write_backlog(producer)
            time.sleep(rng.uniform(0.0, 0.1))
            readers.running[number].send_signal(signal.SIGSTOP)
            read = check_logs(readers.lines())
            behind += any(read[partition] < end for partition, end in ends.items())
            frozen[number] = time.monotonic() + rng.choice([0.5, 1.0, 2.0]) * SESSION_MS / 1000
        else:
            readers.end(number, signal.SIGKILL if how == "kill" else signal.SIGTERM)
            readers.start()
    for number in frozen:
        readers.running[number].send_signal(signal.SIGCONT)
    return behind


def check_logs(lines: list[tuple[str, dict[str, Any]]]) -> dict[int, int]:
    """Check the logs of all readers. Return the offset up to which each partition was read completely.


    A paused reader learns late of an assignment, which may be outdated: an assignment counts from its first read.
    """
    owner: dict[int, str] = {}
    late: dict[int, str] = {}
    reads: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
    for process, line in lines:
        if "assigned" in line:
            for index, offset in line["assigned"].items():
                assert (offset or 0) <= reads[int(index)], f"{line}: committed, but never read"
                if line["may"]:
                    owner[int(index)] = process
                    late.pop(int(index), None)
                else:
                    late[int(index)] = process
        elif "read" in line:
            partition, start, stop = line["read"]
            if late.get(partition) == process:
                owner[partition] = late.pop(partition)
            assert owner.get(partition) == process, (
                f"{process} read while it was claimed by {owner.get(partition)}: {line}"
            )
            assert start <= reads[partition], f"{process} skipped {reads[partition]}: {line}"
            reads[partition] = max(reads[partition], stop)
    return reads


@pytest.mark.timeout(600)
def test_no_record_is_lost_while_eight_members_are_killed(
    zookeeper: ZooKeeper, start_broker: StartBroker, tmp_path: Path
) -> None:
    brokers = [start_broker(f"broker-{n}", {**zookeeper.settings, "node.id": str(n)}) for n in (1, 2)]
    bootstrap = ",".join(broker.address for broker in brokers)
    with Admin(bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS, 1)
    readers = Readers(tmp_path, zookeeper.connect, bootstrap)
    client = KazooClient(zookeeper.connect, timeout=60)
    client.start(PATIENCE_SECONDS)
    base = f"/consumers/{GROUP}"

    def settled() -> bool:
        members = client.get_children(f"{base}/ids")
        owners = [client.get(f"{base}/owners/{TOPIC}/{index}")[0].decode() for index in range(PARTITIONS)]
        return len(members) == PROCESSES and {name.rpartition("-")[0] for name in owners} == set(members)

    def all_read() -> bool:
        return check_logs(readers.lines()) == ends

    try:
        for _ in range(PROCESSES):
            readers.start()
        with producing(bootstrap), Producer(bootstrap) as producer:
            assert disturb(readers, producer, random.Random(SEED)), "no member was paused while the group caught up"
        with Consumer(bootstrap) as consumer:
            partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
            ends = {p.partition: offset for p, offset in consumer.end_offsets(partitions).items()}
        until(lambda: safely(settled), lambda: f"not settled\n{readers.errors()}")
        until(all_read, lambda: f"read {check_logs(readers.lines())} of {ends}\n{readers.errors()}")
        for number in list(readers.running):
            assert readers.end(number, signal.SIGTERM) == 0, readers.errors()
    finally:
        readers.stop()
    assert check_logs(readers.lines()) == ends
    # A member whose connection is lost while it leaves can't end its session: its node goes when that expires.
    until(lambda: not client.get_children(f"{base}/ids"), lambda: f"not gone\n{readers.errors()}")
    committed = {i: int(client.get(f"{base}/offsets/{TOPIC}/{i}")[0]) for i in range(PARTITIONS)}
    assert committed == ends
    client.stop()
    client.close()


def safely(condition: Callable[[], bool]) -> bool:
    """Return whether the condition holds. Nodes may be deleted while it is evaluated."""
    try:
        return condition()
    except NoNodeError:
        return False


def test_the_lease_is_the_session_timeout_that_the_server_grants(tmp_path: Path) -> None:
    with LocalZooKeeper(tmp_path, options={"maxSessionTimeout": "4000"}) as server:
        bench = ZooKeeperBench(server.hosts, session_timeout_ms=20_000)
        store = bench.store()
        bench.wait(store.start())
        assert store.session_timeout == 4.0
        bench.close()


def with_topic(connect: str) -> None:
    """Register a topic in the tree as a broker does."""
    client = KazooClient(connect)
    client.start(PATIENCE_SECONDS)
    client.create(f"/brokers/topics/{TOPIC}", b'{"version":1,"partitions":{"0":[1],"1":[1]}}', makepath=True)
    client.stop()
    client.close()


def assigned(membership: ZooKeeperMembership) -> set[TopicPartition]:
    """Wait for the first assignment and return it."""
    found: set[TopicPartition] = set()

    def look() -> bool:
        for event in membership.poll(0.1):
            assert isinstance(event, Assigned)
            found.update(event.offsets)
        return bool(found)

    until(look, lambda: "nothing is assigned")
    return found


def test_a_membership_can_be_polled_by_a_blocking_caller(zookeeper: ZooKeeper) -> None:
    with_topic(zookeeper.connect)
    membership = ZooKeeperMembership(zookeeper.connect, GROUP, TOPIC, session_timeout_ms=LONG_MS)
    membership.start(PATIENCE_SECONDS)
    partitions = assigned(membership)
    assert partitions == {TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)}
    assert membership.may_fetch
    membership.commit({TopicPartition(TOPIC, 0): 5})
    with pytest.raises(NotOwner):
        membership.commit({TopicPartition(TOPIC, 7): 5})
    membership.store({TopicPartition(TOPIC, 1): 6})
    assert membership.committed(partitions)[TopicPartition(TOPIC, 0)] == 5
    membership.close(PATIENCE_SECONDS)
    assert not membership.may_fetch
    for late in (membership.poll, lambda: membership.commit({})):
        with pytest.raises(Closed):
            late()
    again = ZooKeeperMembership(zookeeper.connect, GROUP, TOPIC, session_timeout_ms=LONG_MS)
    again.start(PATIENCE_SECONDS)
    assert assigned(again) == partitions
    assert again.committed(partitions) == {TopicPartition(TOPIC, 0): 5, TopicPartition(TOPIC, 1): 6}
    again.close(PATIENCE_SECONDS)


def test_ctrl_c_ends_a_waiting_poll(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with_topic(zookeeper.connect)
    program = f"""
from pylogd.client.zookeeper.bridge import ZooKeeperMembership
membership = ZooKeeperMembership({zookeeper.connect!r}, "g", {TOPIC!r})
membership.start()
try:
    while True:
        print(len(membership.poll(3600)), flush=True)
except KeyboardInterrupt:
    membership.close()
    print("closed", flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(pylogd.__file__).resolve().parents[1])}
    process = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_SECONDS)[0].endswith(b"closed\n")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_an_unreachable_zookeeper_is_an_error(own_zookeeper: LocalZooKeeper) -> None:
    with_topic(own_zookeeper.hosts)
    membership = ZooKeeperMembership(own_zookeeper.hosts, GROUP, TOPIC, operation_timeout=1.0)
    membership.start(PATIENCE_SECONDS)
    partitions = assigned(membership)
    own_zookeeper.kill()
    until(lambda: not membership.may_fetch, lambda: "fetches on without a ZooKeeper")
    with pytest.raises(ZooKeeperUnavailable):
        membership.commit(dict.fromkeys(partitions, 1))
    membership.close(2.0)
    other = ZooKeeperMembership(own_zookeeper.hosts, GROUP, TOPIC)
    with pytest.raises(ZooKeeperUnavailable, match="can't connect"):
        other.start(1.0)
