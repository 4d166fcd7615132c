"""The time that partitions have no leader after a kill of their broker: until detection, election, the next write.

    python -m bench failover [--partitions 1000] [--topics 10] [--brokers 3] [--rounds 3]

Brokers of `pylogd cluster up` on this machine, default settings. One that leads its share of partitions is killed with
SIGKILL. Measured from the kill: when ZooKeeper deletes its registration (detection), when each remaining broker reports
live leaders for all partitions (elected), and when a write with acks=all to every partition is acknowledged (writable).
Also measured: how long a broker takes to become the controller of all partitions, and to answer their metadata.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from kazoo.client import KazooClient

from pylogd.client import Admin, Cluster, NewTopic, Producer
from pylogd.local.cluster import LocalCluster
from pylogd.wire.messages.metadata import MetadataRequest

WAIT_SECONDS = 120.0


def main() -> None:
    """Run it and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows = [measure(arguments.partitions, arguments.topics, arguments.brokers) for _ in range(arguments.rounds)]
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:48} {statistics.median(values):8.3f} s   ({', '.join(f'{value:.3f}' for value in values)})")


def measure(partitions: int, topics: int, brokers: int) -> dict[str, float]:
    """Run one round. Return seconds by what was measured."""
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder), brokers) as cluster:
        names = [f"t{index}" for index in range(topics)]
        with Admin(cluster.bootstrap) as admin:
            begin = time.monotonic()
            new = [NewTopic(name, partitions // topics, min(brokers, 3)) for name in names]
            for error in admin.create_topics(new).values():
                if error is not None:
                    raise error
            created = time.monotonic() - begin
            wait_until(lambda: in_sync(admin, topics, min(brokers, 3)), "all replicas are in sync")
        metadata = answer_time(cluster.address(1))
        return {
            f"{partitions} partitions made": created,
            "metadata of all of them": metadata,
            **kill(cluster, names, partitions // topics),
        }


def kill(cluster: LocalCluster, names: list[str], each: int) -> dict[str, float]:
    """Kill a broker that leads partitions and is not the controller. Return seconds by what was measured."""
    with Admin(cluster.bootstrap) as admin:
        controller = admin.describe_cluster().controller
    victim = next(node for node in cluster.brokers if node != controller)
    left = [broker.address for node, broker in cluster.brokers.items() if node != victim]
    zookeeper = KazooClient(cluster.zookeeper.hosts)
    zookeeper.start()
    gone = threading.Event()
    found: list[float] = []

    def note(_: object) -> None:
        found.append(time.monotonic())
        gone.set()

    zookeeper.exists(f"/brokers/ids/{victim}", watch=note)
    with Producer(left, acks="all") as producer:
        for delivery in [producer.send(name, b"before", partition=index) for name in names for index in range(each)]:
            delivery.result(WAIT_SECONDS)
        begin = time.monotonic()
        cluster.kill(victim)
        if not gone.wait(WAIT_SECONDS):
            raise RuntimeError("the registration of the killed broker was not deleted in time")
        admins = [Admin(address) for address in left]
        for admin in admins:
            wait_until(lambda admin=admin: led(admin, victim), "all have a leader")
        elected = time.monotonic()
        for admin in admins:
            admin.close()
        for delivery in [producer.send(name, b"after", partition=index) for name in names for index in range(each)]:
            delivery.result(WAIT_SECONDS)
        writable = time.monotonic()
    zookeeper.stop()
    zookeeper.close()
    return {
        "killed to detected": found[0] - begin,
        "detected to elected, on every broker": elected - found[0],
        "detected to written to, all with acks=all": writable - found[0],
        "killed to written to, all with acks=all": writable - begin,
    }


def in_sync(admin: Admin, topics: int, factor: int) -> bool:
    """Return whether there are `topics` topics whose partitions all have `factor` replicas in sync."""
    found = admin.list_topics()
    return len(found) == topics and all(len(one.isr) == factor for topic in found for one in topic.partitions)


def led(admin: Admin, dead: int) -> bool:
    """Return whether every partition has a leader other than the dead broker."""
    return all(one.leader not in (dead, -1) for topic in admin.list_topics() for one in topic.partitions)


def answer_time(address: str) -> float:
    """Return the seconds that a broker takes to answer a Metadata request for all topics, at the second request."""
    with Cluster(address) as cluster:
        request = MetadataRequest(topics=None)
        cluster.request(request)
        begin = time.monotonic()
        cluster.request(request)
        return time.monotonic() - begin


def wait_until(condition: object, what: str) -> None:
    """Wait until `condition` is true. Raises RuntimeError if it does not become so in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {WAIT_SECONDS:.0f} s: {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
