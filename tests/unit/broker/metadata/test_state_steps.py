"""New partition states told as steps: the same states, in a fraction of the bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.metadata.change_notes import Change, News, decode_change, encode_change
from pylogd.broker.metadata.image import NO_LEADER, PartitionState, changed_states
from pylogd.broker.metadata.layout import encode_states
from pylogd.broker.metadata.state_steps import Steps, steps_between

_PATH = "/brokers/topics/t/state-x"


@st.composite
def changes(draw: st.DrawFn) -> tuple[tuple[PartitionState, ...], tuple[PartitionState, ...]]:
    """Return states of some partitions, and the next ones: some the same, some as after a failure or a return."""
    before, after = [], []
    for index in range(draw(st.integers(1, 6))):
        replicas = tuple(draw(st.permutations(range(1, 6)))[: draw(st.integers(1, 4))])
        isr = tuple(draw(st.permutations(replicas))[: draw(st.integers(1, len(replicas)))])
        epochs = draw(st.integers(0, 1000)), draw(st.integers(0, 1000))
        old = PartitionState(index, replicas, isr, draw(st.sampled_from(isr)), *epochs)
        if draw(st.booleans()):
            old = replace(old, adding=replicas[-1:], latest_until_ms=17)
        before.append(old)
        if draw(st.booleans()):
            isr = tuple(draw(st.permutations(replicas))[: draw(st.integers(1, len(replicas)))])
            leader = draw(st.sampled_from(isr))
            old = replace(
                old, isr=isr, leader=leader, leader_epoch=old.leader_epoch + draw(st.integers(0, 2)),
                partition_epoch=old.partition_epoch + 1,
            )  # fmt: skip
        after.append(old)
    return tuple(before), tuple(after)


def _read_back(told: Steps) -> Steps:
    """Return steps as a broker finds them in the note of a write."""
    change = decode_change(encode_change(Change(["/other", _PATH], {_PATH: News(3, 4, told)})))
    assert change is not None and list(change.paths) == ["/other", _PATH]
    news = change.states[_PATH]
    assert (news.assignment_version, news.version) == (3, 4) and isinstance(news.data, Steps)
    return news.data


@given(changes())
def test_steps_lead_to_the_new_states(states: tuple[tuple[PartitionState, ...], tuple[PartitionState, ...]]) -> None:
    before, after = states
    steps = steps_between(7, before, changed_states(before, after))
    assert steps is not None
    told = _read_back(steps)
    assert told.controller_epoch == 7
    found = told.apply(before)
    assert found == after
    assert all((new is old) == (told_new is old) for old, new, told_new in zip(before, after, found, strict=True))


@pytest.mark.parametrize("change", [
    {"elr": (2,)}, {"last_known_elr": (2,)}, {"leader": NO_LEADER, "last_known_leader": 1}, {"lost": ("directory",)},
    {"isr": (1, 9)}, {"leader": 9}, {"leader_epoch": 0},
])  # fmt: skip
def test_other_changes_are_no_steps(change: dict[str, Any]) -> None:
    before = PartitionState(0, (1, 2, 3), (1, 2, 3), 1, leader_epoch=1)
    after = replace(before, partition_epoch=1, **change)
    assert steps_between(1, (before,), (after,)) is None


def test_thousands_of_steps_are_a_fraction_of_the_states() -> None:
    """As when a third of the brokers fail."""
    changes, whole = {}, 0
    for number in range(500):
        before = tuple(PartitionState(at, (number, number + at + 1, 9000 + at), (number,), number) for at in range(16))
        after = tuple(
            replace(old, isr=old.replicas[at % 3 :], leader=old.replicas[at % 3], leader_epoch=1, partition_epoch=1)
            for at, old in enumerate(before)
        )
        steps = steps_between(1, before, after)
        assert steps is not None
        whole += len(encode_states(1, after))
        changes[f"/brokers/topics/topic-{number}/state"] = News(0, 1, steps)
    note = encode_change(Change(list(changes), changes))
    assert len(note) - sum(map(len, changes)) < whole / 50
    assert decode_change(note) == Change(list(changes), changes)


def test_a_step_of_one_partition_of_very_many_is_short() -> None:
    steps = Steps(1, {3: (0, 0, 1, 0), 9_000: (0, 1, 1, 0, 2), 9_001: (0, 0, 1, 0)})
    assert _read_back(steps) == steps
    assert len(encode_change(Change([_PATH], {_PATH: News(3, 4, steps)}))) < 150


def test_steps_of_more_partitions_than_there_are_are_an_error() -> None:
    with pytest.raises(IndexError):
        Steps(1, {1: (0, 1, 1, 0)}).apply((PartitionState.initial(0, (1,)),))


@pytest.mark.parametrize("steps", [
    5, [], [[[0, 1, 1]]], [[[0, 1, 1]], [[0, 3, 4, 1, "z"]]], [[[0, 1, 1]], [[1, 3, 4, 1, "a"]]],
    [[[0, 1]], [[0, 3, 4, 1, "a"]]], [[[-1, 1, 1]], [[0, 3, 4, 1, "a"]]], [["x"], [[0, 3, 4, 1, "a"]]], "no base64",
])  # fmt: skip
def test_a_note_whose_steps_cannot_be_read_means_everything(steps: object) -> None:
    assert decode_change(json.dumps({"version": 2, "paths": ["/a"], "changed": {}, "steps": steps}).encode()) is None
