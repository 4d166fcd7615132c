"""`coordinator.labels`: which partitions of internal topics belong to a label, and which ids to these."""

from __future__ import annotations

import pytest

from pylogd.broker.replica.internal_topic import NO_PARTITION, labelled_partition_of, partition_of
from pylogd.config import ConfigError, Settings
from pylogd.config.labels import parse_coordinators

TEXT = "online:0-3:pay-,online:0-3:shop-,logs:4-5:log-,logs:4-5:pay-log"


def test_an_id_is_stored_in_a_partition_of_its_label() -> None:
    labels = parse_coordinators(TEXT)
    assert [labels.label_at(index) for index in range(8)] == [*["online"] * 4, *["logs"] * 2, None, None]
    found = {name: labels.label_of(name) for name in ("pay-1", "shop-1", "log-1", "pay-logger", "other", "lo")}
    assert found == {
        "pay-1": "online", "shop-1": "online", "log-1": "logs", "pay-logger": "logs", "other": None, "lo": None
    }  # fmt: skip
    assert labels.partitions("pay-1", 8) == [0, 1, 2, 3] and labels.partitions("other", 8) == [6, 7]


def test_ids_are_spread_over_the_partitions_of_their_label() -> None:
    def stored(prefix: str) -> set[int]:
        return {labelled_partition_of(f"{prefix}{number}", 8, TEXT) for number in range(200)}

    assert (stored("pay-"), stored("log-"), stored("x")) == ({0, 1, 2, 3}, {4, 5}, {6, 7})


def test_without_the_setting_nothing_changes() -> None:
    assert all(labelled_partition_of(f"g{n}", 50, "") == partition_of(f"g{n}", 50) for n in range(200))


def test_partitions_that_the_topic_does_not_have_store_nothing() -> None:
    assert labelled_partition_of("log-1", 4, TEXT) == NO_PARTITION


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("online", "is not LABEL:FIRST-LAST:PREFIX"),
        ("online:0-3:", "is not LABEL:FIRST-LAST:PREFIX"),
        ("on line:0-3:p", "a label has 1 to 100 letters"),
        ("online:3-0:p", "3-0 is no range"),
        ("online:0-3:p,online:4-5:q", "has two ranges"),
        ("online:0-3:p,logs:3-5:q", "both have partition 3"),
        ("online:0-3:p,logs:4-5:p", "has two labels"),
    ],
)
def test_contradictions_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_coordinators(text)
    with pytest.raises(ConfigError, match=said):
        Settings(overrides={"coordinator.labels": text})


def test_a_topic_needs_all_partitions_and_some_for_the_others() -> None:
    labels = parse_coordinators(TEXT)
    labels.check_count(7)
    with pytest.raises(ConfigError, match="has the partitions 4-5, and the topic has only 5"):
        labels.check_count(5)
    with pytest.raises(ConfigError, match="all 6 partitions have labels"):
        labels.check_count(6)
