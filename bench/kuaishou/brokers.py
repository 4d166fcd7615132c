"""Brokers in control groups: pylogd or Apache Kafka, with the same topic.

`start_pylogd` and `start_kafka` start two brokers, the first in a group, on a disk. It leads half of the topic's
partitions and follows the other half, as the brokers of the talk's experiment do; the second has no limits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from bench.failover import wait_until
from bench.kuaishou.lab import ControlGroup, Disk, Laboratory
from bench.peers.kafka_protocol import Kafka
from conformance.checks import Missing, last_line
from pylogd.local.broker import BrokerProcess, free_ports
from pylogd.local.zookeeper import LocalZooKeeper

TOPIC: Final = "t"
#: Apache Kafka's heap has to fit into the group beside its page cache; its default of 1 GB would leave none.
HEAP: Final = ("-Xms192m", "-Xmx192m")
_SECONDS: Final = 60.0


class GroupedKafka(Kafka):
    """Apache Kafka with a small heap, in a control group if `group` is set."""

    group: ControlGroup | None = None

    def __init__(self, folder: Path, node: int, voters: Mapping[int, int]) -> None:
        super().__init__(folder, node, voters=voters)
        with self._properties.open("a") as file:  # by default 128 MB, of which nothing here is cleaned
            file.write("log.cleaner.dedupe.buffer.size=8388608\n")

    def arguments(self) -> Sequence[str]:
        program, *rest = super().arguments()
        words = [word for word in rest if not word.startswith(("-Xm", "-XX"))]
        return [*(self.group.prefix if self.group is not None else []), program, *HEAP, *words]


def start_zookeeper(lab: Laboratory) -> str:
    """Start a ZooKeeper server outside of all groups. Return its connect string."""
    zookeeper = LocalZooKeeper(lab.folder / "zookeeper")
    lab.callback(zookeeper.close)
    zookeeper.start()
    return zookeeper.hosts


def start_broker(
    lab: Laboratory,
    node: int,
    connect: str,
    data: Path,
    group: ControlGroup | None,
    settings: Mapping[str, str],
    second: Path | None = None,
) -> str:
    """Start a broker of pylogd, in a group if one is given. Return its address. second: another data directory."""
    common = {"node.id": str(node), "zookeeper.connect": connect, "default.replication.factor": "2"}
    log, prefix = lab.folder / f"broker{node}.log", group.prefix if group is not None else []
    arguments = ["--data", str(second)] if second is not None else []
    broker = BrokerProcess(data, log, {**common, **settings}, arguments, prefix=prefix)
    lab.callback(broker.kill)
    return broker.address


def start_pylogd(lab: Laboratory, disk: Disk, group: ControlGroup, settings: Mapping[str, str]) -> str:
    """Start two brokers of pylogd, the first in the group with `settings`. Return its address."""
    connect = start_zookeeper(lab)
    address = start_broker(lab, 1, connect, disk.mount / "data", group, settings)
    start_broker(lab, 2, connect, lab.folder / "data2", None, {})
    return address


def start_kafka(lab: Laboratory, disk: Disk, group: ControlGroup) -> str:
    """Start two brokers of Apache Kafka, the first in the group. Return its address. Raises Missing."""
    controllers = dict(zip((1, 2), free_ports(2), strict=True))
    brokers = [GroupedKafka(folder, node, voters=controllers) for node, folder in ((1, disk.mount), (2, lab.folder))]
    brokers[0].group = group
    begun = time.monotonic()
    for broker in brokers:
        lab.callback(broker.stop)
        broker.launch()
    for broker in brokers:
        try:
            broker.await_accept(partial(_runs, broker.pid), begun)
        except Missing as error:
            log = (broker.folder / "log").read_text(errors="replace")
            raise Missing(f"{error}; the last line of its log: {last_line(log)}") from None
    return brokers[0].address


def _runs(pid: int) -> bool:
    """Return whether a child runs: one that was killed, for lack of memory, stays as a zombie."""
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def make_topic(address: str, assignment: Sequence[Sequence[int]]) -> None:
    """Create the topic with these replicas; return once the first of each leads and all are in sync."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    wait_until(partial(_alive, admin, {node for nodes in assignment for node in nodes}), "all brokers are there")
    topic = NewTopic(TOPIC, len(assignment), replica_assignment=[list(nodes) for nodes in assignment])
    admin.create_topics([topic])[TOPIC].result(_SECONDS)
    wait_until(partial(_in_sync, admin, assignment), "all replicas are in sync")


def _alive(admin: AdminClient, nodes: set[int]) -> bool:
    return nodes <= set(admin.list_topics(timeout=_SECONDS).brokers)


def _in_sync(admin: AdminClient, assignment: Sequence[Sequence[int]]) -> bool:
    found = admin.list_topics(TOPIC, timeout=_SECONDS).topics[TOPIC].partitions
    return len(found) == len(assignment) and all(
        found[index].leader == nodes[0] and set(found[index].isrs) == set(nodes)
        for index, nodes in enumerate(assignment)
    )
