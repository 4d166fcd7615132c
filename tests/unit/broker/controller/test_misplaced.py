"""The controller reports replicas on brokers that do not carry their topic's label."""

from __future__ import annotations

from typing import cast

from twisted.logger import ILogObserver, formatEvent, globalLogPublisher

from tests.fakes.metadata import result_of
from tests.unit.broker.controller.conftest import FakeCluster


def test_misplaced_replicas_are_reported_once(three: FakeCluster) -> None:
    events: list[str] = []
    observer = cast(ILogObserver, lambda event: events.append(formatEvent(event)))
    globalLogPublisher.addObserver(observer)

    def carry(node: int, *labels: str) -> list[str]:
        """Let a broker carry these labels; return what the controller logs of them."""
        events.clear()
        result_of(three.peers[node].cluster.own.set_labels(labels))
        three.settle()
        return [event for event in events if "label" in event]

    try:
        for node in three.peers:
            assert carry(node, "online") == []
        admin = three.peers[1].topic_admin
        result_of(admin.create_topic("t", partitions=3, replication_factor=3, configs={"placement.label": "online"}))
        (reported,) = carry(2, "logs")
        assert reported.startswith('broker 2 has 3 replicas of topics with the label "online", which it does not carry')
        assert carry(3, "online", "ssd") == [], "nothing has changed for broker 2"
        (ended,) = carry(2, "online")
        assert ended.startswith('broker 2 has no misplaced replica of label "online" any more')
    finally:
        globalLogPublisher.removeObserver(observer)
