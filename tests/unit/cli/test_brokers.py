"""What moves replicas and leaders, and what adds up sizes, without a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.cli.broker_summary import broker_columns, broker_summaries
from pylogd.cli.configs import _as_text, _changes
from pylogd.cli.debug import hide_secrets
from pylogd.cli.logdirs import add_up
from pylogd.client import TopicPartition
from pylogd.client.core.admin.maintenance import cordon_value, leads_again, led_by_others
from pylogd.client.core.admin.replica_plan import lead_evenly, plan
from pylogd.client.core.model import Broker, ConfigEntry, LogDir

REPLICAS = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(tuple)


@given(st.lists(REPLICAS, max_size=20), st.integers(1, 5))
def test_a_broker_in_maintenance_is_the_last_replica_of_what_it_was_preferred_for(
    replicas: list[tuple[int, ...]], broker: int
) -> None:
    targets = led_by_others({TopicPartition("t", number): one for number, one in enumerate(replicas)}, broker)
    assert {at.partition for at in targets} == {
        number for number, one in enumerate(replicas) if one[0] == broker and len(one) > 1
    }
    for at, nodes in targets.items():
        assert nodes[-1] == broker and sorted(nodes) == sorted(replicas[at.partition]), "nothing is copied"


@given(st.lists(REPLICAS, max_size=20))
def test_leading_evenly_moves_no_replica(replicas: list[tuple[int, ...]]) -> None:
    current = {TopicPartition("t", number): one for number, one in enumerate(replicas)}
    even = lead_evenly(current)
    assert {at: sorted(nodes) for at, nodes in even.items()} == {at: sorted(nodes) for at, nodes in current.items()}


def test_leading_evenly_is_even() -> None:
    current = {TopicPartition("t", number): (1, 2, 3) for number in range(9)}
    assert sorted(nodes[0] for nodes in lead_evenly(current).values()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_after_its_maintenance_a_broker_leads_its_share() -> None:
    current = {TopicPartition("t", number): (1 + number % 2, 3) for number in range(9)}
    targets = leads_again(current, 3)
    assert len(targets) == 3 and all(nodes[0] == 3 for nodes in targets.values())
    assert all(set(nodes) == set(current[at]) for at, nodes in targets.items()), "nothing is copied"


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


def test_without_balance_only_what_has_to_move_moves() -> None:
    current = {TopicPartition("t", number): (1, 2) for number in range(6)}
    current[TopicPartition("t", 6)] = (3, 1)
    racks = dict.fromkeys((1, 2, 4))
    kept = plan(current, racks, balance=False)
    assert all(set(kept[at]) == {1, 2} for at in list(current)[:6])
    assert set(kept[TopicPartition("t", 6)]) == {1, 4}, "broker 4 has the fewest"
    assert any(4 in nodes for at, nodes in plan(current, racks).items() if at.partition < 6)


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
