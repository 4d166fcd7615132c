"""Two brokers, the first in a control group: pylogd or Apache Kafka, with the same topic.

The first broker leads half of the topic's partitions and follows the other half, as the brokers of the talk's
experiment do. The second broker has neither limits nor a disk of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from bench.failover import wait_until
from bench.kuaishou.lab import ControlGroup, Disk, Laboratory
from bench.peers.kafka_protocol import Kafka
from pylogd.local.broker import BrokerProcess, free_ports
from pylogd.local.zookeeper import LocalZooKeeper

TOPIC: Final = "t"
#: Apache Kafka's heap has to fit into the group beside its page cache; its default of 1 GB would leave none.
HEAP: Final = ("-Xms192m", "-Xmx192m")
_SECONDS: Final = 60.0


class GroupedKafka(Kafka):
    """Apache Kafka with a small heap, in a control group if `group` is set."""

    group: ControlGroup | None = None

    def arguments(self) -> Sequence[str]:
        program, *rest = super().arguments()
        words = [word for word in rest if not word.startswith(("-Xm", "-XX"))]
        return [*(self.group.prefix if self.group is not None else []), program, *HEAP, *words]


def start_pylogd(lab: Laboratory, disk: Disk, group: ControlGroup, settings: Mapping[str, str]) -> str:
    """Start two brokers of pylogd, the first in the group with `settings`. Return its address."""
    zookeeper = LocalZooKeeper(lab.folder / "zookeeper")
    lab.callback(zookeeper.close)
    zookeeper.start()
    address = ""
    for node, data, prefix in ((1, disk.mount / "data", group.prefix), (2, lab.folder / "data2", [])):
        common = {"node.id": str(node), "zookeeper.connect": zookeeper.hosts, "default.replication.factor": "2"}
        broker = BrokerProcess(
            data, lab.folder / f"broker{node}.log", {**common, **(settings if node == 1 else {})}, prefix=prefix
        )
        lab.callback(broker.kill)
        address = address or broker.address
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
        broker.await_accept(lambda: True, begun)
    return brokers[0].address


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
