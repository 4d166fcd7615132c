"""A change of one partition costs its brokers the same, however many partitions the topic has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.image import Topic, TopicChange, TopicUpdate
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts
from tests.hotpath import instructions


@pytest.fixture
def parts(tmp_path: Path) -> object:
    made = Parts(tmp_path)
    yield made
    made.close()


def change_state(parts: Parts, index: int) -> None:
    """Write a partition's state anew."""
    topic = parts.topics.get("t")
    assert topic is not None
    states = list(topic.partitions)
    states[index] = replace(states[index], partition_epoch=states[index].partition_epoch + 1)
    result_of(parts.topics.write_states([TopicUpdate(topic, tuple(states))]))


def test_one_partition_of_many(parts: Parts) -> None:
    found = []
    subscribed: list[TopicChange] = []
    parts.topics.subscribe(subscribed.append)
    for partitions in (20, 400):
        parts.create("t", partitions=partitions)
        change_state(parts, 10)
        states = parts.partitions.by_name
        assert states["t", 10].state is parts.topics.get("t").partitions[10]  # type: ignore[union-attr]
        parts.hosting._unsubscribe[0]()
        change_state(parts, 10)
        assert states["t", 10].state is not parts.topics.get("t").partitions[10]  # type: ignore[union-attr]
        found.append(instructions(lambda: result_of(parts.hosting.topic_changed(subscribed[-1]))))
        assert states["t", 10].state is parts.topics.get("t").partitions[10]  # type: ignore[union-attr]
        parts.hosting._unsubscribe[0] = parts.topics.subscribe(parts.hosting._registry_changed)
        result_of(parts.topic_admin.delete_topic("t"))
        result_of(parts.hosting.settled("t"))
        assert not parts.partitions.by_name
    few, many = found
    assert many < few * 1.05


def test_a_partition_that_was_removed_is_hosted_again(parts: Parts) -> None:
    """Even if the metadata has not changed, and though others are being made at the time."""
    parts.create("t", partitions=3)
    parts.hosting._unhost(parts.partitions.by_name["t", 1])
    assert set(parts.partitions.by_name) == {("t", 0), ("t", 2)}
    change_state(parts, 0)
    assert set(parts.partitions.by_name) == {("t", 0), ("t", 1), ("t", 2)}
    parts.threads.hold = True
    adding: Deferred[Topic] = parts.topic_admin.add_partitions("t", 4)
    result_of(adding)
    parts.hosting._unhost(parts.partitions.by_name["t", 1])
    parts.threads.release()
    parts.threads.hold = False
    result_of(parts.hosting.settled("t"))
    assert set(parts.partitions.by_name) == {("t", 0), ("t", 2), ("t", 3)}
    change_state(parts, 0)
    assert set(parts.partitions.by_name) == {("t", index) for index in range(4)}


def test_nothing_is_kept_of_a_deleted_topic(parts: Parts) -> None:
    parts.create("t")
    result_of(parts.topic_admin.delete_topic("t"))
    result_of(parts.hosting.settled("t"))
    assert not parts.hosting._hosted
    assert not parts.hosting._configs
