"""Log directories of real brokers fail or fill up: leaders move, and acknowledged records are kept."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import Consumer, Producer
from pylogd.client.core.model import Partition
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.clusters import BrokerCluster
from tests.zookeeper import ZooKeeper

VALUE = bytes(range(256)) * 40
SECONDS = 180
SETTINGS = {"min.insync.replicas": "2", "internal.segment.bytes": "262144"}
_MOUNT = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=12m none "$0" && exec "$@"']


class TwoDirectories(BrokerCluster):
    """Brokers with two log directories each. The second of each may be a small volume."""

    small = False

    def directories(self, node: int) -> tuple[Path, Path]:
        """Return a broker's log directories."""
        return self.folder / f"broker{node}", self.folder / f"broker{node}-second"

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        first, second = self.directories(node)
        prefix = [*_MOUNT, str(second)] if self.small else []
        if self.small:
            second.mkdir(exist_ok=True)
        return BrokerProcess(
            first, self.folder / f"broker{node}.log", settings, ["--data", str(second)], port=self.ports[node],
            prefix=prefix, wait=False,
        )  # fmt: skip

    def holding(self, node: int, name: str) -> Path:
        """Return the log directory of a broker that contains the partition directory `name`."""
        root = Path(f"/proc/{self.brokers[node].pid}/root")
        (found,) = (one for one in self.directories(node) if Path(f"{root}{one}/{name}").exists())
        return Path(f"{root}{found}") if self.small else found

    def errors(self, node: int) -> dict[str, str | None]:
        """Return the error, or None, that a broker reports for each log directory."""
        return {found.path: found.error for found in self.ask(lambda admin: admin.describe_log_dirs([node]), node)}


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[TwoDirectories]:
    made = TwoDirectories(tmp_path, zookeeper.connect, 3, SETTINGS)
    yield made
    faults = made.close()
    assert not faults, "\n".join(faults)


def write(cluster: BrokerCluster, count: int) -> None:
    """Write records with acks=all."""
    with Producer(cluster.bootstrap, delivery_timeout=SECONDS) as producer:
        for delivery in [producer.send("t", VALUE, partition=0) for _ in range(count)]:
            delivery.result(SECONDS)


def read(cluster: BrokerCluster, count: int) -> None:
    """Read `count` records, and check that each has its offset."""
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([("t", 0)])
        offsets: list[int] = []
        while len(offsets) < count:
            records = consumer.poll(SECONDS)
            assert records, "nothing came"
            assert all(record.value == VALUE for record in records)
            offsets += [record.offset for record in records]
    assert offsets == list(range(count))


def wait_for(cluster: BrokerCluster, what: str, holds: Callable[[Partition], bool]) -> Partition:
    """Wait until the partition's metadata is as wanted on all running brokers. Return it."""

    def found() -> Partition | None:
        states = [cluster.partitions("t", node)[0] for node in cluster.brokers]
        return states[0] if all(map(holds, states)) else None

    state = cluster.until(found, what)
    assert state is not None
    return state


def fail_directory(path: Path) -> Path:
    """Move a directory away and prevent its re-creation. Return its new path."""
    away = path.with_name(path.name + ".away")
    path.rename(away)
    path.write_text("")
    return away


def bring_back(path: Path, away: Path) -> None:
    path.unlink()
    away.rename(path)


@pytest.mark.parametrize("again", ["by a restart", "by a command"])
def test_a_leader_whose_directory_fails_is_replaced(cluster: TwoDirectories, again: str) -> None:
    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    (before,) = cluster.wait_for_isr("t", 3)
    write(cluster, 10)
    leader = before.leader
    path = cluster.holding(leader, "t-0")
    away = fail_directory(path)
    after = wait_for(cluster, "that another broker leads", lambda one: one.leader not in (leader, -1))
    assert set(after.isr) == set(before.replicas) - {leader}
    assert after.offline == (leader,)
    write(cluster, 10)
    errors = cluster.errors(leader)
    assert errors.pop(str(path)) == ErrorCode.KAFKA_STORAGE_ERROR.name
    assert set(errors.values()) == {None}
    bring_back(path, away)
    if again == "by a restart":
        cluster.restart(leader)
    else:
        reopen = [*pylogd_command(), "cluster", "reopen", str(leader), str(path), "-b", cluster.bootstrap]
        told = subprocess.run(reopen, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert told.returncode == 0, told.stderr
        assert "with 1 partitions" in told.stderr
    state = wait_for(cluster, "that all are in sync again", lambda one: len(one.isr) == 3)
    assert state.offline == ()
    assert set(cluster.errors(leader).values()) == {None}
    read(cluster, 20)


def test_an_idle_follower_with_a_failed_directory_is_not_elected(cluster: TwoDirectories) -> None:
    cluster.ask(lambda admin: admin.create_topic("t", 1, 3))
    (before,) = cluster.wait_for_isr("t", 3)
    write(cluster, 10)
    preferred = next(node for node in before.replicas if node != before.leader)
    fail_directory(cluster.holding(preferred, "t-0"))
    wait_for(cluster, "that it is out of sync", lambda one: preferred not in one.isr and one.offline == (preferred,))
    cluster.kill(before.leader)
    (other,) = set(before.replicas) - {preferred, before.leader}
    wait_for(cluster, "that the third broker leads", lambda one: one.leader == other)
    cluster.start(before.leader)  # with a single in-sync replica nothing more is committed (KIP-966)
    read(cluster, 10)


def test_a_leader_with_a_full_disk_is_replaced_until_there_is_room(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    try:
        subprocess.run([*_MOUNT, str(tmp_path), "true"], check=True, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this system does not allow mounting a volume in a namespace")

    class Small(TwoDirectories):
        small = True

    cluster = Small(tmp_path, zookeeper.connect, 3, SETTINGS)
    try:
        # Each broker has one of its two partitions in each directory.
        cluster.ask(lambda admin: admin.create_topic("t", 2, 3))
        cluster.wait_for_isr("t", 3)
        (before, other) = cluster.partitions("t")
        (index, leader) = next(
            (one.index, one.leader) for one in (before, other)
            if cluster.holding(one.leader, f"t-{one.index}").name.endswith("-second")
        )  # fmt: skip
        filler = cluster.holding(leader, f"t-{index}") / "filler"
        free = os.statvfs(filler.parent)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 100_000))

        def state(node: int) -> Partition:
            return cluster.partitions("t", node)[index]

        with Producer(cluster.bootstrap, delivery_timeout=SECONDS) as producer:
            for delivery in [producer.send("t", VALUE, partition=index) for _ in range(60)]:
                delivery.result(SECONDS)
        cluster.until(lambda: all(state(n).leader != leader for n in cluster.brokers), "that another broker leads")
        assert leader not in state(leader).isr
        assert state(leader).offline == (), "records on a full disk can be read"
        filler.unlink()
        cluster.until(lambda: all(len(state(n).isr) == 3 for n in cluster.brokers), "that it is in sync again")
    finally:
        faults = cluster.close()
    assert not faults, "\n".join(faults)
