"""The driver's look-ups of offsets, against a fake broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pylogd.client.core.errors import UnknownTopic
from pylogd.lake.spark.errors import DataLoss, OptionError, PlanError
from pylogd.lake.spark.offsets import OffsetLookup
from pylogd.lake.spark.options import SourceOptions
from pylogd.wire.messages import ApiKey, list_offsets
from pylogd.wire.messages import offset_for_leader_epoch as epochs
from pylogd.wire.records import NewRecord, encode_batch
from pylogd.wire.values import ZERO_UUID
from tests.fakes.broker import TOPIC_ID, FakeBroker, close

STAMPS = (1000, 2000, 3000)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """Return two partitions: three records at 1, 2 and 3 s in the first, one of them deleted; none in the second."""
    with FakeBroker(partitions=2) as broker:
        for stamp in STAMPS:
            broker.append(0, bytes(encode_batch([NewRecord(None, b"v", stamp, ())])))
        broker.starts[0] = 1
        yield broker


def offsets(broker: FakeBroker, **given: Any) -> OffsetLookup:
    """Look up what a batch query with these options reads; with `stream=True` a streaming one."""
    stream = given.pop("stream", False)
    options = {"kafka.bootstrap.servers": broker.address, "kafka.default.api.timeout.ms": "500"}
    options |= {} if {"assign", "subscribePattern"} & given.keys() else {"subscribe": "t"}
    options |= {"fetchOffset.retryIntervalMs": "0"}
    read = SourceOptions.for_stream if stream else SourceOptions.for_batch
    return OffsetLookup(read(options | given))


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({}, [("t", 0), ("t", 1)]),
        ({"subscribePattern": "[s-u]"}, [("t", 0), ("t", 1)]),
        ({"subscribePattern": "t."}, []),
        ({"assign": '{"t":[1]}'}, [("t", 1)]),
    ],
)
def test_partitions(broker: FakeBroker, given: dict[str, str], places: list[Any]) -> None:
    with offsets(broker, **given) as asked:
        assert asked.partitions() == places
        assert asked.existing() == places


@pytest.mark.parametrize(("pattern", "places"), [("rder", 2), ("^o.*s$", 2), ("^rder", 0), ("order$", 0)])
def test_a_pattern_may_match_any_part_of_a_name(pattern: str, places: int) -> None:
    with FakeBroker("orders", partitions=2) as broker, offsets(broker, subscribePattern=pattern) as asked:
        assert len(asked.partitions()) == places


def test_partitions_are_looked_up_each_time(broker: FakeBroker) -> None:
    with offsets(broker) as asked:
        assert len(asked.partitions()) == 2
        broker.leader_of[2] = 1
        assert asked.existing()[-1] == ("t", 2)


def test_a_missing_topic_or_partition_is_an_error(broker: FakeBroker) -> None:
    with offsets(broker, subscribe="t,gone") as asked:
        assert asked.existing() == [("t", 0), ("t", 1)]
        with pytest.raises(UnknownTopic):
            asked.partitions()
    with offsets(broker, assign='{"t":[1,7]}') as asked, pytest.raises(PlanError, match="'t' has no partition 7"):
        asked.partitions()


@pytest.mark.parametrize(
    ("given", "start", "end"),
    [
        ({}, (1, 0), (3, 0)),
        ({"startingOffsets": '{"t":{"0":2,"1":-2}}', "endingOffsets": '{"t":{"0":3,"1":-1}}'}, (2, 0), (3, 0)),
        ({"startingOffsets": '{"t":{"0":-2,"1":0}}', "endingTimestamp": "3000"}, (1, 0), (2, 0)),
        ({"startingTimestamp": "2000", "startingOffsetsByTimestampStrategy": "latest"}, (1, 0), (3, 0)),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":2001,"1":5}}',
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsetsByTimestamp": '{"t":{"0":9999,"1":9999}}',
            },
            (2, 0),
            (3, 0),
        ),
    ],
)
def test_start_and_end_of_a_query(
    broker: FakeBroker, given: dict[str, str], start: tuple[int, int], end: tuple[int, int]
) -> None:
    with offsets(broker, **given) as asked:
        places = asked.partitions()
        assert asked.start(places) == dict(zip(places, start, strict=True))
        assert asked.end(places) == dict(zip(places, end, strict=True))


def test_a_time_after_the_last_record_is_an_error_unless_said_otherwise(broker: FakeBroker) -> None:
    with (
        offsets(broker, startingTimestamp="2000") as asked,
        pytest.raises(PlanError, match="No offset matched from request of topic-partition t-1 and timestamp 2000"),
    ):
        asked.start(asked.partitions())


@pytest.mark.parametrize("given", ['{"t":{"0":1}}', '{"t":{"0":1,"1":0,"2":0}}', '{"u":{"0":1}}'])
@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_all_partitions_must_be_named(broker: FakeBroker, option: str, given: str) -> None:
    with offsets(broker, **{option: given}) as asked, pytest.raises(OptionError, match="specify all TopicPartitions"):
        asked.start(asked.partitions())


@pytest.mark.parametrize(("offset", "nearest"), [(0, 1), (9, 3)])
def test_offsets_out_of_range(broker: FakeBroker, offset: int, nearest: int) -> None:
    given = {"startingOffsets": f'{{"t":{{"0":{offset},"1":0}}}}'}
    with offsets(broker, **given) as asked, pytest.raises(DataLoss, match=f"starting offset {offset} of t-0"):
        asked.start(asked.partitions())
    with offsets(broker, failOnDataLoss="false", **given) as asked:
        assert asked.start(asked.partitions()) == {("t", 0): nearest, ("t", 1): 0}


def committed_until(broker: FakeBroker, stable: int) -> None:
    """Have a transaction begin at an offset of partition 0: it is the end for consumers of committed records."""
    plain = broker._list_offsets

    def answer(request: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        end, broker.ends[0] = broker.ends[0], stable if request.isolation_level else broker.ends[0]
        try:
            return plain(request)
        finally:
            broker.ends[0] = end

    broker.on(ApiKey.LIST_OFFSETS, *[answer] * 20)


def test_committed_records_end_at_the_last_stable_offset(broker: FakeBroker) -> None:
    committed = {"isolation.level": "read_committed", "assign": '{"t":[0]}'}
    committed_until(broker, 2)
    with offsets(broker, **committed) as asked:
        assert asked.end([("t", 0)]) == asked.latest([("t", 0)]) == {("t", 0): 2}
    with offsets(broker, assign='{"t":[0]}') as asked:
        assert asked.latest([("t", 0)]) == {("t", 0): 3}
    ending = {"endingOffsets": '{"t":{"0":3}}'}
    with (
        offsets(broker, **committed, **ending) as asked,
        pytest.raises(DataLoss, match="begins with 1 and ends with the last stable offset 2"),
    ):
        asked.end([("t", 0)])


def test_who_is_ahead_of_the_last_stable_offset_has_lost_nothing(broker: FakeBroker) -> None:
    """A query that has read uncommitted records goes on with committed ones."""
    committed_until(broker, 2)
    with offsets(broker, stream=True, assign='{"t":[0]}', **{"isolation.level": "read_committed"}) as asked:
        assert asked.latest([("t", 0)], {("t", 0): 3}) == {("t", 0): 3}
        assert asked.latest([("t", 0)], {("t", 0): 1}) == {("t", 0): 2}
        assert asked.latest([("t", 0)], {("t", 0): 4}) == {("t", 0): 2}  # the log is shorter than what was read


def test_a_lower_end_offset_is_looked_up_again(broker: FakeBroker) -> None:
    def less(_: list_offsets.ListOffsetsRequest) -> list_offsets.ListOffsetsResponse:
        broker.ends[0] -= 1
        try:
            return broker._list_offsets(_)
        finally:
            broker.ends[0] += 1

    with offsets(broker, stream=True, assign='{"t":[0]}') as asked:
        broker.on(ApiKey.LIST_OFFSETS, less, less)
        assert asked.latest([("t", 0)], {("t", 0): 3}) == {("t", 0): 3}
        broker.on(ApiKey.LIST_OFFSETS, less, less, less, less)
        assert asked.latest([("t", 0)], {("t", 0): 3}) == {("t", 0): 2}
        assert asked.latest([("t", 0)], {("u", 0): 3}) == {("t", 0): 3}


def test_the_ids_and_epochs_of_topics(broker: FakeBroker) -> None:
    with offsets(broker) as asked:
        places = asked.partitions()
        assert asked.topic_ids(places) == {"t": TOPIC_ID.hex()}
        assert asked.ends(places) == ({("t", 0): 3, ("t", 1): 0}, {("t", 0): 0, ("t", 1): 0})
        broker.topic_id = b"another topic id"
        asked.existing()
        assert asked.topic_ids(places) == {"t": b"another topic id".hex()}
        broker.topic_id = ZERO_UUID  # as a broker that does not know topic ids
        asked.existing()
        assert asked.topic_ids(places) == {}


@pytest.mark.parametrize(
    ("end", "found"), [(2, {("t", 0): 2}), (3, {}), (9, {}), (-1, {})]
)  # -1: the leader does not know that epoch
def test_a_truncated_log(broker: FakeBroker, end: int, found: Any) -> None:
    """Only leaders with another epoch are asked for the end offset of the known one."""

    def answer(request: epochs.OffsetForLeaderEpochRequest) -> epochs.OffsetForLeaderEpochResponse:
        (topic,) = request.topics
        (partition,) = topic.partitions
        assert (topic.topic, partition.partition, partition.leader_epoch) == ("t", 0, 7)
        result = epochs.EpochEndOffset(0, 0, -1 if end < 0 else 7, end)
        return epochs.OffsetForLeaderEpochResponse(topics=[epochs.OffsetForLeaderTopicResult("t", [result])])

    with offsets(broker) as asked:
        places = asked.partitions()
        read = dict.fromkeys(places, 3)
        assert asked.truncations(read, dict.fromkeys(places, 0)) == {}  # no new leader since
        assert broker.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH) == []
        broker.on(ApiKey.OFFSET_FOR_LEADER_EPOCH, close, answer)
        assert asked.truncations(read, {("t", 0): 7, ("t", 1): 0, ("u", 0): 7}) == found


def test_no_partitions_need_no_request() -> None:
    options = SourceOptions.for_batch({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with OffsetLookup(options) as asked:
        assert asked.earliest([]) == asked.latest([]) == {}
