"""Several real brokers on one real ZooKeeper, for the integration tests and the chaos runs.

`pylogd.local.cluster` starts, stops, pauses and kills the brokers by node id. A test waits for what the cluster does
then by asking brokers as any client does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import pytest

from pylogd.base.errors import PylogdError
from pylogd.client import Admin
from pylogd.client import Cluster as Connection
from pylogd.client.core.model import Partition, Topic
from pylogd.local.cluster import LocalBrokers
from tests.zookeeper import ZooKeeper

T = TypeVar("T")

#: How long a test waits for a condition.
PATIENCE_SECONDS: Final = 180.0
#: Short, so that a dead broker is soon detected, but long enough for a live one on a busy machine.
SESSION_MS: Final = 8000


class BrokerCluster(LocalBrokers):
    """Brokers that run from the start, and what clients see of them. `connect` is ZooKeeper's connect string."""

    def __init__(
        self,
        folder: Path,
        connect: str,
        size: int = 3,
        settings: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
        prefix: Sequence[str] = (),
        labels: Sequence[str] = (),
    ) -> None:
        """Start them one after the other, and wait until each sees all others."""
        session = {"zookeeper.session.timeout.ms": str(SESSION_MS)}
        super().__init__(folder, connect, size, {**session, **(settings or {})}, racks, prefix, labels=labels)
        try:
            for node in self.ports:
                self.start(node)
            self.wait_for_brokers(self.ports)
        except BaseException:
            self.kill_all()
            raise

    def ask(self, question: Callable[[Admin], T], node: int | None = None) -> T:
        """Return the answer of one broker, or of any, over a new connection."""
        with Connection(self.bootstrap if node is None else self.address(node)) as connection:
            return question(Admin(connection))

    def until(self, condition: Callable[[], T], what: str = "it", seconds: float = PATIENCE_SECONDS) -> T:
        """Return the first true value of `condition`; pylogd's errors count as not yet. Raises AssertionError."""
        deadline = time.monotonic() + seconds
        while True:
            last: object = None
            try:
                last = value = condition()
                if value:
                    return value
            except (PylogdError, OSError) as error:
                last = error
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- broker {node}\n{self.log(node)[-3000:]}" for node in self.ports)
                raise AssertionError(f"waited {seconds:.0f} s in vain for: {what}; the last value was {last!r}\n{logs}")
            time.sleep(0.05)

    def topic(self, name: str, node: int | None = None) -> Topic:
        """Return a topic as a broker, or any, describes it."""
        return self.ask(lambda admin: admin.describe_topic(name), node)

    def partitions(self, name: str, node: int | None = None) -> Sequence[Partition]:
        """Return a topic's partitions as a broker, or any, describes them."""
        return self.topic(name, node).partitions

    def wait_for_brokers(self, nodes: Sequence[int] | Mapping[int, object]) -> None:
        """Wait until each of these brokers sees exactly these as alive."""
        wanted = sorted(nodes)
        for node in wanted:
            self.until(
                lambda node=node: self._alive(node) == wanted,  # type: ignore[misc]
                f"that broker {node} sees {wanted}",
            )

    def _alive(self, node: int) -> list[int]:
        return sorted(broker.node_id for broker in self.ask(lambda admin: admin.describe_cluster(), node).brokers)

    def wait_for_isr(self, name: str, count: int) -> Sequence[Partition]:
        """Wait until all running brokers agree that each partition has a leader and `count` replicas in sync.

        Brokers learn of a change one after the other: a leader may not know yet what another broker says.
        """

        def enough() -> Sequence[Partition]:
            found, *others = (self.partitions(name, node) for node in self.brokers if node not in self.paused)
            alike = all(seen == found for seen in others)
            return found if alike and all(len(one.isr) >= count and one.leader >= 0 for one in found) else ()

        return self.until(enough, f"that all see {count} replicas of {name} in sync")

    def wait_for_leaders(self, name: str, nodes: Sequence[int]) -> Sequence[Partition]:
        """Wait until each partition of a topic is led by one of these brokers, and all of these know it."""
        found: Sequence[Partition] = ()
        for node in nodes:

            def led(node: int = node) -> Sequence[Partition]:
                seen = self.partitions(name, node)
                return seen if all(one.leader in nodes for one in seen) else ()

            found = self.until(led, f"that broker {node} sees leaders of {name} among {list(nodes)}")
        return found


@pytest.fixture
def start_cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Callable[..., BrokerCluster]]:
    """Return what starts clusters on the run's ZooKeeper; they are stopped and checked at the test's end."""
    started: list[BrokerCluster] = []

    def start(
        size: int = 3, settings: Mapping[str, str] | None = None, racks: Sequence[str] = (), prefix: Sequence[str] = (),
        labels: Sequence[str] = (),
    ) -> BrokerCluster:  # fmt: skip
        folder = tmp_path / f"cluster{len(started)}"
        folder.mkdir()
        started.append(BrokerCluster(folder, zookeeper.connect, size, settings, racks, prefix, labels))
        return started[-1]

    yield start
    faults = [fault for cluster in started for fault in cluster.close()]
    assert not faults, "\n".join(faults)
