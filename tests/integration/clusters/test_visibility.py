"""A client reads what it has written, whichever broker it asks, also while a broker learns late of changes.

Strategy: each of two brokers reaches ZooKeeper through a proxy. While the proxy of one is held up, this broker does not
hear of what the other one does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from pylogd.base.ports import free_ports
from pylogd.client import Admin, Consumer, Record, UnknownTopic
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.integration.conftest import StartBroker
from tests.mirror.proxy import Proxy
from tests.rawclient import wait_until
from tests.zookeeper import ZooKeeper

#: A call that does not wait for the other broker has ended by then.
_AT_ONCE_SECONDS = 2.0
_PATIENCE_SECONDS = 120.0


class Pair:
    """Two brokers: the controller, and the one that may learn late."""

    def __init__(self, brokers: dict[int, tuple[BrokerProcess, Proxy]]) -> None:
        self.bootstrap = ",".join(broker.address for broker, _ in brokers.values())
        wait_until(lambda: all(self._sees_both(broker) for broker, _ in brokers.values()), "two brokers")
        with Admin(self.bootstrap) as admin:
            controller = admin.describe_cluster().controller
        self.first, _ = brokers.pop(controller)
        [(self.second, self._proxy)] = brokers.values()

    @staticmethod
    def _sees_both(broker: BrokerProcess) -> bool:
        with Admin(broker.address) as admin:
            return len(admin.describe_cluster().brokers) == 2

    def learns_late(self, change: Callable[[], object], shown: Callable[[BrokerProcess], bool]) -> None:
        """Make a change of which the second broker learns only after the call has waited for it."""
        with ThreadPoolExecutor(1) as pool:
            with self._proxy.held():
                future: Future[object] = pool.submit(change)
                wait_until(lambda: shown(self.first), "the change at the broker that made it")
                with pytest.raises(TimeoutError):
                    future.result(_AT_ONCE_SECONDS)
                assert not shown(self.second)
            future.result(_PATIENCE_SECONDS)
        assert shown(self.second), "the call has ended before"


@pytest.fixture
def pair(start_broker: StartBroker, zookeeper: ZooKeeper) -> Iterator[Pair]:
    with ExitStack() as stack:
        brokers = {}
        for node, port in zip((1, 2), free_ports(2), strict=True):
            proxy = Proxy(port, int(zookeeper.hosts.rpartition(":")[2]))
            stack.callback(proxy.close)
            connect = f"127.0.0.1:{port}{zookeeper.chroot}"
            settings = {**zookeeper.settings, "zookeeper.connect": connect, "node.id": str(node)}
            broker = start_broker(f"broker-{node}", settings)
            stack.callback(broker.stop)  # before its proxy ends
            brokers[node] = broker, proxy
        yield Pair(brokers)


def knows(topic: str, partitions: int = 1) -> Callable[[BrokerProcess], bool]:
    def shown(broker: BrokerProcess) -> bool:
        with Admin(broker.address) as admin:
            try:
                return len(admin.describe_topic(topic).partitions) >= partitions
            except UnknownTopic:
                return False

    return shown


def test_changes_are_shown_by_all_brokers(pair: Pair) -> None:
    def retains(broker: BrokerProcess) -> bool:
        with Admin(broker.address) as admin:
            [entry] = admin.describe_configs("topic", "t", ["retention.ms"])
            return entry.value == "12345"

    with Admin(pair.bootstrap) as admin:
        pair.learns_late(lambda: admin.create_topic("t", 1, 2), knows("t"))
        pair.learns_late(lambda: admin.create_partitions("t", 3), knows("t", 3))
    with Admin(pair.first.address) as admin:
        admin.describe_cluster()
        pair.learns_late(lambda: admin.alter_configs("topic", "t", {"retention.ms": "12345"}), retains)
        pair.learns_late(lambda: admin.delete_topic("t"), lambda broker: not knows("t")(broker))


def test_a_command_that_creates_its_topic_writes_to_it(pair: Pair) -> None:
    def produce() -> None:
        # A process of its own: in this thread the command could not handle signals.
        command = [*pylogd_command(), "produce", "made", "--create", "-q", "-b", pair.second.address]
        done = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    pair.learns_late(produce, knows("made"))
    with Consumer(pair.bootstrap) as consumer:
        consumer.assign([("made", 0)])
        consumer.seek_to_beginning()
        records: list[Record] = []
        while len(records) < 2:
            records += consumer.poll(1.0)
        assert [record.value for record in records] == [b"one", b"two"]
