"""Labels: which brokers may have replicas of a topic. Pure functions over topics and registered brokers.

Strategy: brokers register the labels that they carry (`broker.labels`), and a topic names at most one of them
(`placement.label`). A topic without a label may be on any broker. Code that chooses brokers for replicas uses
`placement`. Code that checks such choices uses the same rule, or for existing replicas the functions here.

Rules:
- A replica is placed only on a broker that carries the topic's label. This applies to the replicas that a partition
  has, or will have after the reassignment in progress (`PartitionState.target`). Replicas that a reassignment removes
  may still be outside.
- Setting a topic's label and moving its replicas is one write, so that no replica can be placed by the other label in
  between (`controller.admin`).
- A broker that is not alive carries the labels with which it was last registered.
- A replica whose broker has lost the label is misplaced. It stays, in sync and available, until somebody moves it, and
  it may be kept by a reassignment.

Source: the Kuaishou talk on Kafka (QCon Beijing 2019), physical isolation of business lines by labels.
Must not know: stores, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pylogd.base.placement.brokers import Brokers, Candidate
from pylogd.broker.metadata.errors import InvalidReplicaAssignment
from pylogd.broker.metadata.image import Broker, PartitionState, Topic
from pylogd.config.labels import COORDINATOR_LABELS, parse_coordinators

#: The label of topics that may be on any broker.
ANY_BROKER: Final = ""
#: The setting with the label of a topic.
_LABEL: Final = "placement.label"


def _no_limit(_: int) -> None:
    return None


def label_of(configs: Mapping[str, str]) -> str:
    """Return the label that a topic's own settings name; `ANY_BROKER` if they name none."""
    return configs.get(_LABEL, ANY_BROKER)


def label_at(configs: Mapping[str, str], index: int) -> str:
    """Return the label of a partition, by its topic's own settings.

    It is the topic's label, except for partitions of internal topics that belong to a label's groups
    (`config.labels`).
    """
    coordinators = configs.get(COORDINATOR_LABELS.name)
    own = parse_coordinators(coordinators).label_at(index) if coordinators else None
    return label_of(configs) if own is None else own


def with_label(configs: Mapping[str, str], label: str) -> dict[str, str]:
    """Return a topic's own settings with another label."""
    others = {name: value for name, value in configs.items() if name != _LABEL}
    return {**others, _LABEL: label} if label else others


def carries(broker: Broker | None, label: str) -> bool:
    """Return whether a broker may have replicas of topics with this label. An unknown broker may not."""
    return not label or (broker is not None and label in broker.labels)


def candidates(brokers: Mapping[int, Broker], room_on: Callable[[int], int | None] = _no_limit) -> Brokers:
    """Return live brokers in the form that placement needs.

    room_on: see `TopicAdmin.room_on`.
    """
    return Brokers(
        Candidate(
            node, broker.rack, broker.host_id, broker.labels, broker.outages.cordoned, bool(broker.outages.full),
            room_on(node),
        )
        for node, broker in brokers.items()
    )  # fmt: skip


def check_within(nodes: Iterable[int], label: str, live: Mapping[int, Broker], known: Mapping[int, Broker]) -> None:
    """Check that brokers carry a topic's label.

    live: the live brokers by id.
    known: the last registrations of all brokers, by id. They count for brokers that are not live.

    Raises `InvalidReplicaAssignment` for the first broker that does not carry the label, or whose labels are not known.
    """
    for node in nodes:
        broker = live.get(node, known.get(node))
        if not carries(broker, label):
            why = "is not alive, and its labels are not known" if broker is None else "does not carry the topic's label"
            raise InvalidReplicaAssignment(f"broker {node} {why}: {candidates(live).carriers(label)}")


def misplaced(topic: Topic, state: PartitionState, brokers: Mapping[int, Broker]) -> tuple[int, ...]:
    """Return the live brokers that have, or will have, a replica of the partition without carrying its label.

    brokers: the live brokers by id.
    """
    label = label_at(topic.configs, state.index)
    return tuple(node for node in state.target if node in brokers and not carries(brokers[node], label))
