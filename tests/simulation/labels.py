"""A history of five labelled brokers: faults as ever, random moves, and changes of the topic's label.

Checked whenever the store has changed: every replica that the topic has, or will have after the reassignment in
progress, is on a broker that carries the topic's label, whatever was killed, cut off or asked for meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pylogd.broker.metadata.labels import label_of
from pylogd.broker.metadata.layout import decode_configs, topic_config_path
from tests.simulation.history import History, Violation
from tests.simulation.nemesis import TOPIC


class LabelledHistory(History):
    """Brokers 1 to 4 carry the label `online`, 3 to 5 `logs`. The topic begins with `online`, and changes between both.

    checked: how often the invariant was checked.
    """

    labels: Mapping[int, str] = MappingProxyType(
        {1: "online", 2: "online", 3: "online,logs", 4: "online,logs", 5: "logs"}
    )
    topic_configs: Mapping[str, str] = MappingProxyType({"placement.label": "online"})

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, brokers=5, **settings)
        self.checked = 0
        self.label = "online"

    def _carriers(self, label: str) -> list[int]:
        return [node for node, labels in self.labels.items() if label in labels.split(",")]

    def read_states(self) -> bool:
        """Read the partitions' states from the store, and check where the replicas are."""
        before = self.stored
        changed = super().read_states()
        node = self.tree.nodes.get(topic_config_path(TOPIC))
        if self.stored != before and node is not None:
            label = label_of(decode_configs(TOPIC, node.data))
            if label != self.label:
                self.say(f"the label is {label}")
            self.label = label
            self._check_labels()
        return changed

    def _check_labels(self) -> None:
        self.checked += 1
        for state in self.states:
            outside = set(state.target).difference(self._carriers(self.label))
            if outside:
                raise Violation(f"{sorted(outside)} do not carry the label {self.label}: {state}")

    def _relabel(self) -> None:
        """Change the label of the topic, with moves that fit the new one or, seldom, do not."""
        ready = [broker for broker in self._alive() if broker.ready and broker.topics.get(TOPIC) is not None]
        if ready:
            broker, label = self.rng.choice(ready), self.rng.choice(["online", "logs"])
            nodes = self._carriers(label) if self.rng.random() < 0.9 else sorted(self.brokers)
            targets = {(TOPIC, index): self.rng.sample(nodes, 3) for index in range(self.partitions)}
            self.say(f"{broker.node_id} is asked to change the label to {label}, with {list(targets.values())}")
            done = broker.partition_admin.move(targets, labels={TOPIC: label})
            done.addCallbacks(lambda _: None, self._not_moved)

    _troubles = (*History._troubles, _relabel, _relabel, _relabel)
