"""What moves replicas and leaders, and what adds up sizes, without a cluster."""

from __future__ import annotations

import pytest

from pylogd.cli.broker_summary import broker_columns, broker_summaries
from pylogd.cli.configs import _as_text, _changes
from pylogd.cli.debug import hide_secrets
from pylogd.cli.logdirs import add_up
from pylogd.client import TopicPartition
from pylogd.client.core.admin.move_operations import cordon_value
from pylogd.client.core.model import Broker, ConfigEntry, LogDir


def test_machines_are_a_column_if_brokers_name_one() -> None:
    alone, sharing = Broker(1, "a", 9092), Broker(2, "a", 9093, host_id="m")
    for live, machines in (([alone], [None]), ([alone, sharing], [None, "m"])):
        summaries = broker_summaries(live, [], {})
        assert [one["host_id"] for one in summaries] == machines
        assert ("host_id" in broker_columns(summaries)) is any(machines)


def test_what_is_cordoned() -> None:
    before = {"/a": False, "/b": True}
    assert cordon_value(before, ["/a"], True) == "/a,/b" and cordon_value(before, ["/b"], False) == ""
    assert cordon_value(before, [], True) == "*" and cordon_value(before, [], False) == ""


def test_sizes_are_added_up() -> None:
    places = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
    found = [
        LogDir(1, "/x", None, 100, 50, {places[0]: 5, places[1]: 6}, True),
        LogDir(1, "/y", "KAFKA_STORAGE_ERROR", -1, -1, {}),
        LogDir(2, "/x", None, 100, 50, {places[0]: 5, places[2]: 70}),
    ]
    assert [(row["topic"], row["partitions"], row["bytes"]) for row in add_up(found, "topic")] == [
        ("b", 1, 70), ("a", 3, 16),
    ]  # fmt: skip
    assert [(row["broker"], row["bytes"]) for row in add_up(found, "broker", ["a"])] == [(1, 11), (2, 5)]
    assert [(row["directory"], row["state"]) for row in add_up(found, "directory")] == [
        ("/x", "cordoned"), ("/y", "offline"), ("/x", "online"),
    ]  # fmt: skip
    assert len(add_up(found, "partition")) == 4


def entry(name: str, value: str | None, source: str, *, fixed: bool = False) -> ConfigEntry:
    return ConfigEntry(name, value, source, fixed, False, None)


BEFORE = {
    one.name: one
    for one in (
        entry("retention.ms", "1000", "topic"), entry("cleanup.policy", "delete", "default"),
        entry("a.path", "C:\\x\ny", "topic"), entry("fixed", "1", "broker's start", fixed=True),
    )
}  # fmt: skip


def test_an_unchanged_text_changes_nothing() -> None:
    text = _as_text("topic", "t", BEFORE)
    assert _changes(BEFORE, text) == {}
    assert "#cleanup.policy=delete" in text and "fixed" not in text


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("retention.ms=1000", "retention.ms=2000", {"retention.ms": "2000"}),
        ("retention.ms=1000\n", "", {"retention.ms": None}),
        ("retention.ms=1000", "#retention.ms=1000", {"retention.ms": None}),
        ("#cleanup.policy=delete", "cleanup.policy=compact", {"cleanup.policy": "compact"}),
        ("#cleanup.policy=delete", "cleanup.policy=delete", {}),
        ("# By default", "new = 1\n# By default", {"new": "1"}),
    ],
)
def test_what_an_edited_text_changes(old: str, new: str, changes: dict[str, str | None]) -> None:
    text = _as_text("topic", "t", BEFORE)
    assert old in text
    assert _changes(BEFORE, text.replace(old, new)) == changes


@pytest.mark.parametrize(
    "text",
    [
        "ssl.key.password=s3cret", 'password = "s3 s3cret"', "Authorization: Bearer s3cret", "token: s3cret, next",
        '{"client_secret": "s3cret"}', "sasl.jaas.config='x s3cret'", "SASL-Password:s3cret",
    ],
)  # fmt: skip
def test_secrets_in_logs_are_hidden(text: str) -> None:
    hidden = hide_secrets(f"before {text} after")
    assert "s3cret" not in hidden and hidden.startswith("before ") and hidden.endswith(" after")


def test_other_text_in_logs_stays() -> None:
    text = "Deleting log t-0: its topic no longer exists. retention.ms=7, 3 tokens"
    assert hide_secrets(text) == text
