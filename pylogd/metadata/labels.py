"""Labels: which brokers may have replicas of a topic. Pure functions over topics and registered brokers.

Strategy: brokers register the labels that they carry (`broker.labels`), and a topic names at most one of them
(`placement.label`). A topic without a label may be on any broker. All who choose brokers for replicas, or check those
that others chose, do so by the functions here.

Rules:
- A replica is placed only on a broker that carries the topic's label. This is about the replicas that a partition has,
  or will have after the reassignment in progress (`PartitionState.target`); those that a reassignment removes may still
  be outside.
- Setting a topic's label and moving its replicas is one write, so that nobody can place a replica in between by the
  other label (`controller.admin`).
- A broker that is not alive carries the labels with which it was last registered.
- A replica whose broker has lost the label is misplaced. It stays, in sync and available, until somebody moves it, and
  it may be kept by a reassignment.

Source: the Kuaishou talk on Kafka (QCon Beijing 2019), physical isolation of business lines by labels.
Must not know: stores, requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pylogd.metadata.errors import InvalidReplicaAssignment
from pylogd.metadata.image import Broker, PartitionState, Topic

#: The label of topics that may be on any broker.
ANY_BROKER: Final = ""
#: The setting of topics.
_LABEL: Final = "placement.label"


def label_of(configs: Mapping[str, str]) -> str:
    """Return the label that a topic's own settings name, `ANY_BROKER` if none."""
    return configs.get(_LABEL, ANY_BROKER)


def with_label(configs: Mapping[str, str], label: str) -> dict[str, str]:
    """Return a topic's own settings with another label."""
    others = {name: value for name, value in configs.items() if name != _LABEL}
    return {**others, _LABEL: label} if label else others


def carries(broker: Broker | None, label: str) -> bool:
    """Return whether a broker may have replicas of topics with this label. A broker that is not known may not."""
    return not label or (broker is not None and label in broker.labels)


def racks_within(brokers: Mapping[int, Broker], label: str) -> dict[int, str | None]:
    """Return the racks, by id, of the brokers that may get new replicas: they carry the label and are not cordoned."""
    return {
        node: broker.rack for node, broker in brokers.items() if carries(broker, label) and not broker.outages.cordoned
    }


def shared_hosts(brokers: Mapping[int, Broker]) -> dict[int, str]:
    """Return the machine (`host.id`) of each broker that names one, by broker id."""
    return {node: broker.host_id for node, broker in brokers.items() if broker.host_id is not None}


def machines(nodes: Iterable[int], brokers: Mapping[int, Broker]) -> int:
    """Return the number of machines that brokers run on; a broker without a `host.id` counts as one machine."""
    hosts = shared_hosts(brokers)
    return len({hosts.get(node, node) for node in nodes})


def carriers(brokers: Mapping[int, Broker], label: str) -> str:
    """Return which of these brokers carry a label, as a clause for an error message."""
    nodes = [str(node) for node in sorted(brokers) if carries(brokers[node], label)]
    if not nodes:
        return f'no live broker carries the label "{label}" (broker.labels)'
    which = f"broker {nodes[0]} carries" if len(nodes) == 1 else f"brokers {', '.join(nodes)} carry"
    return f'{which} the label "{label}" (broker.labels)'


def check_within(nodes: Iterable[int], label: str, live: Mapping[int, Broker], known: Mapping[int, Broker]) -> None:
    """Check that brokers carry a topic's label.

    live: the live brokers by id. known: the last registrations of all brokers, by id, which count for the others.
    Raises `InvalidReplicaAssignment` for the first broker that does not carry it, or whose labels are not known.
    """
    for node in nodes:
        broker = live.get(node, known.get(node))
        if not carries(broker, label):
            why = "is not alive, and its labels are not known" if broker is None else "does not carry the topic's label"
            raise InvalidReplicaAssignment(f"broker {node} {why}: {carriers(live, label)}")


def misplaced(topic: Topic, state: PartitionState, brokers: Mapping[int, Broker]) -> tuple[int, ...]:
    """Return the live brokers that have, or will have, a replica of the partition without carrying the topic's label.

    brokers: the live ones, by id.
    """
    label = label_of(topic.configs)
    return tuple(node for node in state.target if node in brokers and not carries(brokers[node], label))
