"""Sums over all partitions, which never go back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.broker.metrics.survey import REST, Survey
from tests.fakes.parts import Parts, batch


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, log_cleaner_enable=False)
    yield made
    made.close()


def survey_of(parts: Parts, most: int = 10, partitions: int = 10) -> Survey:
    return Survey(parts.partitions, lambda: most, lambda: partitions)


def walk(survey: Survey) -> None:
    for _ in survey.walk():
        pass


def test_what_leaders_append_is_counted_by_topic(parts: Parts) -> None:
    parts.create("t", partitions=2)
    survey = survey_of(parts)
    walk(survey)
    assert survey.topics.keys() == {REST}, "a topic that nobody uses needs no metrics of its own"
    parts.append("t", b"a", b"b", b"c")
    parts.append("t", b"d", partition=1)
    walk(survey)
    sums = survey.topics["t"]
    size = len(batch(b"a", b"b", b"c")) + len(batch(b"d"))
    assert (sums.messages_in, sums.bytes_in) == (4, size)
    figures = survey.partitions
    assert {labels: (one.segments, one.start, one.end) for labels, one in figures.items()} == {
        ("t", "0"): (1, 0, 3), ("t", "1"): (1, 0, 1),
    }  # fmt: skip
    assert sum(one.size for one in figures.values()) == size
    assert (survey.counts.partitions, survey.counts.leaders, survey.counts.under_replicated) == (2, 2, 0)
    assert [(one.partitions, one.size) for one in survey.directories.values()] == [(2, size)]
    walk(survey)
    assert survey.topics["t"].messages_in == 4


def test_followers_count_apart_and_replicas_that_lack(parts: Parts) -> None:
    parts.create("t")
    survey = survey_of(parts)
    partition = parts.set_state("t", replicas=(1, 2, 3), isr=(1,), leader_epoch=5)
    partition.min_insync_replicas = 2
    partition.enough_in_sync = False
    walk(survey)
    assert (survey.counts.under_replicated, survey.counts.under_min_isr, survey.counts.at_min_isr) == (1, 1, 0)
    [(labels, figures)] = survey.partitions.items()
    assert labels == (REST, REST), "nobody has written to it"
    assert (figures.replicas, figures.in_sync, figures.under_replicated, figures.under_min_isr) == (3, 1, 1, 1)
    parts.set_state("t", replicas=(1, 2, 3), isr=(1, 2), leader=2, leader_epoch=6)
    records = batch(b"copied")
    partition.append_fetched(records, 0, 0)
    walk(survey)
    assert (survey.topics["t"].bytes_in, survey.topics["t"].replicated_in) == (0, len(records))
    assert (survey.counts.leaders, survey.counts.under_replicated) == (0, 0)


def test_bytes_in_stay_when_segments_are_deleted(parts: Parts) -> None:
    parts.create("t", internal_segment_bytes=1024, retention_bytes=1024)
    survey = survey_of(parts)
    size = 0
    for _ in range(20):
        parts.append("t", b"v" * 300)
        size += len(batch(b"v" * 300))
    walk(survey)
    log = parts.partitions.by_name["t", 0].log
    parts.logs.tick()
    assert log.size < size / 2, "retention did nothing"
    walk(survey)
    assert survey.topics["t"].bytes_in == size
    [figures] = survey.partitions.values()
    assert (figures.size, figures.start, figures.end) == (log.size, log.log_start_offset, 20)


def test_a_truncated_log_does_not_count_backwards(parts: Parts) -> None:
    parts.create("t", internal_segment_bytes=1024)
    survey = survey_of(parts)
    one = len(batch(b"v" * 300))
    for _ in range(10):
        parts.append("t", b"v" * 300)
    walk(survey)
    for end in (9, 4):  # within the active segment, and within one before it
        before = survey.topics["t"].bytes_in
        parts.logs.truncate_to("t", 0, end)
        walk(survey)
        log = parts.partitions.by_name["t", 0].log
        assert (survey.topics["t"].bytes_in, log.written_bytes) == (before, before)
        parts.append("t", b"v" * 300)
        walk(survey)
        assert survey.topics["t"].bytes_in == before + one
        assert log.size == one * (end + 1)


def test_topics_beyond_the_bound_share_one_name(parts: Parts) -> None:
    survey = survey_of(parts, most=2)
    for name in ("c", "a", "d", "b"):
        parts.create(name)
        parts.append(name, name.encode())
        walk(survey)
    assert survey.topics.keys() == {REST, "c", "a"}
    assert survey.topics[REST].messages_in == 2
    parts.append("a", b"more")
    walk(survey)
    assert survey.topics["a"].messages_in == 2


def test_a_topic_that_is_gone_makes_room(parts: Parts) -> None:
    survey = survey_of(parts, most=1)
    for name in ("a", "b"):
        parts.create(name)
        parts.append(name, b"v")
    walk(survey)
    assert survey.topics.keys() == {REST, "a"}
    parts.move_away("a", replicas=(2,), isr=(2,), leader=2)
    walk(survey)
    parts.append("b", b"v")
    walk(survey)
    assert survey.topics.keys() == {REST, "b"}
    assert survey.topics["b"].messages_in == 1, "what came before is counted with the others"
    assert survey.topics[REST].messages_in == 1


def test_offline_replicas(parts: Parts) -> None:
    parts.create("t")
    survey = survey_of(parts)
    parts.hosting.went_offline([("t", 0)])
    walk(survey)
    assert (survey.counts.offline, survey.counts.leaders) == (1, 0)


def test_partitions_beyond_the_bound_are_summed_up_by_topic(parts: Parts) -> None:
    bound = [2]
    survey = Survey(parts.partitions, lambda: 10, lambda: bound[0])
    for name in ("a", "b"):
        parts.create(name, partitions=3)
        for index in range(3):
            parts.append(name, b"v", partition=index)
    walk(survey)
    size = len(batch(b"v"))
    found = {labels: (one.size, one.replicas, one.end) for labels, one in survey.partitions.items()}
    own = [labels for labels in found if labels[1] != REST]
    assert len(own) == 2 and all(found[labels] == (size, 1, 1) for labels in own)
    assert sum(one[0] for one in found.values()) == 6 * size, "no partition is missing in the sums"
    assert sum(one[1] for one in found.values()) == 6
    assert all(found[labels][2] is None for labels in found if labels[1] == REST)
    walk(survey)
    assert [labels for labels in survey.partitions if labels[1] != REST] == own, "they keep their own figures"
    parts.move_away(own[0][0], replicas=(2,), isr=(2,), leader=2)
    bound[0] = 1
    walk(survey)
    walk(survey)
    assert len([labels for labels in survey.partitions if labels[1] != REST]) == 1


def test_requests_and_failures_are_counted_by_topic(parts: Parts) -> None:
    parts.create("t")
    parts.append("t", b"v")
    survey = survey_of(parts)
    walk(survey)
    partition = parts.partitions.by_name["t", 0]
    partition.produced += 5
    partition.appends += 4
    partition.failed_appends += 3
    partition.fetches += 7
    partition.copies += 2
    partition.fetch_errors += 4
    partition.failed_fetches += 1
    before = survey.topics["t"].produces
    walk(survey)
    walk(survey)
    sums = survey.topics["t"]
    assert (sums.produces - before, sums.failed_produces) == (9, 3)
    assert (sums.fetches, sums.all_fetches, sums.failed_fetches) == (7, 13, 1)
