"""The decisions of the streaming reader, with dicts in place of brokers."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from pylogd.lake.spark import source
from pylogd.lake.spark.errors import DataLoss, PlanError, TopicRecreated
from pylogd.lake.spark.offsets import report_loss
from pylogd.lake.spark.options import SourceOptions
from pylogd.lake.spark.source import PylogdReader, PylogdStreamReader
from pylogd.lake.tables.position import ByPartition

BASE = {"kafka.bootstrap.servers": "here:9092", "subscribe": "t"}


class FakeOffsets:
    """An OffsetLookup that answers from dicts. It records losses, and raises them if the options say so."""

    def __init__(self, ends: ByPartition, begins: ByPartition | None = None, fail: bool = True) -> None:
        self.log_ends = ends
        self.begins = begins or {}
        self.fail = fail
        self.ids: dict[str, str] = {}
        self.epochs: ByPartition = {}
        self.cut: ByPartition = {}
        self.losses: list[str] = []
        self.closed = False

    def __enter__(self) -> FakeOffsets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partitions(self) -> list[Any]:
        return sorted(self.log_ends)

    existing = partitions

    def earliest(self, partitions: Any) -> ByPartition:
        return {partition: self.begins.get(partition, 0) for partition in partitions}

    def latest(self, partitions: Any, known: ByPartition | None = None) -> ByPartition:
        return {partition: self.log_ends[partition] for partition in partitions}

    def ends(self, partitions: Any, known: ByPartition | None = None) -> tuple[ByPartition, ByPartition]:
        return self.latest(partitions), {
            partition: self.epochs[partition] for partition in partitions if partition in self.epochs
        }

    def topic_ids(self, partitions: Any) -> dict[str, str]:
        return {topic: self.ids[topic] for topic, _ in partitions if topic in self.ids}

    def truncations(self, read: ByPartition, epochs: ByPartition) -> ByPartition:
        return {
            partition: at
            for partition, at in self.cut.items()
            if epochs[partition] != self.epochs[partition] and at < read[partition]
        }

    start = earliest
    end = latest

    def first_since(self, timestamps: ByPartition) -> dict[Any, int | None]:
        return {
            partition: None if at >= self.log_ends[partition] else at for partition, at in timestamps.items()
        }  # these times are offsets

    def lost(self, what: str) -> None:
        self.losses.append(what)
        report_loss(what, fail=self.fail)

    def close(self) -> None:
        self.closed = True


def reader(
    ends: ByPartition, begins: ByPartition | None = None, **options: str
) -> tuple[PylogdStreamReader, FakeOffsets]:
    made = PylogdStreamReader(SourceOptions.for_stream(BASE | options))
    fake = FakeOffsets(ends, begins, fail=options.get("failOnDataLoss") != "false")
    made._offsets = fake  # type: ignore[assignment]
    return made, fake


def tasks(partitions: list[InputPartition]) -> list[tuple[int, int, int]]:
    ranges = [found.range for each in partitions for found in each.value]
    return [(each.partition, each.start, each.end) for each in ranges]


def test_offsets_survive_json() -> None:
    made, _ = reader({("t", 10): 5, ("t", 2): 6})
    end = made.latestOffset({"t": {"10": 1, "2": 2}}, ReadAllAvailable())
    assert end == {"t": {"2": 6, "10": 5}}
    again = json.loads(json.dumps(end))
    assert tasks(list(made.partitions({"t": {"10": 1, "2": 2}}, again))) == [(2, 2, 6), (10, 1, 5)]


def test_the_read_limit() -> None:
    assert isinstance(reader({})[0].getDefaultReadLimit(), ReadAllAvailable)
    assert reader({}, maxOffsetsPerTrigger="5")[0].getDefaultReadLimit() == ReadMaxRows(5)
    assert reader({}, minOffsetsPerTrigger="4")[0].getDefaultReadLimit() == ReadMinRows(4)
    both = reader({}, minOffsetsPerTrigger="4", maxOffsetsPerTrigger="5")[0].getDefaultReadLimit()
    assert both == ReadMaxRows(5)


def test_at_most_max_offsets_per_trigger() -> None:
    made, _ = reader({("t", 0): 90, ("t", 1): 10})
    assert made.latestOffset({"t": {"0": 0, "1": 0}}, ReadMaxRows(10)) == {"t": {"0": 9, "1": 1}}
    assert made.reportLatestOffset() == {"t": {"0": 90, "1": 10}}


def test_at_least_min_offsets_or_max_trigger_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    made, fake = reader({("t", 0): 3}, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="7", maxTriggerDelay="10s")
    start = {"t": {"0": 0}}
    assert made.latestOffset(start, ReadMaxRows(7)) == {"t": {"0": 3}}  # the first batch does not wait
    fake.log_ends[("t", 0)] = 7
    assert made.latestOffset({"t": {"0": 3}}, ReadMaxRows(7)) == {"t": {"0": 3}}
    fake.log_ends[("t", 0)] = 8
    assert made.latestOffset({"t": {"0": 3}}, ReadMaxRows(7)) == {"t": {"0": 8}}
    fake.log_ends[("t", 0)] = 9
    now[0] += 9
    assert made.latestOffset({"t": {"0": 8}}, ReadMinRows(5)) == {"t": {"0": 8}}
    now[0] += 1
    assert made.latestOffset({"t": {"0": 8}}, ReadMinRows(5)) == {"t": {"0": 9}}
    fake.log_ends[("t", 0)] = 40
    assert made.latestOffset({"t": {"0": 9}}, ReadMaxRows(7)) == {"t": {"0": 16}}


def test_available_now_ends_at_the_offsets_of_its_start() -> None:
    made, fake = reader({("t", 0): 10}, minOffsetsPerTrigger="100")
    made.prepareForTriggerAvailableNow()
    fake.log_ends = {("t", 0): 99, ("t", 1): 5}
    assert made.latestOffset({"t": {"0": 0}}, ReadMaxRows(6)) == {"t": {"0": 6}}
    assert made.latestOffset({"t": {"0": 6}}, ReadMaxRows(6)) == {"t": {"0": 10}}
    assert made.latestOffset({"t": {"0": 10}}, ReadMaxRows(6)) == {"t": {"0": 10}}
    assert made.latestOffset({"t": {"0": 12}}, ReadMaxRows(6)) == {"t": {"0": 12}}  # read further by an earlier run


def test_new_partitions_are_read_from_their_beginning() -> None:
    made, fake = reader({("t", 0): 10, ("t", 1): 4}, begins={("t", 1): 0})
    end = made.latestOffset({"t": {"0": 10}}, ReadAllAvailable())
    assert end == {"t": {"0": 10, "1": 4}}
    assert tasks(list(made.partitions({"t": {"0": 10}}, end))) == [(1, 0, 4)]
    assert fake.losses == []


def test_a_new_partition_without_its_first_records_is_a_loss() -> None:
    made, _ = reader({("t", 0): 10, ("t", 1): 4}, begins={("t", 1): 2})
    with pytest.raises(DataLoss, match=r"the new partition t-1 begins with offset 2, not with 0\. Some data may"):
        made.partitions({"t": {"0": 10}}, {"t": {"0": 10, "1": 4}})
    made, _ = reader({("t", 0): 10, ("t", 1): 4}, begins={("t", 1): 2}, failOnDataLoss="false")
    assert tasks(list(made.partitions({"t": {"0": 10}}, {"t": {"0": 10, "1": 4}}))) == [(1, 2, 4)]


def test_a_partition_that_no_longer_exists_is_a_loss() -> None:
    start = {"t": {"0": 3, "1": 4}}
    made, _ = reader({("t", 0): 10})
    with pytest.raises(DataLoss, match="partition t-1 no longer exists"):
        made.latestOffset(start, ReadAllAvailable())
    made, fake = reader({("t", 0): 10}, failOnDataLoss="false")
    assert made.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 10}}
    assert tasks(list(made.partitions(start, {"t": {"0": 10}}))) == [(0, 3, 10)]
    assert tasks(list(made.partitions({"t": {"0": 3}}, {"t": {"0": 10, "1": 4}}))) == [(0, 3, 10)]
    assert fake.losses == ["partition t-1 no longer exists"] * 3


def test_a_partition_that_ends_before_what_was_read_is_a_loss() -> None:
    start = {"t": {"0": 30}}
    made, _ = reader({("t", 0): 10})
    with pytest.raises(DataLoss, match="t-0 ends with 10, but was read to 30"):
        made.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match="t-0: the batch ends with 10, before 30"):
        made.partitions(start, {"t": {"0": 10}})
    made, _ = reader({("t", 0): 10}, failOnDataLoss="false")
    assert made.latestOffset(start, ReadMaxRows(5)) == {"t": {"0": 10}}
    assert made.partitions(start, {"t": {"0": 10}}) == []


# Where a query starts


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(4)])
def test_the_start_is_decided_once(limit: Any) -> None:
    """Spark asks for the start before it plans the first batch and again when it runs it, while records arrive."""
    made, fake = reader({("t", 0): 10})
    fake.start = fake.latest  # type: ignore[method-assign]
    start = made.initialOffset()
    fake.log_ends = {("t", 0): 13}
    end = made.latestOffset(start, limit)
    fake.log_ends = {("t", 0): 20}
    assert made.initialOffset() == start
    assert tasks(list(made.partitions(start, end))) == [(0, 10, 13)]


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(4)])
def test_a_query_that_died_in_its_first_batch_reads_the_same_range_again(limit: Any) -> None:
    made, fake = reader({("t", 0): 10})
    fake.start = fake.latest  # type: ignore[method-assign]
    start = made.initialOffset()
    fake.log_ends = {("t", 0): 13}
    logged = json.dumps(made.latestOffset(start, limit))
    again, other = reader({("t", 0): 50})
    other.start = other.latest  # type: ignore[method-assign]
    assert tasks(list(again.partitions(again.initialOffset(), json.loads(logged)))) == [(0, 10, 13)]
    # The second batch begins where the first one ended, and names no start.
    end = again.latestOffset(json.loads(logged), ReadAllAvailable())
    assert end == {"t": {"0": 50}}
    assert tasks(list(again.partitions(json.loads(logged), end))) == [(0, 13, 50)]


def test_a_first_batch_without_records() -> None:
    """Spark runs a first batch without records, since nothing is committed; later records are read from its end."""
    made, fake = reader({("t", 0): 10})
    fake.start = fake.latest  # type: ignore[method-assign]
    start = made.initialOffset()
    logged = made.latestOffset(start, ReadAllAvailable())
    assert made.partitions(start, logged) == []
    assert made.latestOffset(logged, ReadAllAvailable()) == logged
    fake.log_ends = {("t", 0): 12}
    end = made.latestOffset(logged, ReadAllAvailable())
    assert tasks(list(made.partitions(logged, end))) == [(0, 10, 12)]


def test_nothing_new_is_the_same_offset_though_the_leader_changed() -> None:
    """Spark compares offsets as text: if epochs changed it, each election would cause a batch without records."""
    made, fake = reader({("t", 0): 10})
    fake.ids, fake.epochs = {"t": "aa"}, {("t", 0): 3}
    end = made.latestOffset({"t": {"0": 4}}, ReadAllAvailable())
    assert end == {"t": {"0": 10}, "pylogd:topicIds": {"t": "aa"}, "pylogd:leaderEpochs": {"t": {"0": 3}}}
    fake.epochs = {("t", 0): 4}
    assert made.latestOffset(end, ReadAllAvailable()) == end
    old = {"t": {"0": 10}}  # written by a release without topic ids
    assert made.latestOffset(old, ReadAllAvailable()) == old


# Topics that are created again


def read_to(made: PylogdStreamReader, fake: FakeOffsets, topic_id: str) -> Any:
    fake.ids = {"t": topic_id}
    return made.latestOffset({"t": {"0": 0}}, ReadAllAvailable())


@pytest.mark.parametrize("end", [10, 90, 4])
@pytest.mark.parametrize("more", [{}, {"failOnDataLoss": "false"}])
def test_a_topic_that_was_created_again_is_an_error(end: int, more: dict[str, str]) -> None:
    options: dict[str, Any] = dict(more)
    made, fake = reader({("t", 0): 10}, **options)
    start = read_to(made, fake, "aa")
    fake.ids, fake.log_ends = {"t": "bb"}, {("t", 0): end}
    with pytest.raises(TopicRecreated, match=r"'t' was deleted .* topic id aa .* has bb now.*'onRecreatedTopic' to"):
        made.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("end", [10, 90, 4])
def test_a_topic_that_was_created_again_is_read_from_its_beginning_where_asked_for(end: int) -> None:
    made, fake = reader({("t", 0): 10, ("t", 1): 0}, onRecreatedTopic="restart")
    start = read_to(made, fake, "aa")
    fake.ids, fake.log_ends = {"t": "bb"}, {("t", 0): end}  # with fewer partitions
    logged = made.latestOffset(start, ReadMaxRows(1000))
    assert logged == {"t": {"0": end}, "pylogd:topicIds": {"t": "bb"}}
    planned = list(made.partitions(start, logged))
    assert tasks(planned) == [(0, 0, end)]
    assert [found.topic_id for task in planned for found in task.value] == ["bb"]
    assert made.latestOffset(logged, ReadAllAvailable()) == logged
    assert fake.losses == []


def test_a_topic_that_is_created_again_before_its_batch_is_read() -> None:
    made, fake = reader({("t", 0): 10})
    start = read_to(made, fake, "aa")
    fake.log_ends = {("t", 0): 12}
    end = made.latestOffset(start, ReadAllAvailable())
    fake.ids = {"t": "bb"}
    with pytest.raises(TopicRecreated):
        made.partitions(start, end)
    lenient, other = reader({("t", 0): 12}, onRecreatedTopic="restart")
    other.ids = {"t": "bb"}
    assert lenient.partitions(start, end) == []


def test_a_truncated_log_is_a_loss_even_if_it_is_longer_now() -> None:
    made, fake = reader({("t", 0): 10})
    fake.epochs = {("t", 0): 3}
    start = read_to(made, fake, "aa")
    fake.epochs, fake.cut, fake.log_ends = {("t", 0): 5}, {("t", 0): 7}, {("t", 0): 30}
    with pytest.raises(DataLoss, match="the log of t-0 was truncated to 7, but was read to 10"):
        made.latestOffset(start, ReadAllAvailable())
    made, fake = reader({("t", 0): 30}, failOnDataLoss="false")
    fake.epochs, fake.cut = {("t", 0): 5}, {("t", 0): 7}
    end = made.latestOffset(start, ReadAllAvailable())
    assert tasks(list(made.partitions(start, end))) == [(0, 10, 30)]
    assert made.latestOffset(end, ReadAllAvailable()) == end
    assert len(fake.losses) == 1


def test_the_reader_is_pickled_without_its_connections() -> None:
    made, fake = reader({("t", 0): 1})
    again = pickle.loads(pickle.dumps(made))
    assert again._offsets is None
    made.stop()
    made.stop()
    assert fake.closed


def test_a_batch_query_of_topics_with_given_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeOffsets({("t", 0): 5})
    fake.ids = {"t": "bb"}
    monkeypatch.setattr(source, "OffsetLookup", lambda _: fake)
    (planned,) = PylogdReader(SourceOptions.for_batch(BASE)).partitions()
    assert planned.value[0].topic_id == "bb"
    (planned,) = PylogdReader(SourceOptions.for_batch(BASE | {"topicIds": '{"t":"bb"}'})).partitions()
    assert planned.value[0].topic_id == "bb"
    with pytest.raises(DataLoss, match="topic 't' was deleted and created again"):
        PylogdReader(SourceOptions.for_batch(BASE | {"topicIds": '{"t":"aa"}'})).partitions()


def test_small_partitions_share_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeOffsets({("t", 0): 5, ("t", 1): 6, ("t", 2): 3})
    monkeypatch.setattr(source, "OffsetLookup", lambda _: fake)
    made = PylogdReader(SourceOptions.for_batch(BASE | {"minRecordsPerTask": "10"})).partitions()
    assert [[found.range.partition for found in task.value] for task in made] == [[0, 1], [2]]


# Batch queries: what filters spare


def planned(monkeypatch: pytest.MonkeyPatch, filters: list[Filter], **options: str) -> tuple[list[Filter], Any]:
    fake = FakeOffsets({("t", 0): 100, ("t", 1): 50})
    monkeypatch.setattr(source, "OffsetLookup", lambda _: fake)
    made = PylogdReader(SourceOptions.for_batch(BASE | options))
    left = list(made.pushFilters(filters))
    return left, tasks(list(made.partitions()))


TOPIC, PARTITION, OFFSET, STAMP = ("topic",), ("partition",), ("offset",), ("timestamp",)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], [(0, 0, 100), (1, 0, 50)]),
        ([EqualTo(PARTITION, 1)], [(1, 0, 50)]),
        ([In(PARTITION, (1, 7))], [(1, 0, 50)]),
        ([In(PARTITION, (0, 1)), EqualTo(PARTITION, 0)], [(0, 0, 100)]),
        ([EqualTo(PARTITION, 0), EqualTo(PARTITION, 1)], []),
        ([IsNotNull(TOPIC), StringStartsWith(TOPIC, "t"), GreaterThan(PARTITION, 0)], [(1, 0, 50)]),
        ([EqualTo(TOPIC, "other")], []),
        ([EqualTo(OFFSET, 60)], [(0, 60, 61)]),
        ([GreaterThan(OFFSET, 48)], [(0, 49, 100), (1, 49, 50)]),
        ([GreaterThanOrEqual(OFFSET, 48), LessThan(OFFSET, 49)], [(0, 48, 49), (1, 48, 49)]),
        ([LessThanOrEqual(OFFSET, 1), LessThan(OFFSET, 9)], [(0, 0, 2), (1, 0, 2)]),
        ([LessThan(OFFSET, -5)], []),
    ],
)
def test_filters_that_the_source_applies(monkeypatch: pytest.MonkeyPatch, filters: list[Filter], found: Any) -> None:
    assert planned(monkeypatch, filters) == ([], found)


def test_filters_that_spark_must_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[Filter] = [StringContains(("key",), "t"), EqualTo(("value",), b"x"), Not(EqualTo(OFFSET, 0))]
    assert planned(monkeypatch, others) == (others, [(0, 0, 100), (1, 0, 50)])
    late: list[Filter] = [GreaterThan(STAMP, datetime.fromtimestamp(0.06, UTC)), LessThan(STAMP, datetime.now(UTC))]
    assert planned(monkeypatch, late) == (late, [(0, 60, 100)])


def test_a_start_after_its_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeOffsets({("t", 0): 5}, begins={("t", 0): 7})
    monkeypatch.setattr(source, "OffsetLookup", lambda _: fake)
    with pytest.raises(PlanError, match="The start offset 7 of t-0 is greater than its end offset 5"):
        PylogdReader(SourceOptions.for_batch(BASE | {"failOnDataLoss": "false"})).partitions()
    assert fake.closed
