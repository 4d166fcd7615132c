"""Leader epochs in a client's metadata: what a broker says that stood still is not believed."""

from __future__ import annotations

import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.admin.offsets import LATEST, offsets_request
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from pylogd.wire.values import ZERO_UUID

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_ID, _OTHER_ID = b"\1" * 16, b"\2" * 16


def said(*leaders: tuple[int, int], topic_id: bytes = _ID) -> MetadataResponse:
    """Return an answer about topic `t`: leader and epoch of each partition."""
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=epoch)
        for index, (leader, epoch) in enumerate(leaders)
    ]
    return MetadataResponse(topics=[MetadataResponseTopic(name="t", topic_id=topic_id, partitions=partitions)])


def leader(metadata: Metadata, partition: TopicPartition) -> int:
    found = metadata.partition(partition)
    assert found is not None
    return found.leader


@pytest.mark.parametrize("forget", [False, True])
def test_a_leader_of_an_epoch_that_is_over_is_not_believed(forget: bool) -> None:
    metadata = Metadata([("h", 1)])
    metadata.learn(said((3, 6), (3, 2)))
    metadata.learn(said((1, 7), (3, 2)))
    if forget:
        metadata.note(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    metadata.learn(said((3, 6), (3, 2)))
    with pytest.raises(KafkaError, match="no leader at the moment"):
        metadata.partition(T0)
    assert leader(metadata, T1) == 3
    metadata.learn(said((1, 7), (3, 2)))
    assert leader(metadata, T0) == 1


@pytest.mark.parametrize("topic_id", [_OTHER_ID, ZERO_UUID])
def test_another_topic_of_the_name_has_epochs_of_its_own(topic_id: bytes) -> None:
    """A broker that is too old for topic ids can't tell, so everything that it says is believed."""
    metadata = Metadata([("h", 1)])
    metadata.learn(said((1, 7), topic_id=ZERO_UUID if topic_id == ZERO_UUID else _ID))
    metadata.learn(said((3, 0), topic_id=topic_id))
    assert leader(metadata, T0) == 3


def test_nothing_is_kept_of_a_topic_that_was_deleted() -> None:
    metadata = Metadata([("h", 1)])
    metadata.learn(said((1, 7)))
    gone = MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")
    assert metadata.learn_each(MetadataResponse(topics=[gone])).keys() == {"t"}
    metadata.learn(said((3, 0)))
    assert leader(metadata, T0) == 3


def test_bootstrapping_anew_believes_everything() -> None:
    metadata = Metadata([("h", 1)])
    metadata.learn(said((1, 7)))
    metadata.rebootstrap()
    metadata.learn(said((3, 0)))
    assert leader(metadata, T0) == 3


def test_leaders_are_asked_for_offsets_by_their_epoch() -> None:
    """A former leader refuses an epoch that it does not know, instead of telling ends that are over."""
    metadata = Metadata([("h", 1)])
    metadata.learn(said((1, 7), (3, 2)))
    wanted = dict.fromkeys([T0, T1, TopicPartition("unknown", 0)], LATEST)
    epochs = metadata.leader_epochs(wanted)
    assert epochs == {T0: 7, T1: 2}
    request = offsets_request(wanted, epochs)
    sent = {
        (topic.name, one.partition_index): one.current_leader_epoch
        for topic in request.topics
        for one in topic.partitions
    }
    assert sent == {("t", 0): 7, ("t", 1): 2, ("unknown", 0): -1}
