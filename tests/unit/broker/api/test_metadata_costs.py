"""What a change of the metadata costs a broker does not grow with the numbers of topics and brokers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.api import metadata_pieces, slices
from pylogd.broker.api.metadata_pieces import BLOCK
from pylogd.broker.metadata.layout import encode_states, state_path
from pylogd.store.interfaces import SetData
from pylogd.store.paths import CHANGE_LOG, CHANGES
from pylogd.wire import schema
from pylogd.wire.messages.metadata import MetadataRequest
from tests.fakes.metadata import result_of
from tests.metadata_costs import FIRST, VERSION, Fleet

SMALL, LARGE = (40, 3), (600, 24)  # topics, brokers
SLACK = 1.1
LOOK = 90  # instructions

Fleets = Callable[..., Fleet]


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Fleets]:
    made: list[Fleet] = []

    def make(topics: int, brokers: int, **options: int) -> Fleet:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Fleet(folder, topics, brokers, **options))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


ANSWERED: dict[str, Callable[[Fleet], object]] = {
    "nothing": lambda fleet: None,
    "an in-sync set": lambda fleet: fleet.change_isr(),
    "a new topic": lambda fleet: fleet.create_topic(f"new-{len(fleet.parts.topics)}"),
    "a new broker": lambda fleet: fleet.join(1000 + len(fleet.parts.cluster.brokers)),
}


@pytest.mark.parametrize("what", ANSWERED)
def test_answers_after_a_change(fleets: Fleets, what: str) -> None:
    """A change of the brokers takes a look at each of them; only the new one is encoded."""

    def measure(fleet: Fleet) -> tuple[int, int]:
        fleet.ask(), fleet.ask(fleet.names[1])
        ANSWERED[what](fleet)
        fleet.ask(), fleet.ask(fleet.names[1])
        ANSWERED[what](fleet)
        return fleet.spend(fleet.ask).instructions, fleet.spend(lambda: fleet.ask(fleet.names[1])).instructions

    small, large = measure(fleets(*SMALL)), measure(fleets(*LARGE))
    looks = LOOK * (LARGE[1] - SMALL[1]) if what == "a new broker" else 0
    assert large[0] <= small[0] * SLACK + looks
    assert large[1] <= small[1] * SLACK
    assert small[0] < 5000
    assert small[1] < 1000


READERS: dict[str, tuple[Callable[[Fleet], object], int]] = {
    "one behind": (lambda fleet: fleet.change_isr(), 0),
    "three behind": (lambda fleet: deque(map(fleet.change_isr, fleet.names[3:6]), 0), 4),
    "a new topic": (lambda fleet: fleet.create_topic("new"), 3),
}


@pytest.mark.parametrize("what", READERS)
def test_reading_changes(fleets: Fleets, what: str) -> None:
    """Besides `/changes`: the missed entries of its log, and the nodes of topics whose content is not in them."""
    change, reads = READERS[what]
    small, large = (fleet.read_after(partial(change, fleet)) for fleet in (fleets(*SMALL), fleets(*LARGE)))
    assert small.reads == large.reads == reads
    assert large.instructions <= small.instructions * SLACK


def test_a_broker_that_comes_or_goes(fleets: Fleets) -> None:
    found = []
    for size in (SMALL, LARGE):
        fleet = fleets(*size)
        fleet.join(500)
        found.append((fleet.spend(lambda: fleet.join(501)), fleet.spend(lambda: fleet.leave(501))))  # noqa: B023
    for small, large in zip(*found, strict=True):
        assert large.reads == small.reads <= 4
        assert large.instructions <= small.instructions * SLACK + 3 * LOOK * (LARGE[1] - SMALL[1])


def test_one_partition_of_a_large_topic(fleets: Fleets) -> None:
    """A change of one partition encodes a block of them."""
    found = []
    for partitions in (200, 800):
        fleet = fleets(2, 3, partitions=partitions)
        fleet.ask(fleet.names[0])
        fleet.change_isr(fleet.names[0], 100)
        found.append(fleet.spend(lambda: fleet.ask(fleet.names[0])).instructions)  # noqa: B023
    small, large = found
    assert large < small * 1.3


@pytest.mark.parametrize("partitions", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_partitions_that_are_added(fleets: Fleets, partitions: int) -> None:
    fleet = fleets(1, 3, partitions=partitions)
    codec = schema.response_codec(MetadataRequest.API_KEY, VERSION)
    for more in (0, 1, BLOCK):
        if more:
            result_of(fleet.topic_admin.add_partitions(fleet.names[0], partitions + more))
        (topic,) = codec.decode(fleet.ask(fleet.names[0])).topics
        assert [one.partition_index for one in topic.partitions] == list(range(partitions + more))


def test_what_brokers_are_told_of_one_partition(fleets: Fleets) -> None:
    """Though its state is in one node with those of all partitions of the topic."""
    fleet = fleets(1, 3, partitions=300)
    fleet.change_isr(index=250)
    names = result_of(fleet.store.children(CHANGE_LOG))
    for path in (CHANGES, f"{CHANGE_LOG}/{names[-1]}"):
        assert len(result_of(fleet.store.get(path)).data) < 250


def test_a_write_by_an_earlier_release(fleets: Fleets) -> None:
    """It tells of whole state nodes, and is not in the log."""
    fleet = fleets(3, 3)
    fleet.feed.stop()
    topic = fleet.topics.get(fleet.names[1])
    assert topic is not None
    states = (replace(topic.partitions[0], isr=(2,), partition_epoch=1), *topic.partitions[1:])
    path, data = state_path(topic.name, topic.topic_id), encode_states(0, states)
    told = b'{"version":2,"paths":["%s"],"states":{"%s":[0,1,%s]}}' % (path.encode(), path.encode(), data)
    write = [SetData(path, data), SetData(CHANGES, told)]
    assert fleet.spend(lambda: result_of(fleet.store.multi(write))).reads == 1
    assert fleet.parts.topics.get(topic.name) == replace(topic, partitions=states)


def test_patched_answers_are_those_that_would_be_made_anew(fleets: Fleets) -> None:
    """In every version, after any changes."""
    fleet, draw = fleets(20, 5, partitions=70), random.Random(1)
    changes: list[Callable[[], object]] = [
        lambda: fleet.change_isr(draw.choice(fleet.names), draw.randrange(70)),
        lambda: fleet.create_topic(f"{draw.choice('az')}-{draw.random()}"),
        lambda: fleet.delete_topic(draw.choice(sorted(fleet.topics.names() - set(fleet.names)) or [""])),
        lambda: fleet.leave(FIRST + 4) if FIRST + 4 in fleet.parts.cluster.brokers else fleet.join(FIRST + 4),
        lambda: fleet.parts.cluster.controller_changed(draw.randrange(3)),
    ]
    versions = range(schema.schema_versions(MetadataRequest.API_KEY)[1] + 1)
    kept = metadata_pieces._kept
    for _ in range(60):
        for change in draw.choices(changes, k=draw.choice((1, 1, 1, 3))):
            change()
        version = draw.choice(versions)
        names = draw.sample(sorted(fleet.parts.topics.names()), 3)
        patched = fleet.ask(version=version), fleet.ask(*names, version=version)
        before = kept.pop(fleet.parts.topics)
        assert patched == (fleet.ask(version=version), fleet.ask(*names, version=version))
        kept[fleet.parts.topics] = before
        for answer in patched:
            codec = schema.response_codec(MetadataRequest.API_KEY, version)
            assert codec.encode(codec.decode(answer)) == [answer]


def test_changes_while_a_long_answer_is_made(fleets: Fleets, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Deferred[None]] = []
    monkeypatch.setattr(metadata_pieces, "TOPIC_WORK", slices.SLICE_BYTES)  # one topic takes a slice

    def next_turn(_: object) -> Deferred[None]:
        turns.append(Deferred())
        return turns[-1]

    monkeypatch.setattr(slices, "next_turn", next_turn)
    fleet = fleets(12, 3)
    asked = fleet.parts.ask(MetadataRequest(None), 12)
    for change in (
        lambda: fleet.change_isr(fleet.names[0]),
        lambda: fleet.create_topic("a"),
        lambda: fleet.create_topic("z"),
        lambda: fleet.delete_topic("a"),
        lambda: fleet.leave(FIRST),
    ):
        turns.pop().callback(None)
        change()
        assert not asked.called
    while turns:
        turns.pop().callback(None)
    answer = result_of(asked)
    assert fleet.parts.ask(MetadataRequest(None), 12) == answer
    monkeypatch.undo()
    del metadata_pieces._kept[fleet.parts.topics]
    assert answer == fleet.ask()
